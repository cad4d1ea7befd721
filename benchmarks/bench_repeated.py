"""How fast is each loader when it reads the same photographs in every epoch?

    python benchmarks/bench_repeated.py --environments DIR [--data DIR] [--only ours ffcvs] [--rounds 5]
    python benchmarks/bench_repeated.py --quick

The loaders use a cache that the first epoch fills, or files that are written once in advance. The photographs and the
transform are those of bench_peers.py, with uint8 batches of 64. `mpload pack --resize-short 256` writes JPEGs of
quality 90. The other loaders get the same JPEGs in their own kind of file; only FFCV encodes them once more. mpload's
cache also keeps JPEGs with a short side of 256. All loaders decode with libjpeg-turbo. The contestants take turns, one
epoch each. Each runs in its own process, with the number of workers (1 to 3) that was fastest for it in a trial.

`prepare_seconds` is the time of the work before the first epoch: resizing (for all contestants, the time of `mpload
pack` with two processes) and writing the loader's own files. The first epoch starts workers, compiles code (FFCV) and
fills the cache. `disk_bytes` is the disk space taken in addition to the photographs; a loader that reads only these has
none. Records: benchmarks/records/repeated.jsonl.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contestants import BATCH_SIZE, OWN, CannotRunError, Entry, Running, prepare, running, trial
from records import write_record

SHORT_SIDE = 256
QUALITY = 90
PACK = "pack"
SMALL = "small"
PHOTOS = "the original photographs"
"""PACK and SMALL are folders next to the photographs: mpload's shards, and the same JPEGs as files for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A loader, and a way in which it serves repeated epochs."""

    entry: Entry
    reads: str
    files: str = ""
    """Its files on disk, relative to the data folder."""


def _own(name: str, reads: str, files: str = "") -> Offer:
    entry = Entry(name=name, module="ours", distribution="mpload", environment=OWN)
    return Offer(entry=entry, reads=reads, files=files)


OFFERS = (
    _own("mpload", PHOTOS),
    _own("mpload, cache of resized photographs", "a cache that the first epoch fills", "cache"),
    _own("mpload, packed", "tar shards of resized photographs", PACK),
    Offer(
        entry=Entry(name="DataLoader, simplejpeg", module="stock", distribution="torch", environment=OWN), reads=PHOTOS
    ),
    Offer(
        entry=Entry(name="FFCV", module="ffcvs", distribution="ffcv", environment="ffcv"),
        reads="its own file of resized photographs, encoded twice",
        files=f"{SMALL}/train.beton",
    ),
    Offer(
        entry=Entry(name="WebDataset, simplejpeg", module="wds", distribution="webdataset", environment="wds"),
        reads="tar shards of resized photographs",
        files=f"{SMALL}/wds",
    ),
    Offer(
        entry=Entry(
            name="mosaicml-streaming, simplejpeg",
            module="mosaic",
            distribution="mosaicml-streaming",
            environment="mosaic",
        ),
        reads="its own shards of resized photographs",
        files=f"{SMALL}/mds",
    ),
    Offer(
        entry=Entry(name="litData, simplejpeg", module="lit", distribution="litdata", environment="lit"),
        reads="its own chunks of resized photographs",
        files=f"{SMALL}/lit",
    ),
)


