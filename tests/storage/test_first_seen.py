"""The table of what shards were when a process first opened them."""

import os
from pathlib import Path

import pytest

from mpload.errors import IndexChangedError
from mpload.storage.first_seen import _LEVELS, _ROW, FirstSeen


def rewritten(path: Path, data: bytes) -> Path:
    """Replace a file by another one."""
    path.with_name("new").write_bytes(data)
    path.with_name("new").replace(path)
    return path


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "shard"
    path.write_bytes(b"12345")
    os.utime(path, (1, 1))
    return path


@pytest.mark.parametrize("data", [b"54321", b"1", b"123456"], ids=["as long", "shorter", "longer"])
def test_a_file_that_was_replaced_is_refused(shard: Path, data: bytes) -> None:
    seen = FirstSeen()
    seen.check("a", shard.stat())
    rewritten(shard, data)
    with pytest.raises(IndexChangedError, match=r"^a: was replaced while it was in use"):
        seen.check("a", shard.stat())
    seen.check("b", shard.stat())


def test_a_file_that_was_changed_in_place_or_touched_or_copied_with_its_time_is_the_same(shard: Path) -> None:
    seen = FirstSeen()
    seen.check("a", shard.stat())
    os.utime(shard, (2, 2))
    seen.check("a", shard.stat())
    os.truncate(shard, 3)
    seen.check("a", shard.stat())
    with shard.open("ab") as file:
        file.write(b"6")
    seen.check("a", shard.stat())
    seen = FirstSeen()
    before = shard.stat()
    seen.check("a", before)
    os.utime(rewritten(shard, b"6543"), ns=(before.st_mtime_ns, before.st_mtime_ns))
    assert shard.stat().st_ino != before.st_ino
    seen.check("a", shard.stat())


def test_many_files_are_told_apart_and_few_take_few_pages(shard: Path) -> None:
    seen, facts = FirstSeen(), shard.stat()
    for number in range(100):
        seen.check(f"shard-{number}", facts)
    assert not any(seen._map[_ROW.size * sum(_LEVELS[:2]) :])
    for number in range(20_000):
        seen.check(f"shard-{number}", facts)
    other = rewritten(shard, b"x").stat()
    for number in range(0, 20_000, 7):
        with pytest.raises(IndexChangedError):
            seen.check(f"shard-{number}", other)
    seen.check("shard-20000", other)


def test_a_row_that_two_processes_have_written_at_once_counts_as_none(shard: Path) -> None:
    seen = FirstSeen()
    seen.check("a", shard.stat())
    (offset,) = (_ROW.size * row for row in range(_LEVELS[0]) if any(seen._map[_ROW.size * row :][: _ROW.size]))
    seen._map[offset + 8] ^= 1
    other = rewritten(shard, b"x").stat()
    seen.check("a", other)
    seen.check("a", other)


@pytest.mark.processes
def test_processes_that_are_forked_share_the_table(shard: Path) -> None:
    seen = FirstSeen()
    if not (pid := os.fork()):
        seen.check("a", shard.stat())
        os._exit(0)
    os.waitpid(pid, 0)
    with pytest.raises(IndexChangedError):
        seen.check("a", rewritten(shard, b"x").stat())
