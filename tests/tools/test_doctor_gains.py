"""The gain that the doctor predicts for its first remedy equals the gain of applying it."""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from mpload.index.index import Index
from mpload.index.opening import open_index
from mpload.judgement.remedies import resize_to
from mpload.tools.pack.options import JpegForm
from mpload.tools.pack.packing import PackOptions, pack_index
from mpload.tools.trials import run_loader
from tests.support import staged
from tests.support.native import needs_native
from tests.support.staged import STAGED, diagnose, prepared, write_index

pytestmark = [pytest.mark.quiet, pytest.mark.timeout(500)]

_ROUNDS, _SECONDS = 3, 1.0
_CLOSE = 0.25
_ATTEMPTS = 3
"""Other processes on the machine may slow down one side of a comparison more than the other."""


def _rate(index: Index, tmp_path: Path, **job: Any) -> float:
    options = {"decode": staged.plain_crop, "transform": None, "num_workers": 2, "batch_size": 8} | job
    return run_loader(index, seconds=_SECONDS, report=tmp_path / "errors.jsonl", **options).samples_per_second


def _check(name: str, path: Path, before: Callable[[], float], after: Callable[[dict[str, Any]], float]) -> None:
    """Compare the gain that the doctor predicts for its first remedy with the gain of applying it."""
    seen = []
    for _ in range(_ATTEMPTS):
        found = diagnose(STAGED[name], path, "--seconds", "9")
        assert found["verdict"]["bottleneck"] == STAGED[name].bottleneck
        first = found["remedies"][0]
        pairs = [(before(), after(first)) for _ in range(_ROUNDS)]
        gain = median(fast for _, fast in pairs) / median(slow for slow, _ in pairs)
        if first["gain"] == pytest.approx(gain, rel=_CLOSE):
            return
        seen.append((first["gain"], gain))
    pytest.fail(f"predicted and measured gains: {seen}")


def test_more_workers_give_the_predicted_gain(tmp_path: Path) -> None:
    with prepared(STAGED["too few workers"], tmp_path) as path:
        index, job = open_index(path), {"decode": staged.waiting_decode}
        _check(
            "too few workers",
            path,
            lambda: _rate(index, tmp_path, **job, num_workers=1),
            lambda first: _rate(index, tmp_path, **job, num_workers=first["num_workers"]),
        )


def test_larger_batches_give_the_predicted_gain(tmp_path: Path) -> None:
    with prepared(STAGED["tiny batches"], tmp_path) as path:
        index, job = open_index(path), {"decode": staged.tiny_decode}
        _check(
            "tiny batches",
            path,
            lambda: _rate(index, tmp_path, **job, batch_size=1),
            lambda first: _rate(index, tmp_path, **job, batch_size=first["batch_size"]),
        )


def test_smaller_images_give_the_predicted_gain(tmp_path: Path) -> None:
    with prepared(STAGED["huge images"], tmp_path) as path:
        index = open_index(path)
        once = tmp_path / "once.txt"
        write_index(once, root=Path(index.root), names=sorted({str(record["image"]) for record in index}))
        made = pack_index(once, tmp_path / "packed", PackOptions(resize_short=resize_to(224)))
        lines = made.read_text().splitlines(keepends=True)
        many = [line for line in lines if not line.startswith("#")] * (len(index) // 8)
        made.write_text("".join([line for line in lines if line.startswith("#")] + many))
        packed = open_index(made)
        assert len(packed) == len(index)

        def after(first: dict[str, Any]) -> float:
            assert "resize-short" in first["text"]
            return _rate(packed, tmp_path)

        _check("huge images", path, lambda: _rate(index, tmp_path), after)


@needs_native
def test_baseline_photos_give_the_predicted_gain(tmp_path: Path) -> None:
    with prepared(STAGED["progressive photos"], tmp_path) as path:
        index = open_index(path)
        packed = open_index(pack_index(index, tmp_path / "packed", PackOptions(jpeg=JpegForm.BASELINE)))
        _check("progressive photos", path, lambda: _rate(index, tmp_path), lambda _: _rate(packed, tmp_path))


def test_removing_the_transform_gives_the_predicted_gain(tmp_path: Path) -> None:
    with prepared(STAGED["slow transform"], tmp_path) as path:
        index = open_index(path)

        def after(first: dict[str, Any]) -> float:
            assert "Make the transform cheaper" in first["text"]
            return _rate(index, tmp_path)

        _check("slow transform", path, lambda: _rate(index, tmp_path, transform=staged.slow_transform), after)
