"""`open_index(local_copy=...)`: an index on a slow file system is copied once a machine, whole or not at all."""

import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mpload import list_parts, open_index
from mpload.errors import IndexNotFoundError, MploadError, StorageError
from tests.support.growing import HEAD, growing, numbers_in
from tests.support.index_parts import write_part, write_parts, write_whole

OPEN = "import mpload, sys; print(mpload.open_index(sys.argv[1], local_copy=sys.argv[2]).fingerprint)"


def versions(copies: Path) -> list[Path]:
    """Return the folders of all versions that are copied, and of copies under way."""
    return [path for path in copies.glob("*/*") if path.is_dir()]


@pytest.fixture
def share(tmp_path: Path) -> Path:
    (tmp_path / "share").mkdir()
    return tmp_path / "share"


def test_the_copy_reads_as_the_index_and_does_not_read_it_again(tmp_path: Path, share: Path) -> None:
    path, copies = write_whole(share, 40), tmp_path / "copies"
    index = open_index(path)
    sidecar = path.with_name("whole.txt.mpx").read_bytes()
    first = open_index(path, local_copy=copies)
    assert (first.fingerprint, first.root) == (index.fingerprint, index.root)
    assert first.path.is_relative_to(copies)
    assert first.path.with_name("whole.txt.mpx").read_bytes() == sidecar
    inode = first.path.stat().st_ino
    assert open_index(path, local_copy=str(copies)).path.stat().st_ino == inode
    shutil.rmtree(share)
    assert list(pickle.loads(pickle.dumps(first))) == list(index)
    with pytest.raises(IndexNotFoundError, match=r"whole.txt"):
        open_index(path, local_copy=copies)


def test_a_relative_root_stays_relative_to_the_index(tmp_path: Path, share: Path) -> None:
    path = write_part(share / "train.txt", 0, 3, head=HEAD.replace("#columns", "#root photos\n#columns"))
    assert open_index(path, local_copy=tmp_path / "copies").root == str(share / "photos")


def test_a_changed_index_is_copied_again_and_the_old_copy_can_still_be_read(tmp_path: Path, share: Path) -> None:
    path, copies = write_whole(share, 40), tmp_path / "copies"
    old = open_index(path, local_copy=copies)
    write_part(path, 0, 50)
    assert (len(open_index(path, local_copy=copies)), len(old)) == (50, 40)
    assert old[39]["id"] == 39
    assert len(versions(copies)) == 2


def test_a_damaged_copy_is_replaced(tmp_path: Path, share: Path) -> None:
    path, copies = write_whole(share, 40), tmp_path / "copies"
    index = open_index(path, local_copy=copies)
    status = index.path.stat()
    index.path.write_bytes(index.path.read_bytes().replace(b"sample 7", b"sample 8"))
    os.utime(index.path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert list(open_index(path, local_copy=copies)) == list(open_index(path))


def test_parts_are_copied_each_and_only_those_that_have_changed_again(tmp_path: Path, share: Path) -> None:
    loose, copies = write_parts(share, [0, 10, 10, 40]), tmp_path / "copies"
    for path in (loose, list_parts([loose], share / "list.txt")):
        expected = numbers_in(growing(path))
        for _ in range(2):
            index = open_index(path, local_copy=copies)
            assert numbers_in(growing(index)) == expected
    num_versions = len(versions(copies))
    write_part(share / "part-2.txt", 10, 45)
    assert len(open_index(loose, local_copy=copies)) == 45
    assert len(versions(copies)) == num_versions + 1


def test_an_error_names_the_list_and_not_its_copy(tmp_path: Path, share: Path) -> None:
    path = list_parts([write_parts(share, [0, 10, 40])], share / "list.txt")
    write_part(share / "part-1.txt", 11, 41)
    (share / "broken.txt").write_text("#mpload 1\n#parts\n\n")
    for name, fault in (("list.txt:4", "part part-1.txt: does not begin with"), ("broken.txt:3", "is blank")):
        with pytest.raises(MploadError, match=f"^{re.escape(str(share / name))}: {fault}"):
            open_index(path.with_name(name.partition(":")[0]), local_copy=tmp_path / "copies")


def test_an_index_grows_through_its_copy(tmp_path: Path, share: Path) -> None:
    path, copies = write_whole(share, 40), tmp_path / "copies"
    dataset = growing(open_index(path, local_copy=copies))
    next(iter(dataset))
    state = dataset.state_dict()
    write_part(path, 0, 50)
    longer = growing(open_index(path, local_copy=copies))
    longer.load_state_dict(state)
    assert sum(map(len, numbers_in(longer))) == 36
    assert sum(map(len, numbers_in(longer))) == 50


@pytest.mark.processes
def test_a_killed_copy_is_made_again_and_leaves_nothing(tmp_path: Path, share: Path) -> None:
    path, copies = write_whole(share, 400_000), tmp_path / "copies"
    with subprocess.Popen([sys.executable, "-c", OPEN, str(path), str(copies)]) as process:
        deadline = time.monotonic() + 60
        while not [each for each in versions(copies) if each.suffix == ".tmp"]:
            assert time.monotonic() < deadline
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    assert list(open_index(path, local_copy=copies)[:5]) == list(open_index(path)[:5])
    (version,) = versions(copies)
    assert version.suffix != ".tmp"


@pytest.mark.processes
def test_processes_that_start_at_once_make_one_copy(tmp_path: Path, share: Path) -> None:
    path, copies = write_whole(share, 1000), tmp_path / "copies"
    command = [sys.executable, "-c", OPEN, str(path), str(copies)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
    assert len({process.communicate(timeout=60)[0] for process in running}) == 1
    assert len(versions(copies)) == 1


def test_a_folder_that_cannot_hold_copies_is_named(tmp_path: Path, share: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"whole.txt: cannot be copied to .*file"):
        open_index(write_whole(share, 4), local_copy=tmp_path / "file")
