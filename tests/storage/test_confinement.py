"""No path and no link leads outside the root, however it is written and however fast it changes."""

import errno
import os
import threading
from collections import Counter
from pathlib import Path

import pytest

from mpload.errors import OutsideRootError, StorageError
from mpload.storage.local import LocalStorage
from mpload.storage.native import NATIVE
from mpload.storage.ranges import ByteRange
from tests.support.storages import num_open_files


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


@pytest.mark.parametrize("root", ["native"], indirect=True)
def test_the_native_module_opens_regular_files_below_a_folder_and_nothing_else(root: Path) -> None:
    assert NATIVE is not None
    make_links(root)
    os.mkfifo(root / "pipe")
    before = num_open_files()
    folder = os.open(root, os.O_PATH | os.O_DIRECTORY)
    for path in "a/one.bin", "a/../a/one.bin", "inner_link":
        opened = NATIVE.open_beneath(folder, path)
        assert opened is not None
        assert (os.read(opened[0], 10), opened[1]) == (b"12345", 5)
        assert not os.get_inheritable(opened[0])
        os.close(opened[0])
    odd = "", "a", "pipe", "nowhere", "a/one.bin/x", "x" * 5000, "../secret", "file_link", "inner_folder/one.bin"
    for path in *odd, "absolute_link", "folder_link/secret", f"{root}/a/one.bin", "\udcff":
        assert NATIVE.open_beneath(folder, path) is None, path
    os.close(folder)
    assert NATIVE.open_beneath(folder, "a/one.bin") is None
    with pytest.raises(ValueError, match="null byte"):
        NATIVE.open_beneath(0, "a\0b")
    assert num_open_files() == before
