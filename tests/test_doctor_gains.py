"""What the doctor foretells of its first remedy, against what applying it gives."""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from mpload.doctor.remedies import resize_to
from mpload.index.index import Index
from mpload.index.opening import open_index
from mpload.packing import PackOptions, pack_index
from mpload.trials import run_loader
from tests import staged
from tests.staged import STAGED, diagnose, prepared

pytestmark = pytest.mark.slow

_ROUNDS, _SECONDS = 5, 1.0
_CLOSE = 0.25


def _rate(index: Index, tmp_path: Path, **job: Any) -> float:
    options = {"decode": staged.plain_crop, "transform": None, "num_workers": 2, "batch_size": 8} | job
    return run_loader(index, seconds=_SECONDS, report=tmp_path / "errors.jsonl", **options).samples_per_second


def _gain(before: Callable[[], float], after: Callable[[], float]) -> float:
    """Return how much faster it got: one beside the other, again and again, since others use this machine too."""
    pairs = [(before(), after()) for _ in range(_ROUNDS)]
    return median(after for _, after in pairs) / median(before for before, _ in pairs)


def _first_remedy(name: str, index: Path) -> dict[str, Any]:
    found = diagnose(STAGED[name], index, "--seconds", "10")
    assert found["verdict"]["bottleneck"] == STAGED[name].bottleneck
    first: dict[str, Any] = found["remedies"][0]
    return first


def test_more_workers_give_what_was_foretold(tmp_path: Path) -> None:
    with prepared(STAGED["too few workers"], tmp_path) as path:
        first = _first_remedy("too few workers", path)
        index = open_index(path)
        job = {"decode": staged.waiting_decode}
        gain = _gain(
            lambda: _rate(index, tmp_path, **job, num_workers=1),
            lambda: _rate(index, tmp_path, **job, num_workers=first["num_workers"]),
        )
    assert first["num_workers"] > 4
    assert first["gain"] == pytest.approx(gain, rel=_CLOSE)


def test_larger_batches_give_what_was_foretold(tmp_path: Path) -> None:
    with prepared(STAGED["tiny batches"], tmp_path) as path:
        first = _first_remedy("tiny batches", path)
        index = open_index(path)
        job = {"decode": staged.tiny_decode}
        gain = _gain(
            lambda: _rate(index, tmp_path, **job, batch_size=1),
            lambda: _rate(index, tmp_path, **job, batch_size=first["batch_size"]),
        )
    assert first["gain"] == pytest.approx(gain, rel=_CLOSE)


def test_smaller_images_give_what_was_foretold(tmp_path: Path) -> None:
    with prepared(STAGED["huge images"], tmp_path) as path:
        first = _first_remedy("huge images", path)
        index = open_index(path)
        packed = open_index(pack_index(index, tmp_path / "packed", PackOptions(resize_short=resize_to(224))))
        gain = _gain(lambda: _rate(index, tmp_path), lambda: _rate(packed, tmp_path))
    assert "resize-short" in first["text"]
    assert first["gain"] == pytest.approx(gain, rel=_CLOSE)


def test_doing_without_the_transform_gives_what_was_foretold(tmp_path: Path) -> None:
    with prepared(STAGED["slow transform"], tmp_path) as path:
        first = _first_remedy("slow transform", path)
        index = open_index(path)
        gain = _gain(lambda: _rate(index, tmp_path, transform=staged.slow_transform), lambda: _rate(index, tmp_path))
    assert "cheaper transform" in first["text"]
    assert first["gain"] == pytest.approx(gain, rel=_CLOSE)
