"""MPLoader handles samples that fail in a worker, or kill it, as the dataset's error policy says."""

import os
import signal
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from mpload import (
    ErrorAction,
    ErrorPolicy,
    MPDataset,
    MPLoader,
    RandomResizedCrop,
    Topology,
)
from mpload.errors import MploadWarning, SampleError
from tests.support.batches import flat, ids, numbers
from tests.support.decoders import broken, changing

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")


def dies_at(sample_id: int) -> Any:
    def decode(data: bytes) -> NDArray[np.int64]:
        number = np.frombuffer(data, np.int64)
        if number[0] == sample_id:
            os.kill(os.getpid(), signal.SIGSEGV)
        return number

    return decode


def killing_dataset(folder: Path, **options: Any) -> MPDataset:
    dataset = numbers(folder, 60, shuffle=False, **options)
    dataset._run.pipeline.maker.decode = dies_at(41)
    return dataset


@pytest.mark.slow
@pytest.mark.processes
def test_a_sample_that_kills_workers_is_handled_by_the_error_policy(folder: Path, tmp_path: Path) -> None:
    with (
        MPLoader(killing_dataset(folder), num_workers=2) as loader,
        pytest.raises(SampleError, match=r"60.txt:44: sample 41 .*: killed its worker \(SIGSEGV\)"),
    ):
        list(loader)
    report = tmp_path / "report.jsonl"
    for action, size in ((ErrorAction.SKIP, 3), (ErrorAction.SUBSTITUTE, 4)):
        policy = ErrorPolicy(action=action, report=report)
        with (
            MPLoader(killing_dataset(folder, on_error=policy), num_workers=2) as loader,
            pytest.warns(MploadWarning, match=action),
        ):
            batches = ids(loader)
        assert [len(batch) for batch in batches] == [4] * 10 + [size] + [4] * 4
        assert 41 not in flat(batches)
        assert "killed its worker (SIGSEGV)" in report.read_text().splitlines()[-1]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("action", ["skip", "substitute"])
def test_bad_samples_are_handled_as_by_the_dataset_alone(
    folder: Path, tmp_path: Path, action: Literal["raise", "skip", "substitute"]
) -> None:
    def dataset() -> MPDataset:
        policy = ErrorPolicy(action=action, report=tmp_path / "report.jsonl", max_error_fraction=1)
        made = numbers(folder, 60, on_error=policy)
        made._run.pipeline.maker.decode = broken
        return made

    with pytest.warns(MploadWarning):
        expected = ids(dataset())
    with MPLoader(dataset(), num_workers=2) as loader, pytest.warns(MploadWarning):
        assert ids(loader) == expected


@pytest.mark.processes
def test_an_error_in_the_decoder_is_reported_with_its_sample(folder: Path) -> None:
    dataset = numbers(folder, 60, shuffle=False)
    dataset._run.pipeline.maker.decode = broken
    with (
        MPLoader(dataset, num_workers=2) as loader,
        pytest.raises(SampleError, match=r"60.txt:10: sample 7 .*: ValueError: no such number"),
    ):
        list(loader)


@pytest.mark.processes
def test_a_transform_that_returns_different_shapes_is_refused(photos: Path) -> None:
    dataset = MPDataset(
        photos, decode=RandomResizedCrop(48), transform=changing, batch_size=4, topology=Topology()
    )  # fmt: skip
    with (
        MPLoader(dataset, num_workers=1) as loader,
        pytest.raises(SampleError, match="Make the transform return the same shape"),
    ):
        list(loader)
