"""A read of local files returns exactly the requested bytes, or raises an error that says what to do."""

import errno
import os
import pickle
import shutil
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from mpload.errors import ArgumentError, MploadError, OutsideRootError, StorageError
from mpload.storage import local
from mpload.storage.local import LocalStorage
from mpload.storage.ranges import ByteRange
from tests.support.storages import num_open_files
from tests.support.transport_works import open_files


@pytest.mark.parametrize(
    "build", [lambda: ByteRange("a", -1, 2), lambda: ByteRange("a", 0, -2), lambda: ByteRange("a", 3)]
)
def test_an_invalid_byte_range_cannot_be_built(build: Callable[[], ByteRange]) -> None:
    with pytest.raises(ArgumentError):
        build()


def test_a_large_file_is_read_in_parts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_MAX_READ_BYTES", 7)
    with LocalStorage(root) as storage:
        assert storage.read([ByteRange("shard.tar"), ByteRange("shard.tar", 3, 100)]) == [
            bytes(range(250)) * 4,
            bytes(range(3, 103)),
        ]


def test_files_whose_names_are_not_utf8_are_read(root: Path) -> None:
    name = os.fsdecode(b"caf\xe9\xff.bin")
    (root / name).write_bytes(b"x")
    with LocalStorage(root) as storage:
        assert storage.read([ByteRange(name), ByteRange(name, 0, 1)]) == [b"x", b"x"]
        with pytest.raises(StorageError) as caught:
            storage.read([ByteRange(name + "?")])
    str(caught.value).encode("utf-8")  # can be printed and logged


@pytest.mark.parametrize("span", [(0, None), (0, 1)])
@pytest.mark.parametrize(
    ("path", "number", "message"),
    [
        ("a/two.bin", errno.ENOENT, "a/two.bin: No such file or directory. Does #root"),
        ("a/two.jpg cat", errno.ENOENT, "If a label is behind the name of the file, say so when you index the list"),
        ("a", errno.EISDIR, "a: Is a directory. A path must name a file"),
        ("a/one.bin/x", errno.ENOTDIR, "Not a directory"),
        ("a\0b", None, "embedded null"),
        ("x" * 300, errno.ENAMETOOLONG, "File name too long"),
    ],
)
def test_an_error_says_why_a_file_cannot_be_opened(
    root: Path, path: str, number: int | None, message: str, span: tuple[int, int | None]
) -> None:
    before = num_open_files()
    with LocalStorage(root) as storage, pytest.raises(StorageError) as caught:
        storage.read([ByteRange(path, *span)])
    assert message in str(caught.value)
    assert caught.value.errno == number
    assert isinstance(caught.value, OSError)
    assert num_open_files() == before


def test_missing_permission_is_an_error_that_says_so(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)  # not by chmod, because the tests may run as root
    with (
        LocalStorage(root) as storage,
        pytest.raises(StorageError, match=r"Permission denied\. Give this user") as caught,
    ):
        storage.read([ByteRange("a/one.bin")])
    assert caught.value.errno == errno.EACCES


