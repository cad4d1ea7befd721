"""How fast would larger machines be, with 16 or 96 cores, 8 GPUs or network storage? A simulation from measured costs.

    python benchmarks/bench_scaling.py [--quick]

Each GPU has its own training process. As in a `WorkerPool`, the workers of that process take the chunks of its batches
in order. A worker waits for storage, decodes and writes. The parent delivers a batch when all of its chunks are ready,
and only then is its slot free again. All processes of a machine share its storage, which has limits on reads and bytes
per second, and a latency. The costs are medians from the records of this machine (decode.jsonl, ceiling.jsonl,
order.jsonl), so the simulated cores are as fast as these. None of the simulated rates was measured. The simulation
ignores memory bandwidth, turbo clocks and NUMA. Records: benchmarks/records/scaling.jsonl.
"""

import argparse
import heapq
import json
from dataclasses import dataclass
from typing import Any

from records import RECORDS, write_record

BATCH_SIZE = 256
CHUNK_SAMPLES = 16
READS_AHEAD = 16
"""Number of reads that a worker has in flight if storage is slow."""
SAMPLE_BYTES = 110_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Costs in seconds."""

    decode: float
    """A worker's time per sample to decode, crop and write."""
    hand_out: float
    """The parent's time per batch to deliver it."""
    plan: float
    """A worker's time per sample to compute its sample_id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    name: str
    reads_per_second: float
    bytes_per_second: float
    latency_seconds: float


STORAGES = (
    Storage(name="page cache", reads_per_second=1e6, bytes_per_second=20e9, latency_seconds=20e-6),
    Storage(name="local NVMe", reads_per_second=5e5, bytes_per_second=6e9, latency_seconds=100e-6),
    Storage(name="network file system", reads_per_second=1e4, bytes_per_second=1.2e9, latency_seconds=1e-3),
    Storage(name="object store", reads_per_second=2e4, bytes_per_second=3e9, latency_seconds=20e-3),
)


def measured() -> Costs:
    """Return the costs from the latest records."""
    decode = latest("decode", contestant="mpload_native")["median_us"]
    parent = latest("ceiling", workers="loader", batch_samples=BATCH_SIZE)["parent_cpu_us_per_batch"]
    plan = latest("order", spec="shuffle", num_samples=1_281_167, num_positions=BATCH_SIZE)["median_ns_per_id"]
    return Costs(decode=decode * 1e-6, hand_out=parent * 1e-6, plan=plan * 1e-9)


def latest(name: str, **case: Any) -> dict[str, Any]:
    """Return the figures of the latest record whose case has these values."""
    lines = (RECORDS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    found: dict[str, Any] = {}
    for record in map(json.loads, lines):
        if case.items() <= record["case"].items():
            found = record["figures"]
    if not found:
        raise SystemExit(f"{name}.jsonl has no record of {case}. Run bench_{name}.py first")
    return found


def simulate(costs: Costs, storage: Storage, *, num_cores: int, num_gpus: int, num_batches: int) -> float:
    """Return the samples per second over all GPUs of a machine.

    If a GPU has more than two cores, one of them is left to its training process.
    """
    num_workers = max(1, num_cores // num_gpus - (num_cores // num_gpus > 2))
    num_slots = 3 + -(-64 * num_workers // BATCH_SIZE)  # as many as an MPLoader has
    chunks = -(-BATCH_SIZE // CHUNK_SAMPLES)
    read_seconds = CHUNK_SAMPLES * max(1 / storage.reads_per_second, SAMPLE_BYTES / storage.bytes_per_second)
    waits = -(-CHUNK_SAMPLES // READS_AHEAD) * storage.latency_seconds
    work = CHUNK_SAMPLES * (costs.decode + costs.plan)
    storage_free = 0.0
    workers = [
        (0.0, gpu) for gpu in range(num_gpus) for _ in range(num_workers)
    ]  # when each worker is free, and its GPU
    heapq.heapify(workers)
    taken = [0] * num_gpus  # the number of chunks taken, in the order of the batches
    done: list[list[float]] = [[] for _ in range(num_gpus)]  # when each chunk was finished
    handed = [[0.0] * num_slots for _ in range(num_gpus)]  # when each batch was delivered; all slots are free at first
    while workers:
        now, gpu = heapq.heappop(workers)
        batch = taken[gpu] // chunks
        if batch == num_batches:
            continue
        settle(handed[gpu], done[gpu], num_slots, costs.hand_out)
        if len(handed[gpu]) <= batch:  # no free slot: the batch before it in that slot is not finished
            soonest = min((when for when, whose in workers if whose == gpu), default=now)
            heapq.heappush(workers, (max(now, soonest) + 1e-6, gpu))
            continue
        taken[gpu] += 1
        start = max(now, handed[gpu][batch])
        storage_free = max(storage_free, start) + read_seconds
        # The next chunk is read while one is decoded, so a worker waits only if storage is slower than decoding.
        end = max(storage_free + waits - work, start) + work
        done[gpu].append(end)
        heapq.heappush(workers, (end, gpu))
    for gpu in range(num_gpus):
        settle(handed[gpu], done[gpu], num_slots, costs.hand_out)
    return num_gpus * num_batches * BATCH_SIZE / max(times[-1] for times in handed)


def settle(handed: list[float], done: list[float], num_slots: int, hand_out: float) -> None:
    """Deliver all batches whose chunks are finished, one after the other."""
    chunks = -(-BATCH_SIZE // CHUNK_SAMPLES)
    while (batch := len(handed) - num_slots) < len(done) // chunks:
        handed.append(max(handed[-1], *done[batch * chunks : (batch + 1) * chunks]) + hand_out)


def limit(costs: Costs, storage: Storage, *, num_cores: int, num_gpus: int, rate: float) -> str:
    """Return the name of the part that limits the rate."""
    num_workers = num_gpus * max(1, num_cores // num_gpus - (num_cores // num_gpus > 2))
    of_storage = min(storage.reads_per_second, storage.bytes_per_second / SAMPLE_BYTES)
    of_parents = num_gpus * BATCH_SIZE / costs.hand_out
    of_workers = num_workers / (costs.decode + costs.plan)
    ceilings = {"storage": of_storage, "parent": of_parents, "decoding": of_workers}
    name = min(ceilings, key=lambda stage: ceilings[stage])
    return name if rate > 0.8 * ceilings[name] else "latency"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer batches; write no record")
    arguments = parser.parse_args()
    costs = measured()
    print(f"measured: {costs}")
    for storage in STORAGES:
        for num_cores, num_gpus in ((2, 1), (16, 1), (96, 1), (96, 8)):
            machine = {"num_cores": num_cores, "num_gpus": num_gpus}
            rate = simulate(costs, storage, **machine, num_batches=40 if arguments.quick else 400)
            case = {"storage": storage.name, **machine, "batch_size": BATCH_SIZE, "sample_bytes": SAMPLE_BYTES}
            figures = {
                "images_per_second": round(rate),
                "limit": limit(costs, storage, **machine, rate=rate),
                "decode_us": round(costs.decode * 1e6),
                "parent_us_per_batch": round(costs.hand_out * 1e6),
            }
            print(json.dumps({**case, **figures}), flush=True)
            if not arguments.quick:
                write_record("scaling", case, figures)


if __name__ == "__main__":
    main()
