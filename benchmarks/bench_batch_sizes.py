"""How does the batch size affect each loader: images per second by batch size, relative to the same loader at 128?

    python benchmarks/bench_batch_sizes.py --environments DIR [--data DIR] [--only ours stock] [--rounds 5]
    python benchmarks/bench_batch_sizes.py --quick

The photographs, the transform and the contestants are those of bench_peers.py, with uint8 batches. Each contestant has
the number of workers that was fastest for it in a trial with batches of 64. The contestants run one after the other.
The batch sizes of a contestant take turns, one epoch each. Each batch size has its own process, which waits while the
others run, and each of its epochs follows an epoch in batches of 128. The result is `share_of_128`: the rate relative
to that epoch's. An epoch shows every photograph `--times` times. In a short epoch the largest batches would suffer most
from its end, where the workers of most loaders wait for the last full batch. Records:
benchmarks/records/batch_sizes.jsonl.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from contestants import ENTRIES, CannotRunError, Entry, prepare, running, trial, write_listing
from records import write_record

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
REFERENCE = 128
CONTESTANTS = (
    "mpload",
    "DataLoader, simplejpeg",
    "SPDL, simplejpeg",
    "mlx-data",
    "tf.data",
    "DALI on the CPU",
)


def race_sizes(
    entry: Entry, python: Path, listing: Path, num_workers: int, batch_sizes: tuple[int, ...], rounds: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Let the batch sizes of a contestant take turns; yield each size with its figures."""
    rates: dict[int, list[float]] = {batch_size: [] for batch_size in batch_sizes}
    shares: dict[int, list[float]] = {batch_size: [] for batch_size in batch_sizes}
    with ExitStack() as stack:
        contestants = {}
        for batch_size in batch_sizes:
            contestants[batch_size] = stack.enter_context(
                running(entry, python, listing.parent, "uint8", num_workers, batch_size=batch_size, listing=listing)
            )
            contestants[batch_size].run(0)

        def rate(batch_size: int, epoch: int) -> float:
            found = contestants[batch_size].run(epoch)
            return float(found["num_samples"] / found["seconds"])

        for number in range(rounds):
            for batch_size in batch_sizes:
                reference = rate(REFERENCE, number + 1)
                rates[batch_size].append(rate(batch_size, number + 1))
                shares[batch_size].append(rates[batch_size][-1] / reference)
    for batch_size in batch_sizes:
        yield (
            batch_size,
            {
                "images_per_second": round(statistics.median(rates[batch_size]), 1),
                "images_per_second_min": round(min(rates[batch_size]), 1),
                "images_per_second_max": round(max(rates[batch_size]), 1),
                "share_of_128": round(statistics.median(shares[batch_size]), 3),
                "share_of_128_min": round(min(shares[batch_size]), 3),
                "share_of_128_max": round(max(shares[batch_size]), 3),
            },
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few images and sizes, only mpload; write no record")
    parser.add_argument("--environments", type=Path, help="folder of the contestants' virtual environments")
    parser.add_argument("--data", type=Path, help="folder that keeps the photographs; default: a temporary one")
    parser.add_argument("--only", nargs="+", metavar="MODULE", help="run only the contestants of these modules")
    parser.add_argument("--num-images", type=int, default=1200)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    batch_sizes: tuple[int, ...] = BATCH_SIZES
    if arguments.quick:
        arguments.num_images, arguments.times, arguments.rounds, arguments.only = 128, 2, 1, ["ours"]
        batch_sizes = (8, REFERENCE)
    elif arguments.environments is None:
        parser.error("pass --environments DIR or --quick")
    entries = [
        entry
        for entry in ENTRIES
        if entry.name in CONTESTANTS and (not arguments.only or entry.module in arguments.only)
    ]
    folder = None if arguments.quick else arguments.environments.absolute()
    with ExitStack() as stack:
        data = (arguments.data or Path(stack.enter_context(tempfile.TemporaryDirectory()))).absolute()
        data.mkdir(parents=True, exist_ok=True)
        able, unable = prepare(entries, folder, data, arguments.num_images)
        listing = write_listing(data, arguments.times)
        num_images = arguments.num_images * arguments.times
        for entry, python in able.items():
            case = {"contestant": entry.name, "num_images": num_images}
            try:
                num_workers = 2 if arguments.quick else trial(entry, python, data, "uint8", (1, 2, 3)).num_workers
                found = list(race_sizes(entry, python, listing, num_workers, batch_sizes, arguments.rounds))
            except CannotRunError as error:
                unable[entry] = str(error)
                continue
            for batch_size, figures in found:
                of_size = {**case, "num_workers": num_workers, "batch_size": batch_size}
                print(json.dumps({**of_size, **figures}), flush=True)
                if not arguments.quick:
                    write_record("batch_sizes", of_size, figures)
        for entry, reason in unable.items():
            print(f"{entry.name}: {reason}", flush=True)
            if not arguments.quick:
                write_record("batch_sizes", {"contestant": entry.name, "num_images": num_images}, {"failed": reason})


if __name__ == "__main__":
    main()
