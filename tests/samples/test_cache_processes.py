"""Processes that fill one cache together, or are killed while they fill it, leave no wrong byte."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from mpload import MPLoader, PartialCache
from mpload.transport.batches import PoolOptions
from mpload.units import KIB
from tests.support.caches import NUM_FILES, opened, raw, read_epoch, segments, sources

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="locks and tmpfs of Linux")


@pytest.mark.processes
@pytest.mark.parametrize("num_kills", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_processes_killed_while_filling_leave_no_wrong_byte(tmp_path: Path, num_kills: int) -> None:
    command = [sys.executable, "-m", "tests.support.cache_kills", str(tmp_path), str(num_kills)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    found = json.loads(ran.stdout)
    assert (found["wrong"], found["exited"], found["over_limit"]) == (0, 0, 0)
    assert found["kills"] == num_kills
    assert found["hits_in_the_end"] > 0
    assert found["most_segments"] <= 8
    assert found["folder_bytes"] <= found["max_bytes"] + 64 * KIB


@pytest.mark.processes
def test_workers_killed_while_filling_a_cache_change_no_batch(files: Path, tmp_path: Path) -> None:
    chance = random.Random(0)
    dataset = raw(files, PartialCache(tmp_path / "cache", fraction=1.0))
    with MPLoader(dataset, num_workers=3, options=PoolOptions(max_restarts=1000)) as loader:
        for epoch in itertools.count():
            found: dict[int, bytes] = {}
            for data, labels in loader:
                found.update(zip(labels.tolist(), data, strict=True))
                workers = [pid for name, pid in loader.pids.items() if "worker" in name]
                if workers and chance.random() < 0.3:
                    with suppress(ProcessLookupError):
                        os.kill(chance.choice(workers), signal.SIGKILL)
            assert [found[number] for number in sorted(found)] == sources(files)
            if epoch >= 3 and loader.stats().num_deaths > 3:
                break
    later = raw(files, PartialCache(tmp_path / "cache", fraction=1.0))
    for _ in range(2):
        assert read_epoch(later) == sources(files)
    assert opened(later).counts.hits >= 1.9 * NUM_FILES
    assert len(segments(opened(later))) <= 4  # space that dead workers had reserved is reused


RANK = """
import random, sys
from pathlib import Path
from mpload.samples.cache.choice import PartialCache, open_cache
from mpload.index.opening import open_index
index, rank = open_index(sys.argv[1]), int(sys.argv[3])
root = Path(index.root)
cache = open_cache(PartialCache(sys.argv[2], max_bytes="64MiB", fraction=0.7), index, read=None)
order = random.Random(0)
print("ready", flush=True)
sys.stdin.readline()
for epoch in range(3):
    for record in order.sample(list(index), len(index))[rank::3]:
        data = (root / record.cells[0]).read_bytes()
        assert cache.read(record.sample_id, [record.cells[0]], lambda: [data]) == [data]
print(cache.counts.hits, cache.counts.misses, cache.counts.damaged)
cache.close()
"""


@pytest.mark.processes
def test_ranks_fill_one_cache_together(files: Path, tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, files, tmp_path / "cache", str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    for rank in ranks:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "ready\n"
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write("go\n")
        rank.stdin.flush()
    counts = np.array([[int(word) for word in rank.communicate(timeout=60)[0].split()] for rank in ranks])
    assert all(rank.returncode == 0 for rank in ranks)
    cache = opened(raw(files, PartialCache(tmp_path / "cache", max_bytes="64MiB", fraction=0.7)))
    held = [number for number in range(NUM_FILES) if cache.holds(number)]
    hits, misses, damaged = counts.sum(axis=0).tolist()
    assert damaged == 0
    assert hits + misses == 3 * len(held)
    # A sample that one rank missed is a hit for the others. Ranks are not in step, so two may miss one at once.
    assert len(held) <= misses < 1.5 * len(held)
    kept = sum(len(data) for number, data in enumerate(sources(files)) if number in held)
    assert kept < cache.used_bytes() - cache.folder.table_bytes < 1.5 * kept
    assert read_epoch(raw(files, PartialCache(tmp_path / "cache", max_bytes="64MiB", fraction=0.7))) == sources(files)
