"""What does a training machine pay for samples that servers make?

    python benchmarks/bench_servers.py
    python benchmarks/bench_servers.py --quick

A loader with one worker gets images of 224 x 224 (150,528 bytes) in batches of 256: decoded by its own worker from
photographs of about 500 x 375 in the page cache; decoded by a server (`mpload serve`, one worker, on this machine, over
the loopback interface); and from a server that reads one byte and fills the image with it, so that mostly the way
of the bytes is measured, without and with TLS. "CPU" is the processor time of all processes of the loader. The server
takes cores of the same machine, so the rates are lower bounds. What it takes to send an image is the processor time of
its main process, without that of its worker.

The contestants take turns in random order, each in its own process. Their first epoch is not timed.
Records: benchmarks/records/servers.jsonl.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
from turns import medians, run_epochs, started, take_turns, told

BATCH_SIZE = 256
MODULE = """
import numpy as np
from pathlib import Path
from mpload import MPDataset, RandomResizedCrop, Topology

FOLDER = Path(__file__).parent


class Constant:
    output_shape = (224, 224, 3)

    def __repr__(self):
        return "Constant"

    def __call__(self, data, rng=None, out=None):
        out = np.empty(self.output_shape, np.uint8) if out is None else out
        out[...] = data[0]
        return out


def _dataset(index, decode):
    return MPDataset(FOLDER / index, decode=decode, batch_size=256, shuffle=True, topology=Topology())


photos = _dataset("photos.txt", RandomResizedCrop(224))
constant = _dataset("spans.txt", Constant())
"""

CONTESTANTS = {
    "decoded here": ("photos", False, False),
    "decoded by a server": ("photos", True, False),
    "constant, by a server": ("constant", True, False),
    "constant, by a server, TLS": ("constant", True, True),
}
"""By name: the dataset, whether a server makes it, and whether connections are encrypted."""


def contest(folder: Path, dataset: str, url: str) -> None:
    """Run the first epoch, then an epoch for each turn."""
    sys.path.insert(0, str(folder))
    import served_data  # type: ignore[import-not-found]

    import mpload

    certificate = str(folder / "certificate.pem") if url.startswith("https") else None
    servers = mpload.Servers(urls=[url], fallback="raise", ca_file=certificate) if url else None
    loader = mpload.MPLoader(getattr(served_data, dataset), servers=servers, num_workers=1)
    print(json.dumps({"num_samples": sum(len(labels) for _, labels in loader)}), flush=True)
    run_epochs(loader, lambda batch: len(batch[1]))


def write_data(folder: Path, num_samples: int) -> None:
    """Write photographs, each listed several times, their index, the module of the datasets, and a certificate."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.support.fault_runs import certificate_in
    from tests.support.photos import make_photo_tree

    make_photo_tree(folder / "photos", num_images=min(512, num_samples), num_classes=4, seed=0)
    paths = sorted(path.relative_to(folder) for path in (folder / "photos").rglob("*.JPEG"))
    lines = [f"{paths[number % len(paths)]}\t{number}\n" for number in range(num_samples)]
    (folder / "photos.txt").write_text("#mpload 1\n#columns image:path label:int\n" + "".join(lines), encoding="utf-8")
    (folder / "bytes").write_bytes(bytes(number % 251 for number in range(num_samples)))
    spans = "".join(f"{number}+1@bytes\t{number}\n" for number in range(num_samples))
    (folder / "spans.txt").write_text(f"#mpload 1\n#columns image:span label:int\n{spans}", encoding="utf-8")
    (folder / "served_data.py").write_text(MODULE, encoding="utf-8")
    certificate_in(folder)


@contextmanager
def server(folder: Path, dataset: str, *, is_encrypted: bool) -> Iterator[tuple[str, psutil.Process]]:
    """Start a server of a dataset, and yield its URL and its main process."""
    command = [sys.executable, "-m", "mpload", "serve", f"served_data:{dataset}", "--port=0", "--workers=1"]
    if is_encrypted:
        command += ["--cert=certificate.pem", "--key=key.pem"]
    command += ["--host=127.0.0.1", "--no-token"]
    root = str(Path(__file__).parents[1])
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=folder, env=os.environ | {"PYTHONPATH": root}
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1], psutil.Process(process.pid)
        process.terminate()


def _own_seconds(process: psutil.Process) -> float:
    """Return the CPU time of a process alone."""
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few samples, one round; write no record")
    parser.add_argument("--num-samples", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        contest(Path(arguments.case[0]), *arguments.case[1:])
        return
    if arguments.quick:
        arguments.num_samples, arguments.rounds = 512, 1
    from records import write_record

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_data(folder, arguments.num_samples)
        running, sending = {}, {}
        for name, (dataset, is_served, is_encrypted) in CONTESTANTS.items():
            url = ""
            if is_served:
                url, sending[name] = stack.enter_context(server(folder, dataset, is_encrypted=is_encrypted))
            running[name] = stack.enter_context(started(__file__, "--case", str(folder), dataset, url))
            first = told(running[name])
            if first != {"num_samples": arguments.num_samples}:
                raise SystemExit(f"{name}: the first epoch did not hold every sample once: {first}")
        before = {name: _own_seconds(process) for name, process in sending.items()}
        turns = take_turns(running, arguments.rounds)
        num_sent = arguments.rounds * arguments.num_samples
        sent_us = {name: 1e6 * (_own_seconds(process) - before[name]) / num_sent for name, process in sending.items()}
        for process in running.values():
            process.communicate()
    for name, found in turns.items():
        typical = medians(found)
        print(f"{name:28} {typical.samples_per_second:7,.0f} images/s {typical.cpu_us:7.1f} us CPU an image", end="")
        print(f", {sent_us[name]:.1f} of the server to send it" if name in sent_us else "")
        if not arguments.quick:
            case = {
                "contestant": name,
                "num_samples": arguments.num_samples,
                "batch_size": BATCH_SIZE,
                "num_workers": 1,
            }
            figures = {
                "samples_per_second": [round(each.samples_per_second) for each in found],
                "cpu_us_per_sample": [round(each.cpu_us, 1) for each in found],
            }
            if name in sent_us:
                figures["server_cpu_us_per_sample"] = [round(sent_us[name], 1)]
            write_record("servers", case, figures)


if __name__ == "__main__":
    main()
