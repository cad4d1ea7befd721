"""What do the caches of several machines save, and what does it cost to read a sample from another machine?

    python benchmarks/bench_cache_machines.py [--quick]

A loader with two workers gets random crops of 2,000 photographs (105 KB) from a web server that delivers 50 MB/s
(object_server.c), through a cache that holds a quarter of them: alone, or shared by two or four machines. The other
machines are servers (`mpload serve`) on the loopback interface, each with a folder of its own, so they take cores of
the same machine and the rates are lower bounds.

The contestants take turns in random order, each in its own process. Their first epoch fills the caches, and is not
timed. Requests to the source are counted for each image. "CPU" is the processor time of the loader and its workers for
each image, and that of the other machines' servers for each image that they sent.
Records: benchmarks/records/cache_machines.jsonl.
"""

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
from object_server import Delays, ObjectServer, serving
from turns import Process, Turn, medians, run_epochs, started, told, turn

sys.path.append(str(Path(__file__).parents[1]))
from mpload import MPDataset, MPLoader, PartialCache, RandomResizedCrop, Topology
from tests.support.photos import make_photo_tree

BATCH_SIZE, NUM_WORKERS, SHARE = 64, 2, 0.25
SOURCE_BYTES_PER_SECOND = 50_000_000
CONTESTANTS = {"no cache": 0, "a cache": 1, "shared by 2 machines": 2, "shared by 4 machines": 4}
"""By name: the number of machines whose caches are used."""
MODULE = f"""
import sys

sys.path.insert(0, {str(Path(__file__).parent)!r})
from bench_cache_machines import dataset_of

dataset = dataset_of()
"""


def dataset_of(place: int | None = None) -> MPDataset[Any]:
    """Return the dataset of a machine; the environment says which one, and what the others are."""
    folder, urls = Path(os.environ["BENCH_FOLDER"]), os.environ["BENCH_URLS"].split()
    place = int(os.environ["BENCH_PLACE"]) if place is None else place
    cache = None
    if os.environ["BENCH_CACHES"] != "0":
        shared: dict[str, Any] = {"machines": urls, "machine": place} if len(urls) > 1 else {}
        name = f"cache-{len(urls)}-{place}"
        cache = PartialCache(folder / name, fraction=SHARE, max_bytes="4GiB", check_source=False, **shared)
    return MPDataset(
        folder / "train.txt",
        decode=RandomResizedCrop(224),
        batch_size=BATCH_SIZE,
        shuffle=True,
        topology=Topology(),
        cache=cache,
    )


def contest() -> None:
    """Run the first epoch, then an epoch for each turn."""
    loader = MPLoader(dataset_of(0), num_workers=NUM_WORKERS)
    print(json.dumps({"num_samples": sum(len(labels) for _, labels in loader)}), flush=True)
    run_epochs(loader, lambda batch: len(batch[1]))


