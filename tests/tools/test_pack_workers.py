"""A pack whose workers cannot start says what the system has refused, and leaves no process behind."""

import errno
import os
import threading
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest

from mpload.errors import RefusedError
from mpload.tools.pack import workers


def work(shard: int) -> int:
    return shard


def pack(folder: Path) -> None:
    list(workers.done_shards(work, range(4), num_workers=2, on=None, folder=folder))


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOENT, errno.ENOSPC])
def test_semaphores_that_cannot_be_made_are_named(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(workers, "ProcessPoolExecutor", refuse)
    with pytest.raises(RefusedError, match=rf"semaphores, .* /dev/shm: {os.strerror(number)}\. .*\(--workers 1\)"):
        pack(tmp_path)


@pytest.mark.processes
def test_a_thread_that_cannot_start_is_named_and_no_worker_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = set(active_children())
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RefusedError, match=r"cannot be started: .*ulimit -u.*pids.max.*\(--workers 1\)"):
        pack(tmp_path)
    for worker in set(active_children()) - before:
        worker.join(10)
    assert not set(active_children()) - before
    assert capfd.readouterr().err == ""


@pytest.mark.processes
def test_a_worker_that_cannot_start_its_thread_is_not_blamed_on_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_start_worker", start_without_threads)
    with pytest.raises(RefusedError, match=r"pids.max.*\(--workers 1\)"):
        pack(tmp_path)


start_worker = workers._start_worker


def start_without_threads(*arguments: Any) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    setattr(threading.Thread, "start", refuse)  # noqa: B010  mypy refuses an assignment
    start_worker(*arguments)


@pytest.mark.processes
def test_helpers_that_died_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def start_but_no_helper_of_helpers(thread: threading.Thread) -> None:
        if thread.name.startswith("QueueFeeder"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(workers, "_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(threading.Thread, "start", start_but_no_helper_of_helpers)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with pytest.raises(RefusedError, match=r"pids\.max"):
        pack(tmp_path)
