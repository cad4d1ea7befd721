"""Batches of clips and audio are the same in every process."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from mpload import AudioClip, ErrorPolicy, MPDataset, MPLoader, RandomResizedCrop, Topology, VideoClip
from mpload.errors import MploadWarning
from tests.support.clips import RATE, write_clips
from tests.support.typed import WAYS, comparable

pytest.importorskip("av")
pytest.importorskip("soundfile")
NUM_CLIPS = 7
DECODERS: dict[str, Any] = {
    "clip": VideoClip(4, crop=RandomResizedCrop(24), start="start", end="end", seconds=0.8),
    "sound": AudioClip(start="start", end="end"),
    "whole": VideoClip(2, of="clip"),
}


def dataset(index: Path, **options: Any) -> MPDataset:
    options = {"decode": DECODERS, "batch_size": 3, "tail": "ragged", "shuffle": True, "seed": 1, **options}
    return MPDataset(index, **{"topology": Topology(), **options})


def read(index: Path, how: str) -> list[Any]:
    clips = dataset(index)
    if how == "alone":
        return [comparable(batch) for batch in clips]
    if how == "DataLoader":
        return [comparable(batch) for batch in DataLoader(clips, batch_size=None, num_workers=2)]
    with MPLoader(clips, num_workers=int(how)) as loader:
        return [comparable(batch) for batch in loader]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clips(tmp_path_factory.mktemp("clips"), num_clips=NUM_CLIPS)


def test_batches_hold_frames_and_sound(index: Path) -> None:
    batch = next(iter(dataset(index, shuffle=False)))
    assert batch["clip"].shape == (3, 4, 3, 24, 24)
    assert batch["clip"].dtype == torch.uint8
    assert batch["whole"].shape == (3, 2, 3, 48, 64)
    assert [sound.shape for sound in batch["sound"]["samples"]] == [(1, RATE), (1, RATE), (1, RATE)]
    assert batch["sound"]["sample_rate"].tolist() == [RATE] * 3


@pytest.mark.processes
@pytest.mark.parametrize("how", [way for way in WAYS if way not in {"alone", "one by one"}])
def test_clips_are_the_same_bit_for_bit_however_batches_are_made(index: Path, how: str) -> None:
    expected = read(index, "alone")
    assert len(expected) == 3
    assert read(index, how) == expected


def test_a_part_beyond_the_end_meets_the_error_policy(index: Path, tmp_path: Path) -> None:
    late = index.with_name("late.txt")
    late.write_text(index.read_text().replace("\t0.1\t", "\t3.6\t"))
    policy = ErrorPolicy(action="skip", max_error_fraction=1, report=tmp_path / "bad.jsonl")
    with pytest.warns(MploadWarning, match="skip"):
        found = [number for batch in dataset(late, on_error=policy) for number in batch["start"].tolist()]
    assert 3.6 not in found
    assert "column 'clip': there is nothing from 3.6 to" in (tmp_path / "bad.jsonl").read_text()