def test_pipes_and_sockets_are_refused_without_blocking(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as server, LocalStorage(root) as storage:
        server.bind(str(root / "socket"))
        for name in ("pipe", "socket"):
            with pytest.raises(StorageError, match=name):
                storage.read([ByteRange(name)])


def test_the_error_for_a_span_past_the_end_names_span_and_shard_size(root: Path) -> None:
    with LocalStorage(root) as storage:
        for offset, length in ((990, 11), (5000, 1), (0, 1 << 62)):
            with pytest.raises(StorageError, match=rf"shard.tar: the span {offset}\+{length} ends .* has 1,000 bytes"):
                storage.read([ByteRange("shard.tar", offset, length)])
        assert storage.read([ByteRange("shard.tar", 990, 10)]) == [bytes(range(240, 250))]


def test_a_span_of_exabytes_is_refused_without_reading(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pread", lambda *_: pytest.fail("tried to read it"))
    with LocalStorage(root) as storage, pytest.raises(StorageError, match="has 1,000 bytes"):
        storage.read([ByteRange("shard.tar", 0, 1 << 62)])


def test_the_new_part_of_a_growing_shard_can_be_read(root: Path) -> None:
    with LocalStorage(root) as storage:
        storage.read([ByteRange("shard.tar", 0, 1)])
        with (root / "shard.tar").open("ab") as shard:
            shard.write(b"more")
        assert storage.read([ByteRange("shard.tar", 1000, 4)]) == [b"more"]


@pytest.mark.parametrize(
    ("span", "message"), [((0, None), "shrank while it was read, from 5 to 3 bytes"), ((0, 5), "ends at byte 5")]
)
def test_a_file_that_shrinks_while_it_is_read_is_an_error(
    root: Path, monkeypatch: pytest.MonkeyPatch, span: tuple[int, int | None], message: str
) -> None:
    honest = os.pread

    def shrunk(descriptor: int, num_bytes: int, offset: int) -> bytes:
        return honest(descriptor, min(num_bytes, max(0, 3 - offset)), offset)

    monkeypatch.setattr(os, "pread", shrunk)
    with LocalStorage(root) as storage, pytest.raises(StorageError, match=message):
        storage.read([ByteRange("a/one.bin", *span)])


def test_a_root_that_is_deleted_and_recreated_can_be_read(root: Path) -> None:
    with LocalStorage(root) as storage:
        assert storage.read([ByteRange("a/one.bin")]) == [b"12345"]
        shutil.rmtree(root)
        with pytest.raises(StorageError, match="No such file"):
            storage.read([ByteRange("a/one.bin")])
        (root / "a").mkdir(parents=True)
        (root / "a" / "one.bin").write_bytes(b"new")
        assert storage.read([ByteRange("a/one.bin")]) == [b"new"]


# Open shards


def test_at_most_max_open_files_shards_stay_open_and_none_after_close(root: Path) -> None:
    for number in range(10):
        (root / f"{number}.tar").write_bytes(bytes([number]))
    storage = LocalStorage(root, max_open_files=3)
    closed = num_open_files()
    storage.read([ByteRange("8.tar")])
    before = num_open_files()
    assert before <= closed + 1  # the root itself
    for number in (0, 1, 2, 3, 0, 9, 0, 5, 6, 7, 0):
        assert storage.read([ByteRange(f"{number}.tar", 0, 1)]) == [bytes([number])]
        assert num_open_files() <= before + 3
    storage.read([ByteRange("8.tar")])
    assert num_open_files() == before + 3
    storage.close()
    assert num_open_files() == closed
    assert storage.read([ByteRange("1.tar", 0, 1)]) == [b"\1"]
    storage.close()
    with pytest.raises(ArgumentError, match="max_open_files must be positive, got 0"):
        LocalStorage(root, max_open_files=0)


@pytest.mark.parametrize("root", ["plain"], indirect=True)
def test_the_least_recently_used_shard_is_closed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        (root / f"{name}.tar").write_bytes(b"x")
    opened: list[str] = []
    honest = os.open

    def noted(path: str, flags: int) -> int:
        opened.append(Path(path).stem)
        return honest(path, flags)

    monkeypatch.setattr(os, "open", noted)
    with LocalStorage(root, max_open_files=2) as storage:
        for name in "abacab":
            storage.read([ByteRange(f"{name}.tar", 0, 1)])
    assert "".join(opened) == "abcb"


def test_open_shards_are_not_inherited_by_programs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalStorage(root) as storage:
        storage.read([ByteRange("shard.tar", 0, 1)])
        assert [os.get_inheritable(shard.descriptor) for shard in storage._shards.values()] == [False]


@pytest.mark.processes
def test_a_forked_process_reads_the_same_open_shard(root: Path) -> None:
    with LocalStorage(root) as storage:
        storage.read([ByteRange("shard.tar", 0, 1)])
        pid = os.fork()
        if pid == 0:
            good = all(storage.read([ByteRange("shard.tar", at, 2)])[0][0] == at % 250 for at in range(998))
            storage.close()
            os._exit(0 if good else 1)
        for at in range(998):
            assert storage.read([ByteRange("shard.tar", at, 2)])[0][0] == at % 250
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert storage.read([ByteRange("shard.tar", 7, 1)]) == [b"\7"]


def test_a_pickled_storage_reads_the_same_and_shares_no_file(root: Path) -> None:
    with LocalStorage(root, allow_outside_root=True, max_open_files=5) as storage:
        storage.read([ByteRange("shard.tar", 0, 1)])
        copy = pickle.loads(pickle.dumps(storage))
        assert not copy._shards
    assert copy.read([ByteRange("../secret"), ByteRange("shard.tar", 1, 1)]) == [b"secret", b"\1"]
    copy.close()
    assert repr(copy) == repr(storage)


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork and the page cache of Linux")
def test_many_threads_read_local_files_of_which_only_one_stays_open(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / str(number)).write_bytes(bytes([number]) * 1000)
    storage = LocalStorage(tmp_path, max_open_files=1)

    def read(number: int) -> bool:
        return storage.read([ByteRange(str(number % 5), number % 900, 100)]) == [bytes([number % 5]) * 100]

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, range(20_000)))
    storage.close()
    assert not [path for path in open_files().values() if path.startswith(str(tmp_path))]


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork and the page cache of Linux")
def test_a_shard_may_be_closed_by_one_thread_while_others_open_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        (tmp_path / str(number)).write_bytes(bytes([number]) * 100)
    storage = LocalStorage(tmp_path, max_open_files=1)
    open_shard, close = storage._open, os.close

    def read(path: str) -> bytes:
        return storage.read([ByteRange(path, 0, 100)])[0]

    while_opening = [lambda: read("0")]  # the main thread then replaces the shard that the other thread opens
    while_closing = [lambda: read("1")]  # evicts the main thread's shard while it is being stored

    def opening(path: str) -> tuple[int, int]:
        if while_opening:
            other_thread.submit(while_opening.pop()).result()
        return open_shard(path)

    def closing(descriptor: int) -> None:
        if while_closing:
            other_thread.submit(while_closing.pop()).result()
        close(descriptor)

    monkeypatch.setattr(storage, "_open", opening)
    monkeypatch.setattr(os, "close", closing)
    with ThreadPoolExecutor(1) as other_thread:
        assert read("0") == bytes(100)
    assert not while_closing
    found: list[bytes] = []
    reading = threading.Thread(target=lambda: found.extend(map(read, "34034")), daemon=True)
    reading.start()
    reading.join(20)
    assert [data[0] for data in found] == [3, 4, 0, 3, 4]
    assert [file.path for file in psutil.Process().open_files() if Path(file.path).parent == tmp_path] == [
        str(tmp_path / "4")
    ]


