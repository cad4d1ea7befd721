"""Which library reads ranges of objects faster, obstore or `pyarrow.fs`, and how much does it cost a worker?

    python benchmarks/bench_remote.py [--quick]

Each case is a fresh process that reads ranges of 110 KB, 16 at once, from moto's S3 server on the loopback interface.
That server is slow. "plain" is Python's `http.client` without signatures: if it is no faster than a library, the server
is the limit, and only the CPU time of the client distinguishes the libraries. The benchmark also measures the seconds
from before the import until the first range has been read, and the private memory at that time and at the end, minus
that of the bare interpreter. The private memory is given as USS, which includes the library's own pages if no other
process has loaded it, and as written memory, which every further worker adds. Records: benchmarks/records/remote.jsonl.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from records import write_record

RANGE_BYTES = 110_000
RANGES_PER_OBJECT = 10
NUM_OBJECTS = 16
NUM_IN_FLIGHT = 16
REPETITIONS = 5

Read = Callable[[str, int], int]
"""Reads a range of an object, given its key and the first byte; returns the number of bytes."""


def obstore_read() -> Read:
    import obstore
    from obstore.store import from_url

    store = from_url("s3://photos", client_options={"allow_http": True})
    return lambda key, offset: len(bytes(obstore.get_range(store, key, start=offset, length=RANGE_BYTES)))


def pyarrow_read() -> Read:
    """Return a function that opens each object only once (opening asks for its size), as a reader of shards would."""
    from pyarrow import fs

    store = fs.S3FileSystem(
        endpoint_override=os.environ["AWS_ENDPOINT_URL"].removeprefix("http://"),
        scheme="http",
        region=os.environ["AWS_REGION"],
    )
    files: dict[str, Any] = {}

    def read(key: str, offset: int) -> int:
        if (file := files.get(key)) is None:
            file = files[key] = store.open_input_file(f"photos/{key}")
        return len(file.read_at(RANGE_BYTES, offset))  # type: ignore[call-arg]

    return read


def plain_read() -> Read:
    import http.client

    address = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")

    def read(key: str, offset: int) -> int:
        connection = http.client.HTTPConnection(address, timeout=60)
        try:
            headers = {
                "Range": f"bytes={offset}-{offset + RANGE_BYTES - 1}",
                "Authorization": "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request",
            }
            connection.request("GET", f"/photos/{key}", headers=headers)
            return len(connection.getresponse().read())
        finally:
            connection.close()

    return read


CLIENTS: dict[str, Callable[[], Read]] = {"obstore": obstore_read, "pyarrow": pyarrow_read, "plain": plain_read}


def measure(client: str, num_reads: int) -> dict[str, float]:
    bare = private_bytes()
    start = time.perf_counter()
    read = CLIENTS[client]()
    assert read(key(0), 0) == RANGE_BYTES
    first_seconds = time.perf_counter() - start
    first = private_bytes()
    chance = random.Random(0)
    ranges = [
        (key(chance.randrange(NUM_OBJECTS)), RANGE_BYTES * chance.randrange(RANGES_PER_OBJECT))
        for _ in range(num_reads)
    ]
    with ThreadPoolExecutor(NUM_IN_FLIGHT) as threads:
        for size in threads.map(read, [key(number) for number in range(NUM_OBJECTS)], [0] * NUM_OBJECTS):
            assert size == RANGE_BYTES
        start, start_cpu = time.perf_counter(), time.process_time()
        for size in threads.map(read, *zip(*ranges, strict=True)):
            assert size == RANGE_BYTES
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
        end = private_bytes()
    return {
        "reads_per_second": num_reads / seconds,
        "megabytes_per_second": num_reads * RANGE_BYTES / seconds / 1e6,
        "client_cpu_us_per_read": cpu_seconds / num_reads * 1e6,
        "first_range_seconds": first_seconds,
        **{f"first_range_{name}_bytes": first[name] - bare[name] for name in bare},
        **{f"end_{name}_bytes": end[name] - bare[name] for name in bare},
    }


def private_bytes() -> dict[str, int]:
    """Return the private memory of this process, and the part of it that was written."""
    counts = {"Private_Clean:": 0, "Private_Dirty:": 0}
    for line in Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(" ")
        if name in counts:
            counts[name] += int(rest.split()[0]) * 1024
    return {"uss": sum(counts.values()), "written": counts["Private_Dirty:"]}


def key(number: int) -> str:
    return f"shards/{number:03d}.bin"


def run_case(case: dict[str, Any]) -> dict[str, float]:
    command = [sys.executable, __file__, "--case", json.dumps(case)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=100)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer reads; write no record")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(**json.loads(arguments.case))))
        return
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.support.s3 import s3_environment, s3_server

    num_reads = 100 if arguments.quick else 600
    found: dict[str, list[dict[str, float]]] = {client: [] for client in CLIENTS}
    with s3_server() as server, s3_environment(server.endpoint):
        data = random.Random(0).randbytes(RANGE_BYTES * RANGES_PER_OBJECT)
        server.put({key(number): data for number in range(NUM_OBJECTS)})
        for _ in range(1 if arguments.quick else REPETITIONS):
            for client, runs in found.items():  # in turns, so that a disturbance of the machine affects all of them
                runs.append(run_case({"client": client, "num_reads": num_reads}))
    for client, runs in found.items():
        case = {"client": client, "num_reads": num_reads, "range_bytes": RANGE_BYTES, "in_flight": NUM_IN_FLIGHT}
        is_library = client != "plain"
        figures: dict[str, Any] = {"version": version(client) if is_library else None, "repetitions": len(runs)}
        for name in runs[0]:
            values = [run[name] for run in runs]
            figures[name] = float(f"{statistics.median(values):.4g}")
            figures[f"{name}_spread"] = float(f"{max(values) - min(values):.4g}")
        print(json.dumps({**case, **figures}), flush=True)
        if not arguments.quick:
            write_record("remote", case, figures)


if __name__ == "__main__":
    main()
