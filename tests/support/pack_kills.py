"""Kill packing at random times, repeatedly, and check every byte that it leaves.

    python -m tests.support.pack_kills FOLDER FORMAT NUM_KILLS

Forks from a process without threads that has imported all modules. Prints its findings as JSON.
"""

import filecmp
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path

import numpy as np

from mpload.tools.pack.packing import PackOptions, ShardFormat, pack_index
from mpload.units import KIB

NUM_SAMPLES = 300
SHARD_BYTES = 150 * KIB


def write_samples(folder: Path, kind: ShardFormat) -> Path:
    """Write files of 1 to 40 kB with random bytes, or `.npy` files of 20 kB for arrays, and an index of them."""
    rng = np.random.default_rng(0)
    for sample in range(NUM_SAMPLES):
        with (folder / f"{sample}.bin").open("wb") as file:
            if kind is ShardFormat.ARRAYS:
                np.save(file, np.frombuffer(rng.bytes(20_000), np.uint8).reshape(100, 200))
            else:
                file.write(rng.bytes(int(rng.integers(1_000, 40_000))))
    index = folder / "all.txt"
    index.write_text("".join(f"{sample}.bin {sample % 7}\n" for sample in range(NUM_SAMPLES)))
    return index


def start_pack(index: Path, out: Path, options: PackOptions, num_workers: int) -> int:
    """Start packing in a new process group; return the group's number."""
    if pid := os.fork():
        with suppress(PermissionError, ProcessLookupError):  # the forked process has done it, or has ended
            os.setpgid(pid, 0)
        return pid
    try:
        os.setpgid(0, 0)
        pack_index(index, out, options, num_workers=num_workers)
        os._exit(0)
    except BaseException:  # noqa: BLE001  the forked process must not continue here
        traceback.print_exc()
        os._exit(1)


def num_different(whole: Path, folder: Path, *, is_finished: bool) -> int:
    """Count the files that differ from those of the complete pack; if packing has finished, also missing files."""
    may_be_there = {".mpx"} if is_finished else {".mpx", ".lines", ".tmp"}  # sidecars contain times
    there = {path.name for path in folder.iterdir() if path.suffix not in may_be_there}
    wanted = {path.name for path in whole.iterdir() if path.suffix != ".mpx"}
    missing = wanted - there if is_finished else set()
    _, wrong, unreadable = filecmp.cmpfiles(whole, folder, there & wanted, shallow=False)
    return len(there - wanted) + len(missing) + len(wrong) + len(unreadable)


def main() -> None:
    folder, options = Path(sys.argv[1]), PackOptions(shard_bytes=SHARD_BYTES, format=ShardFormat(sys.argv[2]))
    num_kills = int(sys.argv[3])
    index, whole, out = write_samples(folder, options.format), folder / "whole", folder / "out"
    start = time.monotonic()
    _, status = os.waitpid(start_pack(index, whole, options, 1), 0)
    pack_seconds = time.monotonic() - start
    chance = random.Random(0)
    found = {"kills": 0, "finished": 0, "failed": int(status != 0), "different": 0}
    found["shards"] = len(list(whole.glob("shard-*")))
    while found["kills"] < num_kills or out.exists():
        num_workers = 2 if found["kills"] % 10 == 9 else 1  # a kill of the group includes workers
        pid = start_pack(index, out, options, num_workers)
        if found["kills"] < num_kills:
            time.sleep(chance.uniform(0.0, 0.5 * pack_seconds + 0.5 * (num_workers - 1)))  # kill at a random time
            os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        is_killed = os.WIFSIGNALED(status)
        found["kills" if is_killed else "finished"] += 1
        found["failed"] += not is_killed and status != 0
        if out.exists():
            found["different"] += num_different(whole, out, is_finished=not is_killed)
        if not is_killed:
            shutil.rmtree(out)
    print(json.dumps(found | {"pack_seconds": round(pack_seconds, 3)}))


if __name__ == "__main__":
    main()
