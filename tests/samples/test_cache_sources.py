"""Sources of a cache: changed, deleted and remote ones, and those of another data set, form or format."""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from mpload import PartialCache
from mpload.errors import SampleError
from mpload.index.opening import open_index
from mpload.samples.cache.choice import open_cache
from mpload.storage.ranges import ByteRange
from tests.support.caches import NUM_FILES, opened, raw, read_epoch, sources

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="locks and tmpfs of Linux")


def test_each_form_has_its_own_checksum_key(files: Path, tmp_path: Path) -> None:
    keys = {opened(raw(files, PartialCache(tmp_path, what=what))).folder.key for what in ("bytes", "resized")}
    assert len(keys) == 2


def test_a_changed_source_is_read_again_unless_the_index_is_trusted(files: Path, tmp_path: Path) -> None:
    careful, trusting = (
        raw(files, PartialCache(tmp_path / str(check), fraction=1.0, check_source=check)) for check in (True, False)
    )
    before = sources(files)
    for dataset in (careful, trusting):
        assert read_epoch(dataset) == before
    changed = files.parent / "data" / "17.bin"
    changed.write_bytes(bytes(len(before[17])))
    os.utime(changed, ns=(1, 1))
    assert read_epoch(trusting) == before
    for _ in range(2):
        assert read_epoch(careful) == sources(files) != before
    assert opened(careful).counts.damaged == 1


class RemoteFiles:
    """A storage whose sources are not files of this machine."""

    cache_key = "far"

    def __init__(self, files: Path) -> None:
        self.data = {f"data/{number}.bin": data for number, data in enumerate(sources(files))}

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        return [self.data[item.path.removeprefix("s3://far/")] for item in ranges]


@pytest.mark.parametrize("prefix", ["", "s3://far/"])
def test_sources_that_are_not_local_files_are_cached_too(files: Path, tmp_path: Path, prefix: str) -> None:
    storage, expected = RemoteFiles(files), sources(files)
    files.write_text("".join(f"{prefix}data/{number}.bin {number}\n" for number in range(NUM_FILES)))
    shutil.rmtree(files.parent / "data")
    dataset = raw(files, PartialCache(tmp_path / "cache", fraction=1.0), storage=storage)
    for _ in range(2):
        assert read_epoch(dataset) == expected
    assert opened(dataset).counts.hits == NUM_FILES


def test_a_url_among_local_files_is_cached_and_never_checked(files: Path, tmp_path: Path) -> None:
    cache = open_cache(PartialCache(tmp_path / "cache", fraction=1.0), open_index(files), read=lambda _: [b""])
    for data in (b"one", b"two"):
        assert cache.read(3, ["s3://bucket/key"], lambda data=data: [data]) == [b"one"]  # type: ignore[misc]
    cache.close()


def test_a_deleted_source_is_an_error_even_if_it_was_cached(files: Path, tmp_path: Path) -> None:
    dataset = raw(files, PartialCache(tmp_path / "cache", fraction=1.0))
    read_epoch(dataset)
    (files.parent / "data" / "17.bin").unlink()
    with pytest.raises(SampleError, match=r"data/17\.bin"):
        read_epoch(dataset)


def test_data_sets_with_the_same_lines_never_mix_in_one_folder(files: Path, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "data", tmp_path / "copy" / "data")
    other = tmp_path / "copy" / "all.txt"
    other.write_bytes(files.read_bytes())
    for number, data in enumerate(sources(files)):
        path = tmp_path / "copy" / "data" / f"{number}.bin"
        path.write_bytes(data[::-1])
        os.utime(path, ns=(1, (tmp_path / "data" / path.name).stat().st_mtime_ns))
    datasets = [raw(index, PartialCache(tmp_path / "cache", fraction=1.0)) for index in (files, other)]
    for _ in range(2):
        for index, dataset in zip((files, other), datasets, strict=True):
            assert read_epoch(dataset) == sources(index)
    a, b = (opened(dataset).folder for dataset in datasets)
    for name in ("table", "segment-000001"):  # not even if one's files replace the other's
        shutil.copy(a.path / name, b.path / name)
    assert read_epoch(datasets[1]) == sources(other)
    assert read_epoch(raw(other, PartialCache(tmp_path / "cache", fraction=1.0))) == sources(other)


def test_another_version_of_the_format_has_its_own_files(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_epoch(raw(files, PartialCache(tmp_path / "cache", fraction=1.0)))
    monkeypatch.setattr("mpload.samples.cache.choice.FORMAT", "mpload-cache-2")
    later = raw(files, PartialCache(tmp_path / "cache", fraction=1.0))
    assert read_epoch(later) == sources(files)
    assert opened(later).counts.hits == 0
    assert len(list((tmp_path / "cache").iterdir())) == 2
