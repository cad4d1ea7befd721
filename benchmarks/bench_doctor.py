"""Does `mpload doctor` name the right cause, and is its first remedy right and worth what it says?

    python benchmarks/bench_doctor.py [--only "PNG photos" "Pillow"] [--quick]

Each situation is a job that is slow for one known reason: real files, file systems with a latency, containers, and busy
neighbours (tests/support/staged.py and staged_more.py). The doctor must name the reason, and its first remedy must be
the right one. Where the remedy can be applied, the gain that it predicts is compared with that of applying it: the
median of alternating trials, before and after. Nothing else may run on the machine.

A record holds `culprit_is_right`, `remedy_is_right`, the predicted and the measured gain (None: not applied), and the
seconds that the doctor took. `--quick` examines two situations and writes no record. Records:
benchmarks/records/doctor.jsonl.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from records import write_record

from mpload.index.index import Index
from mpload.index.opening import open_index
from mpload.judgement.remedies import resize_to
from mpload.tools.pack.options import JpegForm
from mpload.tools.pack.packing import PackOptions, pack_index
from mpload.tools.trials import run_loader
from tests.support import staged, staged_more
from tests.support.staged import STAGED, Staged, diagnose, prepared, write_index
from tests.support.staged_more import MORE

SITUATIONS: dict[str, Staged] = {**STAGED, **MORE}
ROUNDS, TRIAL_SECONDS = 3, 1.5
QUICK = ("PNG photos", "broken photos")
SIDE = 224

Rate = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the doctor said about a situation."""

    bottleneck: str
    first: dict[str, Any] | None
    seconds: float


def examine(situation: Staged, index: Path) -> Found:
    """Run the doctor."""
    start = time.perf_counter()
    found = diagnose(situation, index)
    remedies = found["remedies"]
    return Found(
        bottleneck=found["verdict"]["bottleneck"],
        first=remedies[0] if remedies else None,
        seconds=time.perf_counter() - start,
    )


def rate(index: Index, folder: Path, **job: Any) -> float:
    """Return the samples per second of a loader."""
    options = {"decode": staged.plain_crop, "transform": None, "num_workers": 2, "batch_size": 8} | job
    return run_loader(index, seconds=TRIAL_SECONDS, report=folder / "errors.jsonl", **options).samples_per_second


def packed(index: Index, folder: Path, options: PackOptions) -> Index:
    """Pack the different photos of an index, and index them as often as before."""
    names = sorted({str(record["image"]) for record in index})
    once = write_index(folder / "once.txt", root=Path(index.root), names=names)
    made = pack_index(once, folder / "packed", options)
    lines = made.read_text().splitlines(keepends=True)
    rows = [line for line in lines if not line.startswith("#")]
    made.write_text("".join([line for line in lines if line.startswith("#")] + rows * (len(index) // len(names))))
    return open_index(made)


def applied(name: str, path: Path, folder: Path, first: dict[str, Any]) -> tuple[Rate, Rate] | None:
    """Return what measures the rate before and after the first remedy. None if it cannot be applied here."""
    index, text = open_index(path), first["text"]
    decoders: dict[str, Any] = {
        "too few workers": staged.waiting_decode,
        "tiny batches": staged.tiny_decode,
        "Pillow": staged_more.pil_crop,
        "a service that takes 100 ms": staged_more.slow_service,
    }
    transforms: dict[str, Any] = {
        "slow transform": staged.slow_transform,
        "a transform that waits": staged_more.waiting_transform,
    }
    workers = {"too few workers": 1, "a service that takes 100 ms": 4}.get(name, 2)
    job = {
        "decode": decoders.get(name, staged.plain_crop),
        "transform": transforms.get(name),
        "num_workers": workers,
        "batch_size": 1 if name == "tiny batches" else 8,
    }
    changed: dict[str, Any] = {}
    other = index
    if first["num_workers"] and not SITUATIONS[name].dataset:
        changed = {"num_workers": first["num_workers"]}
    elif first["batch_size"] and name == "tiny batches":
        changed = {"batch_size": first["batch_size"]}
    elif "--resize-short" in text:
        other = packed(index, folder, PackOptions(resize_short=resize_to(SIDE)))
    elif "--jpeg baseline" in text:
        other = packed(index, folder, PackOptions(jpeg=JpegForm.BASELINE))
    elif "mpload's own decoder" in text:
        from mpload import ResizeCenterCrop

        changed = {"decode": ResizeCenterCrop(SIDE)}
    elif "Make the transform cheaper" in text:
        changed = {"transform": None}
    else:
        return None
    return (lambda: rate(index, folder, **job)), (lambda: rate(other, folder, **job | changed))


def measured_gain(rates: tuple[Rate, Rate] | None) -> float | None:
    """Return the gain of a remedy, by trials that alternate."""
    if rates is None:
        return None
    before, after = rates
    pairs = [(before(), after()) for _ in range(ROUNDS)]
    return median(fast for _, fast in pairs) / median(slow for slow, _ in pairs)


def run(name: str, *, is_recorded: bool) -> None:
    """Examine one situation, and print and record the result."""
    situation = SITUATIONS[name]
    with tempfile.TemporaryDirectory() as folder, prepared(situation, Path(folder)) as index:
        found = examine(situation, index)
        first = found.first
        text = "" if first is None else str(first["text"])
        is_expected = situation.first in text and bool(text or not situation.first)
        gain = measured_gain(None if first is None else applied(name, index, Path(folder), first))
    predicted = None if first is None else first["gain"]
    figures = {
        "found": found.bottleneck,
        "culprit_is_right": found.bottleneck == situation.bottleneck,
        "first_remedy": text.replace(f"{folder}/", ""),
        "remedy_is_right": is_expected,
        "predicted_gain": predicted and round(predicted, 2),
        "measured_gain": gain and round(gain, 2),
        "doctor_seconds": round(found.seconds, 1),
    }
    print(f"{name}: {figures}", flush=True)
    if is_recorded:
        write_record("doctor", {"situation": name, "expected": situation.bottleneck}, figures)


def main() -> None:
    """Examine the situations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SITUATIONS, default=list(SITUATIONS), metavar="SITUATION")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    for name in QUICK if options.quick else options.only:
        run(name, is_recorded=not options.quick)


if __name__ == "__main__":
    main()
