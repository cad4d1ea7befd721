"""The loop that watches servers, with servers that are made up: it goes on if the list cannot be written."""

import os
import pickle
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from mpload.ray import supervisor
from mpload.ray.supervisor import Placing, _supervise


class _Server:
    """A server that has another URL after each step, and closes the orders at the end."""

    def __init__(self, folder: Path, orders: int) -> None:
        self._folder = folder
        self._orders = orders
        self._num_steps = 0
        self.url: str | None = None
        self.error: Exception | None = None
        self.is_killed = False
        self.fails_at = 0

    def step(self, now: float) -> None:
        del now
        self._num_steps += 1
        if self._num_steps == self.fails_at:
            raise RuntimeError("the head node is gone")
        self.url = f"http://node1:{self._num_steps}"
        if self._num_steps == 2:
            self._folder.rename(self._folder.with_name("away"))  # the list cannot be written
        if self._num_steps == 4:
            self._folder.with_name("away").rename(self._folder)
        if self._num_steps == 7:
            listed = (self._folder / "servers.txt").read_text()
            assert listed == "http://node1:6\n", listed
            os.close(self._orders)

    def kill(self) -> None:
        self.is_killed = True


def _run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fails_at: int = 0) -> tuple[_Server, list[Any]]:
    folder = tmp_path / "lists"
    folder.mkdir()
    reading, writing = os.pipe()
    server = _Server(folder, writing)
    server.fails_at = fails_at
    monkeypatch.setattr(supervisor, "_Server", lambda *_, **__: server)
    monkeypatch.setattr(supervisor, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(supervisor, "_WRITE_SECONDS", 0.0)
    options: Any = None
    placing = Placing(
        options=options, address=None, num_servers=1, resources={}, start_seconds=60, patience_seconds=60,
        list_file=folder / "servers.txt",
    )  # fmt: skip
    answers = BytesIO()
    with os.fdopen(reading, "rb") as orders:
        _supervise(None, placing, orders, answers)
    if fails_at:
        os.close(writing)
    return server, [pickle.loads(answers.getvalue())]


def test_list_that_cannot_be_written_is_written_later_and_no_server_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    server, answers = _run(tmp_path, monkeypatch)
    assert answers == [None]
    assert server.is_killed
    assert (tmp_path / "lists" / "servers.txt").read_text() == ""
    told = capfd.readouterr().err.splitlines()
    assert len(told) == 2
    assert "servers.txt, the list of servers, cannot be written: [Errno 2]" in told[0]
    assert told[1].endswith("is written again")


def test_supervisor_that_fails_after_the_start_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    server, answers = _run(tmp_path, monkeypatch, fails_at=5)
    assert answers == [None]
    assert server.is_killed
    assert "since their supervisor has failed: RuntimeError('the head node is gone')" in capfd.readouterr().err
