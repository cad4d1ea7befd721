"""A read returns exactly the requested bytes from inside the root, or raises an error that says what to do."""

import errno
import os
import pickle
import shutil
import socket
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mpload.errors import ArgumentError, MploadError, OutsideRootError, StorageError
from mpload.storage import local
from mpload.storage.local import LocalStorage
from mpload.storage.merging import merge_nearby
from mpload.storage.ranges import ByteRange

# Merging reads

runs = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60)), max_size=40)


def as_arrays(pairs: list[tuple[int, int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return table[:, 0].copy(), table[:, 1].copy()


@given(runs, st.integers(0, 40), st.integers(1, 100))
def test_every_run_is_found_in_its_read(pairs: list[tuple[int, int]], gap: int, most: int) -> None:
    file = np.random.default_rng(0).bytes(400)
    offsets, lengths = as_arrays(pairs)
    plan = merge_nearby(offsets, lengths, max_gap_bytes=gap, max_read_bytes=most)
    data = [file[o : o + n] for o, n in zip(plan.offsets.tolist(), plan.lengths.tolist(), strict=True)]
    for (offset, length), read, start in zip(pairs, plan.read_of, plan.start_in_read, strict=True):
        assert data[read][start : start + length] == file[offset : offset + length]


@given(runs, st.integers(0, 40), st.integers(1, 100))
def test_no_read_is_longer_than_allowed_or_than_its_only_run(pairs: list[tuple[int, int]], gap: int, most: int) -> None:
    offsets, lengths = as_arrays(pairs)
    plan = merge_nearby(offsets, lengths, max_gap_bytes=gap, max_read_bytes=most)
    assert np.bincount(plan.read_of, minlength=1).min() >= min(1, len(pairs))  # every read holds a run
    for read, length in enumerate(plan.lengths):
        held = np.flatnonzero(plan.read_of == read)
        if length > most:
            assert len(held) == 1
            assert lengths[held[0]] == length


@given(runs, st.integers(0, 40), st.integers(1, 100))
def test_a_read_has_no_gap_wider_than_allowed_and_ends_with_its_last_run(
    pairs: list[tuple[int, int]], gap: int, most: int
) -> None:
    offsets, lengths = as_arrays(pairs)
    plan = merge_nearby(offsets, lengths, max_gap_bytes=gap, max_read_bytes=most)
    assert (np.diff(plan.offsets) >= 0).all()
    for read in range(len(plan.offsets)):
        held = np.flatnonzero(plan.read_of == read)
        held = held[np.argsort(offsets[held], kind="stable")]
        reach = np.maximum.accumulate(offsets[held] + lengths[held])
        assert plan.offsets[read] == offsets[held[0]]
        assert plan.offsets[read] + plan.lengths[read] == reach[-1]
        assert (offsets[held[1:]] - reach[:-1] <= gap).all()


@given(runs, st.integers(0, 40), st.integers(1, 100))
@example([(0, 60), (5, 1), (50, 5)], 10, 100)  # the third run is inside the first, far from the second
def test_a_new_read_begins_only_if_the_previous_one_cannot_be_extended(
    pairs: list[tuple[int, int]], gap: int, most: int
) -> None:
    offsets, lengths = as_arrays(sorted(pair for pair in pairs if pair[1] <= most))
    plan = merge_nearby(offsets, lengths, max_gap_bytes=gap, max_read_bytes=most)
    for run in np.flatnonzero(np.diff(plan.read_of)) + 1:
        read_before = plan.offsets[plan.read_of[run - 1]]
        reach = (offsets[:run] + lengths[:run]).max()
        assert offsets[run] - reach > gap or offsets[run] + lengths[run] - read_before > most


def test_scattered_lines_of_a_text_are_read_together() -> None:
    offsets = np.array([1000, 40, 0, 5000, 60], np.int64)
    lengths = np.array([30, 20, 30, 10, 20], np.int64)
    plan = merge_nearby(offsets, lengths, max_gap_bytes=64, max_read_bytes=4096)
    assert plan.offsets.tolist() == [0, 1000, 5000]
    assert plan.lengths.tolist() == [80, 30, 10]
    assert plan.read_of.tolist() == [1, 0, 0, 2, 0]
    assert plan.start_in_read.tolist() == [0, 40, 0, 0, 60]


@pytest.mark.parametrize(
    ("offsets", "lengths", "gap", "most", "message"),
    [
        ([0], [1], -1, 10, "max_gap_bytes must not be negative, got -1"),
        ([0], [1], 0, 0, "max_read_bytes must be positive, got 0"),
        ([0, 1], [1], 0, 10, "one-dimensional and of equal length"),
        ([5, -1], [1, 1], 0, 10, "run 1 is out of range: offset -1, length 1"),
        ([5, 1], [1, -2], 0, 10, "run 1 is out of range: offset 1, length -2"),
        ([2**62], [2**62], 0, 10, "run 0 is out of range"),
    ],
)
def test_invalid_runs_are_refused(offsets: list[int], lengths: list[int], gap: int, most: int, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        merge_nearby(np.array(offsets), np.array(lengths), max_gap_bytes=gap, max_read_bytes=most)


@pytest.mark.parametrize(
    "build", [lambda: ByteRange("a", -1, 2), lambda: ByteRange("a", 0, -2), lambda: ByteRange("a", 3)]
)
def test_an_invalid_byte_range_cannot_be_built(build: Callable[[], ByteRange]) -> None:
    with pytest.raises(ArgumentError):
        build()


# Files


@pytest.fixture(params=["native", "plain"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make `root/a/one.bin` with 5 bytes, `root/shard.tar` with 1000, and `secret` beside `root`.

    Each test runs twice, with the native module and without it, because both must behave alike.
    """
    if request.param == "plain":
        monkeypatch.setattr(local, "_NATIVE", None)
    elif local._NATIVE is None:
        pytest.skip("the native module is not built")
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "a" / "one.bin").write_bytes(b"12345")
    (root / "shard.tar").write_bytes(bytes(range(250)) * 4)
    (tmp_path / "secret").write_bytes(b"secret")
    return root


def num_open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


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


# Confinement


def make_links(root: Path) -> None:
    (root / "file_link").symlink_to("../secret")
    (root / "absolute_link").symlink_to(root.parent / "secret")
    (root / "folder_link").symlink_to("..")
    (root / "inner_link").symlink_to("a/one.bin")
    (root / "inner_folder").symlink_to(root / "a")


@pytest.mark.parametrize("span", [(0, None), (0, 6)])
@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "a/../../secret",
        "{parent}/secret",
        "file_link",
        "absolute_link",
        "folder_link/secret",
        "a/../file_link",
    ],
)
def test_no_path_leads_outside_the_root(root: Path, path: str, span: tuple[int, int | None]) -> None:
    make_links(root)
    path = path.format(parent=root.parent)
    before = num_open_files()
    with LocalStorage(root) as storage, pytest.raises(OutsideRootError, match="outside of the root"):
        storage.read([ByteRange(path, *span)])
    assert num_open_files() == before
    with LocalStorage(root, allow_outside_root=True) as storage:
        assert storage.read([ByteRange(path, *span)]) == [b"secret"]


@pytest.mark.parametrize("path", ["../secret", "{parent}/secret", "a/../../secret"])
def test_a_path_that_is_clearly_outside_is_not_even_opened(
    root: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    honest = os.open

    def checked(path: str, flags: int) -> int:
        assert Path(path) == root
        return honest(path, flags)

    monkeypatch.setattr(os, "open", checked)
    with LocalStorage(root) as storage, pytest.raises(OutsideRootError):
        storage.read([ByteRange(path.format(parent=root.parent))])


@pytest.mark.parametrize(
    "path", ["a/one.bin", "./a//one.bin", "a/../a/one.bin", "inner_link", "inner_folder/one.bin", "{root}/a/one.bin"]
)
def test_paths_that_stay_inside_are_read_however_they_are_written(root: Path, path: str) -> None:
    make_links(root)
    with LocalStorage(root) as storage:
        assert storage.read([ByteRange(path.format(root=root))]) == [b"12345"]


def test_the_root_may_be_a_link(root: Path) -> None:
    link = root.parent / "link"
    link.symlink_to(root)
    with LocalStorage(link) as storage:
        assert storage.read([ByteRange("a/one.bin"), ByteRange(f"{link}/a/one.bin")]) == [b"12345"] * 2
        with pytest.raises(OutsideRootError):
            storage.read([ByteRange("../secret")])


def test_a_folder_whose_name_starts_with_that_of_the_root_is_outside(root: Path) -> None:
    twin = root.parent / "root2"
    twin.mkdir()
    (twin / "x").write_bytes(b"x")
    (root / "twin").symlink_to(twin)
    with LocalStorage(root) as storage:
        for path in ("../root2/x", f"{twin}/x", "twin/x"):
            with pytest.raises(OutsideRootError):
                storage.read([ByteRange(path)])


def test_confinement_holds_without_proc(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_links(root)
    honest = os.readlink

    def without_proc(path: str) -> str:
        if path.startswith("/proc/"):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        return honest(path)

    monkeypatch.setattr(os, "readlink", without_proc)
    with LocalStorage(root) as storage:
        assert storage.read([ByteRange("inner_link")]) == [b"12345"]
        with pytest.raises(OutsideRootError):
            storage.read([ByteRange("folder_link/secret")])


def test_no_link_leads_outside_the_root_however_fast_it_changes(root: Path) -> None:
    (root / "a" / "secret").write_bytes(b"12345")
    (root / "link").symlink_to("a")
    is_over = threading.Event()

    def swap() -> None:
        while not is_over.is_set():
            for target in "..", "a":
                (root / "next").symlink_to(target)
                (root / "next").rename(root / "link")

    swapper = threading.Thread(target=swap)
    swapper.start()
    outcomes: Counter[object] = Counter()
    try:
        with LocalStorage(root) as storage:
            while outcomes.total() < 3000 or len(outcomes) < 2:
                try:
                    outcomes[storage.read([ByteRange("link/secret")])[0]] += 1
                except StorageError as error:
                    outcomes[type(error)] += 1
    finally:
        is_over.set()
        swapper.join()
    assert set(outcomes) == {b"12345", OutsideRootError}


def test_a_root_that_is_deleted_and_recreated_can_be_read(root: Path) -> None:
    with LocalStorage(root) as storage:
        assert storage.read([ByteRange("a/one.bin")]) == [b"12345"]
        shutil.rmtree(root)
        with pytest.raises(StorageError, match="No such file"):
            storage.read([ByteRange("a/one.bin")])
        (root / "a").mkdir(parents=True)
        (root / "a" / "one.bin").write_bytes(b"new")
        assert storage.read([ByteRange("a/one.bin")]) == [b"new"]


@pytest.mark.parametrize("root", ["native"], indirect=True)
def test_the_native_module_opens_regular_files_below_a_folder_and_nothing_else(root: Path) -> None:
    assert local._NATIVE is not None
    make_links(root)
    os.mkfifo(root / "pipe")
    before = num_open_files()
    folder = os.open(root, os.O_PATH | os.O_DIRECTORY)
    for path in "a/one.bin", "a/../a/one.bin", "inner_link":
        opened = local._NATIVE.open_beneath(folder, path)
        assert opened is not None
        assert (os.read(opened[0], 10), opened[1]) == (b"12345", 5)
        assert not os.get_inheritable(opened[0])
        os.close(opened[0])
    odd = "", "a", "pipe", "nowhere", "a/one.bin/x", "x" * 5000, "../secret", "file_link", "inner_folder/one.bin"
    for path in *odd, "absolute_link", "folder_link/secret", f"{root}/a/one.bin", "\udcff":
        assert local._NATIVE.open_beneath(folder, path) is None, path
    os.close(folder)
    assert local._NATIVE.open_beneath(folder, "a/one.bin") is None
    with pytest.raises(ValueError, match="null byte"):
        local._NATIVE.open_beneath(0, "a\0b")
    assert num_open_files() == before


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
