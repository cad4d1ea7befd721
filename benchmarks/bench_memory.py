"""How much memory does a file list take: as a Python list in a stock DataLoader, and as an MPDataset?

    python benchmarks/bench_memory.py [--num-samples 10000000] [--num-workers 4]

One epoch of records without decoding: each sample is its path and label, nothing is opened. Each case runs in a fresh
process while this one samples the memory of its whole process tree. Records: benchmarks/records/memory.jsonl, plot:
benchmarks/records/memory.png.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench_index import generate
from records import RECORDS, write_record

from mpload.memory import sum_memory, tree_memory

CASES = {
    "list": """
class Listed(Dataset):
    def __init__(self):
        with open(path) as file:
            lines = file.readlines()[2:]
        self.samples = [(path, int(label)) for path, label in (line.rstrip("\\n").split("\\t") for line in lines)]
    def __len__(self):
        return len(self.samples)
    def __getitem__(self, number):
        return self.samples[number]
loader = DataLoader(Listed(), batch_size=256, shuffle=True, num_workers=num_workers, collate_fn=list)
""",
    "mpload": """
import mpload
class Records(mpload.MPDataset):
    \"\"\"Batches of records as they stand in the index: nothing is read or decoded.\"\"\"
    def __iter__(self):
        info = get_worker_info()
        self.progress.begin(worker=info.id, num_workers=info.num_workers)
        plan, order = self.plan(), self.shuffle.order(num_samples=len(self.index), seed=0, epoch=0)
        for batch in range(info.id, plan.num_batches, info.num_workers):
            records = self.index.records(order.sample_ids(plan.positions(batch)))
            yield [record.cells for record in records]
dataset = Records(path, batch_size=256, shuffle=True, topology=mpload.Topology())
loader = DataLoader(dataset, batch_size=None, num_workers=num_workers)
""",
}

PROGRAM = """
import sys, time
from torch.utils.data import DataLoader, Dataset, get_worker_info
path, num_workers = sys.argv[1], int(sys.argv[2])
{case}
start = time.perf_counter()
count = 0
for batch in loader:
    count += len(batch)
    if count == len(batch):
        first = time.perf_counter()
print(count, time.perf_counter() - start)
"""


def measure(case: str, path: Path, num_workers: int) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Run one case; return its memory over time, and its figures."""
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM.format(case=CASES[case]), str(path), str(num_workers)],
        stdout=subprocess.PIPE,
        text=True,
    )
    curve = []
    while process.poll() is None:
        total = sum_memory(tree_memory(process.pid))
        point = {"seconds": time.monotonic() - start, "pss_mb": total.pss_bytes / 1e6, "uss_mb": total.uss_bytes / 1e6}
        curve.append(point)
        time.sleep(0.5)
    output = process.communicate()[0].split()
    if process.returncode:
        raise SystemExit(f"case {case} failed with exit code {process.returncode}")
    figures = {
        "num_samples_seen": float(output[0]),
        "epoch_seconds": float(output[1]),
        "total_seconds": time.monotonic() - start,
        "peak_pss_mb": max(point["pss_mb"] for point in curve),
        "peak_uss_mb": max(point["uss_mb"] for point in curve),
        "last_pss_mb": curve[-2]["pss_mb"],
    }
    return curve, figures


def draw(curves: dict[str, list[dict[str, float]]], title: str, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    labels = {"list": "list of (path, label), stock DataLoader", "mpload": "MPDataset, stock DataLoader"}
    for (case, curve), colour in zip(curves.items(), ("tab:red", "tab:blue"), strict=True):
        for kind, style in (("pss_mb", "-"), ("uss_mb", ":")):
            seconds, values = [p["seconds"] for p in curve], [p[kind] / 1000 for p in curve]
            axes.plot(seconds, values, style, color=colour, label=f"{labels[case]}, {kind[:3].upper()}")
    axes.set(title=title, xlabel="seconds since start", ylabel="GB, whole process tree", ylim=(0, None))
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-samples", type=int, default=10_000_000)
    parser.add_argument("--num-workers", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="ten thousand samples, to see that it runs")
    arguments = parser.parse_args()
    num_samples = 10_000 if arguments.quick else arguments.num_samples
    curves: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "train.txt")
        generate(path, num_samples)
        for case in CASES:
            curves[case], figures = measure(case, path, arguments.num_workers)
            print(case, json.dumps({key: round(value, 1) for key, value in figures.items()}))
            case_facts = {"case": case, "num_samples": num_samples, "num_workers": arguments.num_workers}
            if not arguments.quick:
                write_record("memory", case_facts, figures)
    title = f"{num_samples:,} samples, {arguments.num_workers} workers, one epoch of records"
    if not arguments.quick:
        draw(curves, title, RECORDS / "memory.png")


if __name__ == "__main__":
    main()
