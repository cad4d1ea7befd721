"""What does the latency of a server cost mpload: speed, processor time and memory?

    python benchmarks/bench_waiting.py [--data DIR] [--before DIR] [--http] [--quick]

The server of bench_network.py answers at once, or after 50 ms, or at once but for stragglers: 1 % of the answers take
200 ms. It runs on the same cores, and its own processor time is measured too. Photographs are read, one object each,
from an S3 bucket (with `--http`, from a web server) and made into crops, as in bench_network.py.

In each round, every case has its turn in random order, in a fresh process. A turn has two parts of `--seconds`: the
first begins with the first request for a batch, so it includes the start of the workers; the second begins later, when
the depth of read-ahead has settled. The ratio of a case is its rate divided by that without latency in the same round,
with the same number of workers. `--before` is the folder of another version of this repository, with its native modules
built, which takes turns with this one. Records: benchmarks/records/waiting.jsonl.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
from bench_network import ENTRIES, make_photos
from contestants import BATCH_SIZE, Entry, prepare, running
from object_server import Counts, Delays, ObjectServer, compile_server, serving
from records import code_digest, write_record
from turns import cpu_seconds

from mpload.memory.monitor import MemoryMonitor

AT_ONCE = Delays()
DELAYS = {"none": AT_ONCE, "50 ms": Delays(delay_ms=50), "stragglers": Delays(slow_fraction=0.01, slow_ms=200)}
HERE = Path(__file__).parents[1]
OURS = ENTRIES[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way to run mpload."""

    delays: Delays
    num_workers: int
    tree: Path
    """The folder of the version that runs."""


@dataclass(slots=True, kw_only=True)
class Results:
    """What a case's turns led to, each in a list."""

    first_rates: list[float] = field(default_factory=list)
    """Images per second from the first request for a batch on."""
    rates: list[float] = field(default_factory=list)
    """Images per second when the depth has settled."""
    cpu_us: list[float] = field(default_factory=list)
    """Processor time of the loader per image, in the second part."""
    server_cpu_us: list[float] = field(default_factory=list)
    """Processor time of the server per request, in the second part."""
    peak_pss_bytes: list[int] = field(default_factory=list)
    num_threads: list[int] = field(default_factory=list)
    """Threads of the loader's processes at the end."""
    requests: list[float] = field(default_factory=list)
    """Requests per image in the second part: late reads are made a second time."""
    most_waiting: list[int] = field(default_factory=list)
    """The largest number of requests that waited for their answers at the same time, in the second part."""


def turn(case: Case, results: Results, entry: Entry, server: ObjectServer, data: Path, seconds: float) -> None:
    variables = server.s3_environment() | {"OBJECTS_URL": server.url, "PYTHONPATH": str(case.tree)}
    num_discarded = 4 + 4 * case.num_workers
    with running(
        entry, Path(sys.executable), data, "uint8", case.num_workers, program="peers.windows", variables=variables
    ) as contestant:
        pid = contestant.process.pid
        with MemoryMonitor(pid, interval_seconds=0.1) as monitor:
            first = contestant.ask(f"0 {seconds}")
            contestant.ask(f"{num_discarded} 0.001")
            before, cpu, server_cpu = server.counts(), cpu_seconds(pid), cpu_seconds(server.pid)
            found = contestant.ask(f"0 {seconds}")
            counts: Counts = server.counts().since(before)
            cpu, server_cpu = cpu_seconds(pid) - cpu, cpu_seconds(server.pid) - server_cpu
            own = psutil.Process(pid)
            num_threads = sum(process.num_threads() for process in [own, *own.children(recursive=True)])
        results.first_rates.append(first["num_samples"] / first["seconds"])
        results.rates.append(found["num_samples"] / found["seconds"])
        results.cpu_us.append(1e6 * cpu / found["num_samples"])
        results.server_cpu_us.append(1e6 * server_cpu / counts.requests)
        results.peak_pss_bytes.append(monitor.peak.pss_bytes)
        results.num_threads.append(num_threads)
        results.requests.append(counts.requests / found["num_samples"])
        results.most_waiting.append(counts.most_waiting)


def figures_of(results: Results, undelayed: Results) -> dict[str, Any]:
    """Return the medians of a case, and the medians of its ratios to the case without latency."""

    def ratio(values: list[float], others: list[float]) -> float:
        return round(statistics.median(a / b for a, b in zip(values, others, strict=True)), 3)

    return {
        "images_per_second": [round(rate, 1) for rate in results.rates],
        "ratio_to_undelayed": ratio(results.rates, undelayed.rates),
        "images_per_second_from_the_start": [round(rate, 1) for rate in results.first_rates],
        "ratio_to_undelayed_from_the_start": ratio(results.first_rates, undelayed.first_rates),
        "cpu_us_per_image": round(statistics.median(results.cpu_us)),
        "server_cpu_us_per_request": round(statistics.median(results.server_cpu_us), 1),
        "peak_pss_bytes": round(statistics.median(results.peak_pss_bytes)),
        "num_threads": round(statistics.median(results.num_threads)),
        "requests_per_image": round(statistics.median(results.requests), 4),
        "most_requests_waiting": round(statistics.median(results.most_waiting)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few images; write no record")
    parser.add_argument("--data", type=Path, help="folder that keeps the photographs; default: a temporary one")
    parser.add_argument("--before", type=Path, help="folder of another version, which takes turns with this one")
    parser.add_argument("--http", action="store_true", help="read from a web server, not from a bucket")
    parser.add_argument("--delays", nargs="+", choices=[*DELAYS][1:], default=[*DELAYS][1:])
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--num-images", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each part of a turn")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.num_images, arguments.rounds, arguments.seconds, arguments.workers = 300, 1, 0.2, [2]
    entry = replace(OURS, name="mpload, http") if arguments.http else OURS
    trees = [HERE] if arguments.before is None else [HERE, arguments.before.absolute()]
    cases = [
        Case(delays=DELAYS[name], num_workers=num_workers, tree=tree)
        for num_workers in arguments.workers
        for tree in trees
        for name in ["none", *arguments.delays]
    ]
    with ExitStack() as stack:
        data = (arguments.data or Path(stack.enter_context(tempfile.TemporaryDirectory()))).absolute()
        if not (data / "photos").exists():
            make_photos(data, arguments.num_images)
        prepare([OURS], None, data, arguments.num_images)
        program = compile_server(data)
        servers = {
            delays: stack.enter_context(serving(data, delays, program=program))
            for delays in {case.delays: None for case in cases}
        }
        found = {case: Results() for case in cases}
        for number in range(arguments.rounds):
            for case in random.Random(number).sample(cases, len(cases)):
                turn(case, found[case], entry, servers[case.delays], data, arguments.seconds)
    digests = {tree: code_digest() if tree == HERE else "before" for tree in trees}
    for case, results in found.items():
        undelayed = found[replace(case, delays=AT_ONCE)]
        described = {
            "delay_ms": case.delays.delay_ms,
            "slow_fraction": case.delays.slow_fraction,
            "slow_ms": case.delays.slow_ms,
            "num_workers": case.num_workers,
            "batch_size": BATCH_SIZE,
            **({"scheme": "http"} if arguments.http else {}),
            "version": "this" if case.tree == HERE else "before",
            "code": digests[case.tree],
        }
        figures = figures_of(results, undelayed)
        print(json.dumps(described | figures), flush=True)
        if not arguments.quick:
            write_record("waiting", described, figures)


if __name__ == "__main__":
    main()
