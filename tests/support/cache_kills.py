"""Kill processes at random while they fill one cache, and check every byte afterwards.

    python -m tests.support.cache_kills FOLDER NUM_KILLS

Forks from a process without threads. Prints its findings as JSON.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from mpload.index.index import Index
from mpload.index.opening import open_index
from mpload.samples.cache.choice import PartialCache, open_cache
from mpload.samples.cache.opened import OpenCache
from mpload.units import MIB

NUM_SAMPLES = 300
MAX_BYTES = 24 * MIB


def write_samples(folder: Path) -> Index:
    """Write files of 1 to 40 kB with random bytes, and an index of them."""
    rng = np.random.default_rng(0)
    for sample_id in range(NUM_SAMPLES):
        (folder / f"{sample_id}.bin").write_bytes(rng.bytes(int(rng.integers(1_000, 40_000))))
    (folder / "all.txt").write_text("".join(f"{sample_id}.bin 0\n" for sample_id in range(NUM_SAMPLES)))
    return open_index(folder / "all.txt")


def opened_cache(folder: Path, index: Index) -> OpenCache:
    return open_cache(PartialCache(folder / "cache", max_bytes=MAX_BYTES, fraction=1.0), index, read=lambda _: [b""])


def fill(folder: Path, cache: OpenCache, seed: int) -> None:
    """Read all samples repeatedly, each time in another order, until killed."""
    order = random.Random(seed)
    while True:
        for sample_id in order.sample(range(NUM_SAMPLES), NUM_SAMPLES):
            path = folder / f"{sample_id}.bin"
            data = [path.read_bytes()]
            if cache.read(sample_id, [path.name], data.copy) != data:
                os._exit(1)


def num_wrong(folder: Path, cache: OpenCache) -> int:
    wrong = 0
    for sample_id in range(NUM_SAMPLES):
        path = folder / f"{sample_id}.bin"
        data = [path.read_bytes()]
        wrong += cache.read(sample_id, [path.name], data.copy) != data
    return wrong


def main() -> None:
    folder, num_kills = Path(sys.argv[1]), int(sys.argv[2])
    index = write_samples(folder)
    cache = opened_cache(folder, index)
    chance = random.Random(0)
    found = {"wrong": 0, "over_limit": 0, "exited": 0, "kills": 0, "most_segments": 0}
    children: list[int] = []
    while found["kills"] < num_kills:
        while len(children) < 3:
            if not (pid := os.fork()):
                fill(folder, cache, seed=chance.randrange(1 << 30) + os.getpid())
            children.append(pid)
        time.sleep(chance.uniform(0.0, 0.012))  # kill at a random time
        killed = children.pop(chance.randrange(3))
        os.kill(killed, signal.SIGKILL)
        found["exited"] += not os.WIFSIGNALED(os.waitpid(killed, 0)[1])
        found["kills"] += 1
        found["over_limit"] += cache.used_bytes() > MAX_BYTES
        found["most_segments"] = max(found["most_segments"], len(cache.folder.segments()))
        if found["kills"] % 10 == 0:
            found["wrong"] += num_wrong(folder, cache)
        for sample_id in chance.sample(range(NUM_SAMPLES), 20):  # changed sources have to be cached again
            os.utime(folder / f"{sample_id}.bin", ns=(0, chance.randrange(1 << 60)))
        if found["kills"] % 25 == 0:
            cache.shrink(MAX_BYTES // 2)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    again = opened_cache(folder, index)
    found["wrong"] += num_wrong(folder, again) + num_wrong(folder, again)
    found["hits_in_the_end"] = again.counts.hits
    again.close()
    sizes = [path.stat().st_size for path in again.folder.path.iterdir()]
    print(json.dumps({**found, "folder_bytes": sum(sizes), "max_bytes": MAX_BYTES}))


if __name__ == "__main__":
    main()
