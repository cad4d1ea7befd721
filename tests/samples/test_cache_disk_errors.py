"""A cache on a disk that is full or cannot be written to warns once, and reading continues."""

import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpload import MPDataset, MPLoader, PartialCache
from mpload.errors import MploadWarning
from mpload.units import MIB
from tests.support.caches import NUM_FILES, opened, raw, read_epoch, sources

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="locks and tmpfs of Linux")


def check_epochs(dataset: MPDataset, files: Path, *, num_epochs: int) -> None:
    for _ in range(num_epochs):
        assert read_epoch(dataset) == sources(files)


@contextmanager
def tmpfs(folder: Path, num_bytes: int) -> Iterator[Path]:
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "none", folder], check=False)
    if made.returncode:
        pytest.skip("may not mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def assert_continues_with_one_warning(files: Path, folder: Path) -> None:
    dataset = raw(files, PartialCache(folder, fraction=1.0))
    with pytest.warns(MploadWarning, match="not filled any further") as caught:
        check_epochs(dataset, files, num_epochs=3)
    assert len(caught) == 1
    counts = opened(dataset).counts
    assert 0.2 * NUM_FILES < counts.hits / 2 < 0.8 * NUM_FILES
    assert counts.damaged == 0, "an entry that was cut off by the full disk was published"
    opened(dataset).close()


@pytest.mark.processes
def test_a_full_disk_ends_filling_with_one_warning(files: Path, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", 2 * MIB) as disk:
        assert_continues_with_one_warning(files, disk)


def test_a_limit_on_file_sizes_ends_filling_with_one_warning(files: Path, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MIB, before[1]))
    try:
        dataset = raw(files, PartialCache(tmp_path / "cache", fraction=1.0))
        with pytest.warns(MploadWarning, match="File too large") as caught:
            check_epochs(dataset, files, num_epochs=2)
        assert len(caught) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.processes
@pytest.mark.filterwarnings("default")  # also in workers
def test_workers_warn_of_a_full_disk_once(files: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with tmpfs(tmp_path / "disk", MIB) as disk:
        dataset = raw(files, PartialCache(disk, fraction=1.0))
        with MPLoader(dataset, num_workers=3) as loader:
            for _ in range(2):
                found = {
                    label: data for batch in loader for data, label in zip(batch[0], batch[1].tolist(), strict=True)
                }
                assert [found[number] for number in range(NUM_FILES)] == sources(files)
        opened(dataset).close()
    assert capfd.readouterr().err.count("not filled any further") == 1


@pytest.mark.processes
def test_a_read_only_folder_is_read_and_gives_one_warning(files: Path, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", 8 * MIB) as disk:
        choice = PartialCache(disk, fraction=1.0)
        first = raw(files, choice)
        for data, _ in first:
            if opened(first).counts.misses >= NUM_FILES // 2:
                assert data
                break
        num_kept = opened(first).counts.misses
        opened(first).close()
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with pytest.warns(MploadWarning, match="Read-only file system") as caught:
            dataset = raw(files, choice)
        check_epochs(dataset, files, num_epochs=1)
        with MPLoader(dataset, num_workers=2) as loader:
            assert sum(len(labels) for _, labels in loader) == NUM_FILES
        assert len(caught) == 1
        assert opened(dataset).counts.hits == num_kept
        opened(dataset).close()


def test_a_folder_that_cannot_be_created_gives_one_warning(files: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.warns(MploadWarning, match="Not a directory") as caught:
        dataset = raw(files, PartialCache(tmp_path / "file" / "cache", fraction=1.0))
    check_epochs(dataset, files, num_epochs=2)
    assert len(caught) == 1
