"""What does it cost to sample the memory of 64 processes once per second?

    python benchmarks/bench_monitor.py [--num-processes 64] [--seconds 30]

The monitor runs in a fresh process that does nothing else, so the CPU time of that process is the cost of the monitor.
In case `idle` the processes sleep. In `busy` they change their memory all the time. `births` is like `busy`, and in
addition a process starts ten times per second. `fresh_percent` is the percentage of figures that were read anew instead
of kept from the previous reading. Records: benchmarks/records/monitor.jsonl.
"""

import argparse
import json
import subprocess
import sys

from records import write_record

TREE = """
import os, subprocess, sys, time
import numpy
case, num_children = sys.argv[1], int(sys.argv[2])
for _ in range(num_children):
    if os.fork() == 0:
        kept = bytearray()
        while True:
            time.sleep(0.2 if case != "idle" else 1000)
            kept = bytearray(1 << 18) if len(kept) < 1 << 18 else bytearray(1 << 14)
print("ready", flush=True)
while case == "births":
    subprocess.run(["true"])
    time.sleep(0.1)
sys.stdin.read()
"""

WATCH = """
import json, sys, time
from mpload.memory.monitor import MemoryMonitor
pid, seconds = int(sys.argv[1]), float(sys.argv[2])
monitor = MemoryMonitor(pid, interval_seconds=1.0)
monitor.read()
start, used = time.monotonic(), time.process_time()
with monitor:
    time.sleep(seconds)
used = time.process_time() - used
seconds = time.monotonic() - start
readings = monitor.readings[1:]
changes = 0
for one, other in zip(readings, readings[1:]):
    before = set(map(id, one.processes))
    changes += sum(id(process) not in before for process in other.processes)
print(json.dumps({
    "core_percent": 100 * used / seconds,
    "read_ms": 1000 * used / len(readings),
    "num_processes_seen": len(readings[-1].processes),
    "num_readings": len(readings),
    "fresh_percent": 100 * changes / sum(len(reading.processes) for reading in readings[1:]),
}))
"""


def measure(case: str, num_processes: int, seconds: float) -> dict[str, float]:
    tree = [sys.executable, "-c", TREE, case, str(num_processes - 1)]
    with subprocess.Popen(tree, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0) as root:
        assert root.stdout is not None
        root.stdout.readline()
        try:
            watch = [sys.executable, "-c", WATCH, str(root.pid), str(seconds)]
            figures: dict[str, float] = json.loads(subprocess.run(watch, capture_output=True, check=True).stdout)
        finally:
            subprocess.run(["kill", "-9", "--", f"-{root.pid}"], check=False)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-processes", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument(
        "--quick", action="store_true", help="three seconds per case, to check that it runs; write no record"
    )
    arguments = parser.parse_args()
    for case in ("idle", "busy", "births"):
        seconds = 3.0 if arguments.quick else arguments.seconds
        figures = measure(case, arguments.num_processes, seconds)
        print(case, json.dumps({name: round(value, 2) for name, value in figures.items()}))
        if not arguments.quick:
            write_record("monitor", {"case": case, "num_processes": arguments.num_processes}, figures)


if __name__ == "__main__":
    main()