def free_urls(count: int) -> list[str]:
    """Return URLs of ports that nothing listens on."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [f"http://127.0.0.1:{each.getsockname()[1]}" for each in held]


@contextmanager
def machine(folder: Path, urls: Sequence[str], place: int) -> Iterator[psutil.Process]:
    """Start the server of a machine, and yield its main process."""
    command = [
        sys.executable,
        "-m",
        "mpload",
        "serve",
        "machine_data:dataset",
        f"--port={urls[place].rpartition(':')[2]}",
    ]
    command += ["--host=127.0.0.1", "--no-token", "--workers=1", "--memory=512MiB"]
    environment = os.environ | {"BENCH_PLACE": str(place), "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=folder, env=environment) as process:
        while True:
            try:
                urllib.request.urlopen(f"{urls[place]}/healthz", timeout=5).close()
                break
            except OSError:
                if process.poll() is not None:
                    raise SystemExit("the server of a machine did not start; see above") from None
                time.sleep(0.1)
        yield psutil.Process(process.pid)
        process.terminate()


def own_seconds(processes: Sequence[psutil.Process]) -> float:
    """Return the CPU time of processes alone."""
    return float(sum(sum(process.cpu_times()[:2]) for process in processes))


def num_sent(urls: Sequence[str]) -> int:
    """Return the number of samples that the servers of the other machines have sent from their caches."""
    total = 0
    for url in urls[1:]:
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("mpload_server_cache_hits_total "))
    return total


class Contestant:
    """A loader, the servers of its other machines, and what its turns led to."""

    def __init__(self, stack: ExitStack, folder: Path, num_caches: int) -> None:
        self.urls = free_urls(max(1, num_caches))
        chosen = {"BENCH_FOLDER": str(folder), "BENCH_URLS": " ".join(self.urls), "BENCH_CACHES": str(num_caches)}
        os.environ.update(chosen)
        self.machines = [stack.enter_context(machine(folder, self.urls, place)) for place in range(1, len(self.urls))]
        self.process: Process = stack.enter_context(started(__file__, "--contest"))
        self.first = told(self.process)
        self.turns: list[Turn] = []
        self.requests: list[float] = []
        self.sent_us: list[float] = []

    def turn(self, source: ObjectServer, num_samples: int) -> None:
        """Run an epoch."""
        before, cpu, sent = source.counts(), own_seconds(self.machines), num_sent(self.urls)
        self.turns.append(turn(self.process))
        self.requests.append(source.counts().since(before).requests / num_samples)
        if self.machines:
            count = num_sent(self.urls) - sent
            self.sent_us.append(1e6 * (own_seconds(self.machines) - cpu) / max(1, count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few photographs, one round; write no record")
    parser.add_argument("--num-photos", type=int, default=1984)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--contest", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contest:
        contest()
        return
    if arguments.quick:
        arguments.num_photos, arguments.rounds = 128, 1
    from records import write_record

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        make_photo_tree(folder / "photos", num_images=arguments.num_photos, num_classes=1, seed=0, grain=10)
        source = stack.enter_context(serving(folder, Delays(bytes_per_second=SOURCE_BYTES_PER_SECOND)))
        paths = sorted(path.relative_to(folder) for path in (folder / "photos").rglob("*.JPEG"))
        lines = "".join(f"{path}\t{number}\n" for number, path in enumerate(paths))
        (folder / "train.txt").write_text(f"#mpload 1\n#root {source.url}\n#columns image:path label:int\n{lines}")
        (folder / "machine_data.py").write_text(MODULE, encoding="utf-8")
        found = {}
        for name, num_caches in CONTESTANTS.items():
            found[name] = Contestant(stack, folder, num_caches)
            if found[name].first != {"num_samples": len(paths)}:
                raise SystemExit(f"{name}: the first epoch had {found[name].first}")
        for number in range(arguments.rounds):
            for name in random.Random(number).sample(list(CONTESTANTS), len(CONTESTANTS)):
                found[name].turn(source, len(paths))
        for contestant in found.values():
            contestant.process.communicate()
    for name, contestant in found.items():
        typical = medians(contestant.turns)
        print(
            f"{name:22} {typical.samples_per_second:6,.0f} images/s {typical.cpu_us:6,.0f} us CPU an image, "
            f"{contestant.requests[-1]:.2f} requests to the source, {contestant.sent_us[-1:]} us to send one"
        )
        if not arguments.quick:
            case = {"contestant": name, "num_photos": arguments.num_photos, "num_workers": NUM_WORKERS, "share": SHARE}
            figures = {
                "samples_per_second": [round(each.samples_per_second) for each in contestant.turns],
                "cpu_us_per_sample": [round(each.cpu_us) for each in contestant.turns],
                "source_requests_per_sample": [round(each, 3) for each in contestant.requests],
                "server_cpu_us_per_sample": [round(each) for each in contestant.sent_us],
            }
            write_record("cache_machines", case, figures)


if __name__ == "__main__":
    main()
