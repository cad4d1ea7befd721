"""What does an index of N samples cost to build, to open and to read, and how much disk and memory does it take?

    python benchmarks/bench_index.py [--num-samples 100000000] [--folder /tmp]

Each case runs in a fresh process on one core. Records: benchmarks/records/index.jsonl.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from records import write_record

from mpload.tools.bench.sample_lists import write_list

PREAMBLE = """
import json, os, resource, sys, time
if hasattr(os, "sched_setaffinity"): os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
from pathlib import Path
import numpy as np
from mpload.index.opening import open_index
from mpload.index.scan import Scan
from mpload.index.text import read_header
from mpload.memory.usage import process_memory
path = Path(sys.argv[1])
clock = time.perf_counter
def timed(function):
    start = clock(); result = function(); return clock() - start, result
"""

# In every case the text is in the page cache: it was just written, or the case before has read it.
CASES = {
    "newlines": """
block = np.empty(1 << 20, np.uint8)
def count():
    with path.open("rb", buffering=0) as file:
        return sum(np.flatnonzero(block[:n] == 10).size for n in iter(lambda: file.readinto(block), 0))
def read():
    with path.open("rb", buffering=0) as file:
        return sum(iter(lambda: file.readinto(block), 0))
read()
read_seconds, size = timed(read)
seconds, lines = timed(count)
figures = {"newlines_gb_per_second": size / seconds / 1e9, "read_alone_gb_per_second": size / read_seconds / 1e9}
print(json.dumps(figures))
""",
    "scan": """
def scan():
    scan = Scan(path=path, header=read_header(path))
    return sum(len(block.offsets) for block in scan)
seconds, count = timed(scan)
print(json.dumps({"scan_lines_per_second": count / seconds}))
""",
    "build": """
seconds, index = timed(lambda: open_index(path))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"build_lines_per_second": len(index) / seconds, "build_peak_rss_mb": peak / 1e6}))
""",
    "open": """
seconds, index = timed(lambda: open_index(path))
first_seconds, record = timed(lambda: index[len(index) // 2])
print(json.dumps({"open_ms": seconds * 1e3, "first_record_ms": (seconds + first_seconds) * 1e3}))
""",
    "read": """
index = open_index(path)
rng = np.random.default_rng(0)
blocks = [np.arange(s, min(s + 4096, len(index))) for s in range(0, min(len(index), 1 << 20), 4096)]
batches = [rng.integers(0, len(index), 256) for _ in range(1000)]
index.records(batches[0])
in_order, _ = timed(lambda: [index.records(ids) and None for ids in blocks])
shuffled, _ = timed(lambda: [index.records(ids) and None for ids in batches])
count = sum(map(len, blocks))
print(json.dumps({"record_in_order_us": in_order / count * 1e6, "record_shuffled_us": shuffled / 256_000 * 1e6}))
""",
    "iterate": """
index = open_index(path)
index.records(np.arange(min(4096, len(index))))
peak = 0
for number, start in enumerate(range(0, len(index), 4096)):
    index.records(np.arange(start, min(start + 4096, len(index))))
    if number % 1000 == 0 or start + 4096 >= len(index):
        peak = max(peak, process_memory().uss_bytes)
print(json.dumps({"iterate_uss_mb": peak / 1e6}))
""",
}


def run(case: str, path: Path) -> dict[str, float]:
    # Pages of libraries count as private unless another process maps them, so a second process maps them all the time.
    companion = [sys.executable, "-c", PREAMBLE + "print(flush=True); sys.stdin.read()", str(path)]
    with subprocess.Popen(companion, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        done = subprocess.run(
            [sys.executable, "-c", PREAMBLE + CASES[case], str(path)], check=True, capture_output=True, text=True
        )
        other.communicate()
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-samples", type=int, default=100_000_000)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--quick", action="store_true", help="100,000 samples, to check that it runs; write no record")
    arguments = parser.parse_args()
    num_samples = 100_000 if arguments.quick else arguments.num_samples
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        small, large = Path(name, "small.txt"), Path(name, "large.txt")
        write_list(small, 10_000)
        write_list(large, num_samples)
        figures: dict[str, float] = {}
        for case in CASES:
            figures |= run(case, large)
        run("build", small)
        figures["iterate_10k_uss_mb"] = run("iterate", small)["iterate_uss_mb"]
        figures["text_bytes_per_sample"] = large.stat().st_size / num_samples
        figures["sidecar_bytes_per_sample"] = large.with_name("large.txt.mpx").stat().st_size / num_samples
    for name, value in figures.items():
        print(f"{name:28} {value:,.3f}")
    if not arguments.quick:
        write_record("index", {"num_samples": num_samples}, figures)


if __name__ == "__main__":
    main()
