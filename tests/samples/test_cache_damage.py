"""Damaged, deleted and foreign files in a cache are misses, and never give a wrong byte."""

import os
import random
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mpload import PartialCache
from mpload.errors import MploadWarning
from mpload.samples.cache.entries import HEAD_BYTES, make_entry, payload_fits, read_head, split_parts
from mpload.samples.cache.opened import OpenCache
from tests.support.caches import NUM_FILES, opened, overwrite, raw, read_epoch, segments, sources

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="locks and tmpfs of Linux")


def swap_places(cache: OpenCache) -> None:
    table = cache.folder.path / "table"
    page, places = table.read_bytes()[:4096], np.frombuffer(table.read_bytes()[4096:], np.uint64)
    table.write_bytes(page + places[::-1].tobytes())


def to_segments(act: Callable[[Path], object]) -> Callable[[OpenCache], None]:
    def to_each(cache: OpenCache) -> None:
        for path in segments(cache):
            act(path)

    return to_each


def to_table(act: Callable[[Path], object]) -> Callable[[OpenCache], None]:
    def to_it(cache: OpenCache) -> None:
        act(cache.folder.path / "table")

    return to_it


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def add_foreign_files(cache: OpenCache) -> None:
    for name in ("notes.txt", "segment-x", "segment-777777"):
        (cache.folder.path / name).write_bytes(b"hello")


DAMAGES: dict[str, Callable[[OpenCache], None]] = {
    "segments overwritten": to_segments(lambda path: overwrite(path, random.Random(1))),
    "segments truncated": to_segments(lambda path: os.truncate(path, path.stat().st_size // 3)),
    "segments deleted": to_segments(Path.unlink),
    "segments replaced by folders": to_segments(replace_by_folder),
    "segments of another program": to_segments(lambda path: path.write_bytes(b"x" * 99_999)),
    "table overwritten": to_table(lambda path: overwrite(path, random.Random(2))),
    "table truncated": to_table(lambda path: os.truncate(path, 4200)),
    "table deleted": to_table(Path.unlink),
    "places swapped": swap_places,
    "foreign files": add_foreign_files,
}


@pytest.mark.parametrize("check_source", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_misses_and_never_wrong_data(
    files: Path, tmp_path: Path, damage: str, check_source: bool
) -> None:
    choice = PartialCache(tmp_path / "cache", fraction=1.0, max_bytes="64MiB", check_source=check_source)
    running = raw(files, choice)
    read_epoch(running)
    DAMAGES[damage](opened(running))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MploadWarning)
        assert read_epoch(running) == sources(files)
        opened(running).close()
        later = raw(files, choice)
        for _ in range(3):
            assert read_epoch(later) == sources(files)
    assert opened(later).counts.hits >= 2 * NUM_FILES  # the cache has recovered


@pytest.mark.parametrize("position", range(0, HEAD_BYTES + 20, 3))
def test_a_change_of_any_byte_of_an_entry_is_detected(position: int) -> None:
    head, payload = make_entry([b"some bytes", b"and more of them"], sample_id=7, stamp=9, key=5)
    entry = bytearray(head + payload)

    def read(entry: bytes, key: int = 5) -> list[bytes] | None:
        found = read_head(entry[:HEAD_BYTES], key=key)
        is_whole = found is not None and payload_fits(found, entry[HEAD_BYTES:], key=key)
        return split_parts(entry[HEAD_BYTES:], found.num_parts) if found and is_whole else None

    assert read(bytes(entry)) == [b"some bytes", b"and more of them"]
    assert read(bytes(entry), key=6) is None
    entry[position] ^= 1
    assert read(bytes(entry)) is None
