"""If all samples of a user's own decoder have one shape, their batches are views of a slot. No copy is made."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import mpload

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux"),
    pytest.mark.processes,
]

BATCH_SIZE = 16


def same(data: bytes) -> NDArray[np.float32]:
    return np.full((20, 30), int(data), np.float32)


def longer_now_and_then(data: bytes) -> NDArray[np.float32]:
    return np.full((20 + (int(data) in {5, 40}), 30), int(data), np.float32)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    for number in range(64):
        (tmp_path / f"{number}.bin").write_bytes(b"%d" % number)
    path = tmp_path / "list.txt"
    path.write_text("".join(f"{number}.bin\n" for number in range(64)))
    return path


def is_in_a_slot(tensor: torch.Tensor) -> bool:
    """Return whether a tensor lies in the shared memory of the loader."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, stop = (int(address, 16) for address in line.split()[0].split("-"))
        if start <= tensor.data_ptr() < stop:
            return "mpload-ring" in line
    return False


@pytest.mark.parametrize("as_dict", [False, True])
def test_samples_of_one_shape_are_not_copied(index: Path, *, as_dict: bool) -> None:
    decode: Any = {"image": same} if as_dict else same
    dataset = mpload.MPDataset(index, decode=decode, batch_size=BATCH_SIZE)
    with mpload.MPLoader(dataset, num_workers=2) as loader:
        for _ in range(3):
            for number, batch in enumerate(loader):
                values = batch["image"] if as_dict else batch
                assert values.shape == (BATCH_SIZE, 20, 30)
                assert values[:, 7, 9].tolist() == [*range(number * BATCH_SIZE, (number + 1) * BATCH_SIZE)]
                assert is_in_a_slot(values)


def test_a_batch_with_another_shape_is_a_list(index: Path) -> None:
    dataset = mpload.MPDataset(index, decode=longer_now_and_then, batch_size=BATCH_SIZE)
    with mpload.MPLoader(dataset, num_workers=2) as loader:
        for _ in range(3):
            batches = list(loader)
            assert [type(batch) for batch in batches] == [list, torch.Tensor, list, torch.Tensor]
            for number, batch in enumerate(batches):
                for place, value in enumerate(batch, number * BATCH_SIZE):
                    assert torch.equal(value, torch.from_numpy(longer_now_and_then(b"%d" % place)))


def test_batches_that_are_held_never_change(index: Path) -> None:
    def dataset() -> mpload.MPDataset[Any]:
        return mpload.MPDataset(index, decode=same, batch_size=BATCH_SIZE, shuffle=True, seed=3)

    with mpload.MPLoader(dataset(), num_workers=2) as loader:
        held = [batch for _ in range(12) for batch in loader]
        assert loader.stats().num_copied_batches
    here = dataset()
    assert len(held) == 48
    assert all(map(torch.equal, held, [batch for _ in range(12) for batch in here]))