def test_storage_errors_travel_between_processes() -> None:
    error = pickle.loads(pickle.dumps(StorageError("a/two.bin: gone")))
    assert str(error) == "a/two.bin: gone"
    assert isinstance(error, MploadError)


@pytest.mark.parametrize("page_cache", ["keep", "drop"])
def test_read_into_gives_the_same_bytes_as_read(tmp_path: Path, page_cache: str) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "file").write_bytes(bytes(range(256)) * 500)
    storage = LocalStorage(tmp_path, page_cache=page_cache)
    for item in ByteRange("empty"), ByteRange("file"), ByteRange("file", 300, 70_000), ByteRange("file", 7, 0):
        sizes: list[int] = []

        def room(num_bytes: int, sizes: list[int] = sizes) -> NDArray[np.uint8]:
            sizes.append(num_bytes)
            return np.full(num_bytes, 255, np.uint8)

        array = storage.read_into(item, room)
        assert [array.tobytes()] == storage.read([item])
        assert sizes[-1] == len(array)
    with pytest.raises(StorageError, match="nowhere"):
        storage.read_into(ByteRange("nowhere"), room)
    small = LocalStorage(tmp_path, page_cache=page_cache, max_bytes=100)
    for item in ByteRange("file"), ByteRange("file", 0, 101):
        with pytest.raises(StorageError, match=r"exceed max_bytes=100\. Raise"):
            small.read_into(item, room)
    with pytest.raises(OutsideRootError):
        storage.read_into(ByteRange("../file"), room)
