"""Does `mpload doctor` name the right cause, and is its first remedy right and worth what it says?

    python benchmarks/bench_doctor.py [--only "PNG photos" "Pillow"] [--quick]

Each situation is a job that is slow for one known reason: real files, file systems with a latency, containers, a swap
file, and busy neighbours (tests/support/staged.py, staged_more.py and staged_memory.py). The doctor must name the
reason, and its first remedy must be the right one. Where the remedy can be applied, the gain that it predicts is
compared with that of applying it: the median of alternating trials, before and after. Nothing else may run on the
machine.

A record holds `culprit_is_right`, `remedy_is_right`, the predicted gain and whether it is a `bound` ("at least": no
more is known), the measured gain (None: not applied), and the seconds that the doctor took. `--quick` examines two
situations and writes no record. Records: benchmarks/records/doctor.jsonl.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pytest
from records import write_record

from mpload import BlockShuffle, ResizeCenterCrop
from mpload.index.index import Index
from mpload.index.opening import open_index
from mpload.judgement.remedies import resize_to
from mpload.tools.pack.options import JpegForm
from mpload.tools.pack.packing import PackOptions, pack_index
from tests.support import staged, staged_memory, staged_more
from tests.support.staged import STAGED, Staged, diagnose, prepared, rate, write_index
from tests.support.staged_memory import MEMORY
from tests.support.staged_more import MORE

SITUATIONS: dict[str, Staged] = {**STAGED, **MORE, **MEMORY}
ROUNDS = 3
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


def packed(index: Index, folder: Path, options: PackOptions) -> Index:
    """Pack the different photos of an index, and index them as often as before."""
    names = sorted({str(record["image"]) for record in index})
    once = write_index(folder / "once.txt", root=Path(index.root), names=names)
    made = pack_index(once, folder / "packed", options)
    lines = made.read_text().splitlines(keepends=True)
    rows = [line for line in lines if not line.startswith("#")]
    made.write_text("".join([line for line in lines if line.startswith("#")] + rows * (len(index) // len(names))))
    return open_index(made)


_DECODERS: dict[str, Any] = {
    "too few workers": staged.waiting_decode,
    "tiny batches": staged.tiny_decode,
    "Pillow": staged_more.pil_crop,
    "a service that takes 100 ms": staged_more.slow_service,
    "few slots by budget": staged_memory.big_waiting,
    "small shards": staged.small_crop,
}
_TRANSFORMS: dict[str, Any] = {
    "slow transform": staged.slow_transform,
    "a transform that waits": staged_more.waiting_transform,
}
_SETTINGS: dict[str, dict[str, Any]] = {
    "too few workers": {"num_workers": 1},
    "tiny batches": {"batch_size": 1},
    "a service that takes 100 ms": {"num_workers": 4},
    "few slots by budget": {"num_workers": 8, "batch_size": 1, "memory_budget": "139MiB"},
}


def applied(name: str, path: Path, folder: Path, first: dict[str, Any], stack: ExitStack) -> tuple[Rate, Rate] | None:
    """Return what measures the rate before and after the first remedy. None if it cannot be applied here."""
    index, text = open_index(path), first["text"]
    job = {"decode": staged.plain_crop, "transform": _TRANSFORMS.get(name), **_SETTINGS.get(name, {})}
    job["decode"] = _DECODERS.get(name, staged.plain_crop)
    changed: dict[str, Any] = {}
    other = index
    if "Make everything fit" in text:
        limits = (staged_memory.SWAPPING_BYTES, None)
        before, after = (partial(staged_memory.rate_with_table, path, folder, limit_bytes=limit) for limit in limits)
        return before, after
    if first["num_workers"] and not SITUATIONS[name].dataset:
        changed = {"num_workers": first["num_workers"]}
    elif first["batch_size"] and name == "tiny batches":
        changed = {"batch_size": first["batch_size"]}
    elif "--resize-short" in text:
        other = packed(index, folder, PackOptions(resize_short=resize_to(SIDE)))
    elif "--jpeg baseline" in text:
        other = packed(index, folder, PackOptions(jpeg=JpegForm.BASELINE))
    elif "mpload's own decoder" in text:
        changed = {"decode": ResizeCenterCrop(SIDE)}
    elif "Make the transform cheaper" in text:
        changed = {"transform": None}
    elif "Raise memory_budget" in text:
        changed = {"memory_budget": text.split('"')[1]}
    elif "Write larger shards" in text:
        other = open_index(staged_memory.large_shards(folder / "large", stack))
        changed = {"shuffle": BlockShuffle(block_samples=256, window_blocks=64)}
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
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        index = stack.enter_context(prepared(situation, Path(folder)))
        found = examine(situation, index)
        first = found.first
        text = "" if first is None else str(first["text"])
        is_expected = situation.first in text and bool(text or not situation.first)
        gain = measured_gain(None if first is None else applied(name, index, Path(folder), first, stack))
    predicted = None if first is None else first["gain"]
    figures = {
        "found": found.bottleneck,
        "culprit_is_right": found.bottleneck == situation.bottleneck,
        "first_remedy": text.replace(f"{folder}/", ""),
        "remedy_is_right": is_expected,
        "predicted_gain": predicted and round(predicted, 2),
        "bound": first and first["bound"],
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
        try:
            run(name, is_recorded=not options.quick)
        except pytest.skip.Exception as why:  # no root, no containers, no swap file
            print(f"{name}: cannot be set up here: {why}", flush=True)


if __name__ == "__main__":
    main()