def disk_bytes(path: Path) -> int:
    """Return the bytes that a file, or all files below a folder, take on disk."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(512 * file.stat().st_blocks for file in files if file.is_file())


def pack(data: Path) -> float:
    """Run `mpload pack` over the photographs and return its seconds; also write the same JPEGs as single files."""
    options = ["--resize-short", str(SHORT_SIDE), "--quality", str(QUALITY), "--workers", "2", "--size", "16MiB"]
    command = [sys.executable, "-m", "mpload", "pack", str(data / "train.txt"), "-o", str(data / PACK), *options]
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - start
    for shard in sorted((data / PACK).glob("*.tar")):
        with tarfile.open(shard) as members:
            photos: dict[str, bytes] = {}
            for member in members:
                name, _, ending = member.name.rpartition(".")
                found = members.extractfile(member)
                assert found is not None
                if ending == "cls":
                    path = data / SMALL / "photos" / f"n{int(found.read()):08d}" / f"{name}.JPEG"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(photos.pop(name))
                else:
                    photos[name] = found.read()
    return seconds


def prepare_all(
    offers: list[Offer], folder: Path | None, data: Path, num_images: int
) -> tuple[dict[Offer, tuple[Path, float]], dict[Offer, str]]:
    """Write the files that the offers need.

    Returns:
        The interpreter and the preparation seconds of each offer that can run, and the reason for each that cannot.
    """
    able: dict[Offer, tuple[Path, float]] = {}
    unable: dict[Offer, str] = {}
    prepare([offers[0].entry], folder, data, num_images)
    pack_seconds = pack(data)
    for offer in offers:
        is_small = offer.files.startswith(SMALL)
        start = time.perf_counter()
        ready, failed = prepare([offer.entry], folder, data / SMALL if is_small else data, num_images)
        seconds = time.perf_counter() - start + pack_seconds if is_small else pack_seconds if offer.files == PACK else 0
        if offer.entry in ready:
            able[offer] = ready[offer.entry], seconds
        else:
            unable[offer] = failed[offer.entry]
    return able, unable


def race(
    able: dict[Offer, tuple[Path, float]], data: Path, *, rounds: int, is_quick: bool
) -> tuple[dict[Offer, Running], dict[Offer, str]]:
    """Let the contestants take turns; return them with their times, and the reason for each that failed."""
    contestants: dict[Offer, Running] = {}
    unable: dict[Offer, str] = {}
    best = 2
    with ExitStack() as stack:
        for offer, (python, _) in able.items():
            place = data / SMALL if offer.files.startswith(SMALL) else data
            try:
                if not is_quick and offer.files != "cache":  # a trial would fill the cache: reuse the previous number
                    best = trial(offer.entry, python, place, "uint8", (1, 2, 3)).num_workers
                contestant = stack.enter_context(running(offer.entry, python, place, "uint8", best))
                contestant.first = contestant.run(0)
                contestants[offer] = contestant
            except CannotRunError as error:
                unable[offer] = str(error)
        for number in range(rounds):
            for offer, contestant in list(contestants.items()):
                try:
                    found = contestant.run(number + 1)
                except CannotRunError as error:
                    unable[offer] = str(error)
                    del contestants[offer]
                else:
                    contestant.seconds.append(found["seconds"] / found["num_samples"])
    return contestants, unable


def rows(
    contestants: dict[Offer, Running], prepare_seconds: dict[Offer, float], data: Path, num_images: int
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the case and the figures of a record for each contestant, the fastest first."""
    plain = next((each.seconds for offer, each in contestants.items() if offer.entry.name == "mpload"), None)
    for offer, each in sorted(contestants.items(), key=lambda item: statistics.median(item[1].seconds)):
        rates = [1 / seconds for seconds in each.seconds]
        ratios = [mine / its for mine, its in zip(plain or [], each.seconds, strict=False)]
        yield (
            {
                "contestant": offer.entry.name,
                "version": each.first["version"],
                "reads": offer.reads,
                "batch_size": BATCH_SIZE,
                "num_images": num_images,
                "num_workers": each.num_workers,
            },
            {
                "prepare_seconds": round(prepare_seconds[offer], 1),
                "first_epoch_images_per_second": round(each.first["num_samples"] / each.first["seconds"], 1),
                "images_per_second": round(statistics.median(rates), 1),
                "images_per_second_min": round(min(rates), 1),
                "images_per_second_max": round(max(rates), 1),
                "ratio_to_plain": round(statistics.median(ratios), 3) if ratios else None,
                "disk_bytes": disk_bytes(data / offer.files) if offer.files else 0,
            },
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few images, only mpload; write no record")
    parser.add_argument("--environments", type=Path, help="folder of the contestants' virtual environments")
    parser.add_argument("--data", type=Path, help="folder that keeps all files; default: a temporary one")
    parser.add_argument(
        "--only", nargs="+", metavar="MODULE", help="run only mpload and the contestants of these modules"
    )
    parser.add_argument("--num-images", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.num_images, arguments.rounds, arguments.only = 128, 1, ["ours"]
    elif arguments.environments is None:
        parser.error("pass --environments DIR or --quick")
    modules = {"ours", *arguments.only} if arguments.only else {offer.entry.module for offer in OFFERS}
    offers = [offer for offer in OFFERS if offer.entry.module in modules]
    folder = None if arguments.quick else arguments.environments.absolute()
    with ExitStack() as stack:
        kept = arguments.data or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kept.mkdir(parents=True, exist_ok=True)
        data = kept.absolute()
        if (data / PACK).exists():
            parser.error(f"{data} holds the pack and the cache of an earlier run. Pass an empty folder")
        able, unable = prepare_all(offers, folder, data, arguments.num_images)
        found, failed = race(able, data, rounds=arguments.rounds, is_quick=arguments.quick)
        seconds = {offer: taken for offer, (_, taken) in able.items()}
        reports = list(rows(found, seconds, data, arguments.num_images))
        for offer, reason in {**unable, **failed}.items():
            reports.append(({"contestant": offer.entry.name, "num_images": arguments.num_images}, {"failed": reason}))
        for case, figures in reports:
            print(json.dumps({**case, **figures}), flush=True)
            if not arguments.quick:
                write_record("repeated", case, figures)


if __name__ == "__main__":
    main()
