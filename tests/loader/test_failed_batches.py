"""With every kind of reader, the next batch follows a failed one, and a state counts the failed one as received."""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

from mpload import ErrorPolicy, MPDataset, MPLoader, MploadWarning, PoolOptions, Topology
from mpload.errors import SampleError, TooManyBadSamples
from mpload.loader.frameworks import AccelerateIteration
from mpload.plan.plan import Plan, Tail
from tests.support.batches import numbers_index
from tests.support.decoders import broken, number_in

NUM_SAMPLES = 60
FAILED = None
EXPECTED = [
    FAILED if any(number % 20 == 7 for number in batch) else list(batch)
    for batch in (range(first, first + 4) for first in range(0, NUM_SAMPLES, 4))
]


def dataset(folder: Path, **options: Any) -> MPDataset:
    return MPDataset(numbers_index(folder, NUM_SAMPLES), decode=broken, **({"batch_size": 4} | options))


class Fails:
    """A map-style dataset that fails on the same samples as `broken`."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, number: int) -> tuple[int, int]:
        if number % 20 == 7:
            raise ValueError("no such number")
        return number, number


WAYS: dict[str, Callable[[Path], Any]] = {
    "dataset": dataset,
    "loader, 0 workers": lambda folder: MPLoader(dataset(folder), num_workers=0),
    "loader, 1 worker": lambda folder: MPLoader(dataset(folder), num_workers=1),
    "loader with a device, 0 workers": lambda folder: MPLoader(dataset(folder), num_workers=0, device="cpu"),
    "loader with a device, 1 worker": lambda folder: MPLoader(dataset(folder), num_workers=1, device="cpu"),
    "map-style, 0 workers": lambda folder: MPLoader(Fails(), batch_size=4, num_workers=0),
    "stateful, 0 workers": lambda folder: StatefulDataLoader(dataset(folder), batch_size=None),
    "stateful, 1 worker": lambda folder: StatefulDataLoader(dataset(folder), batch_size=None, num_workers=1),
    "stock, 0 workers": lambda folder: DataLoader(dataset(folder), batch_size=None),
    "stock, 2 workers": lambda folder: DataLoader(dataset(folder), batch_size=None, num_workers=2),
}


def received(batches: Iterator[Any]) -> list[list[int] | None]:
    """Return the labels of each batch, or `FAILED` for a failed one. Stop if there are more batches than expected."""
    found: list[list[int] | None] = []
    while len(found) <= len(EXPECTED):
        try:
            found.append(next(batches)[1].tolist())
        except StopIteration:
            break
        except SampleError as error:
            assert "no such number" in str(error)  # noqa: PT017
            found.append(FAILED)
    return found


@pytest.mark.processes
@pytest.mark.parametrize("way", WAYS)
def test_the_next_batch_follows_a_failed_one(way: str, tmp_path: Path) -> None:
    reading = WAYS[way](tmp_path)
    assert received(iter(reading)) == EXPECTED
    if isinstance(reading, MPLoader):
        reading.close()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("way", "num_batches"),
    [
        (way, num_batches)
        for way in WAYS
        if not way.startswith("stock")
        for num_batches in ([1, 2, 3] if "1 worker" not in way else [2, 3] if way.startswith("stateful") else [2])
    ],
)
def test_a_state_counts_a_failed_batch_as_received(way: str, num_batches: int, tmp_path: Path) -> None:
    if (way, num_batches) == ("stateful, 1 worker", 2):
        pytest.skip("torchdata counts a failed batch only once the next one has been received")
    reading, resumed = WAYS[way](tmp_path), WAYS[way](tmp_path)
    batches = iter(reading)
    before = [received(itertools.islice(_one(batches), 1))[0] for _ in range(num_batches)]
    resumed.load_state_dict(reading.state_dict())
    assert before + received(iter(resumed)) == EXPECTED
    for each in (reading, resumed):
        if isinstance(each, MPLoader):
            each.close()


def _one(batches: Iterator[Any]) -> Iterator[Any]:
    yield next(batches)


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore::mpload.errors.MploadWarning")
def test_a_batch_whose_samples_are_all_skipped_has_the_same_error_with_workers(tmp_path: Path) -> None:
    policy = ErrorPolicy(action="skip", max_error_fraction=1.0, report=tmp_path / "errors.jsonl")
    options = {"batch_size": 1, "shuffle": False, "on_error": policy}
    errors = []
    for num_workers in (0, 1):
        with MPLoader(dataset(tmp_path, **options), num_workers=num_workers) as loader:
            with pytest.raises(
                SampleError, match=r"all 1 samples of a batch failed, once because of: .+; see the error report"
            ) as raised:
                list(loader)
            errors.append(str(raised.value))
    assert errors[0] == errors[1]


def test_single_samples_continue_after_a_failed_one(tmp_path: Path) -> None:
    found: list[int] = []
    samples = iter(dataset(tmp_path, batch_size=None))
    for _ in range(NUM_SAMPLES):
        try:
            found.append(next(samples)[1])
        except SampleError:
            found.append(-1)
    assert found == [-1 if number % 20 == 7 else number for number in range(NUM_SAMPLES)]
    with pytest.raises(StopIteration):
        next(samples)


def test_accelerate_recognises_the_last_batch_after_a_batch_with_too_many_bad_samples() -> None:
    pytest.importorskip("accelerate")
    from accelerate.state import GradientState  # type: ignore[import-not-found,import-untyped,unused-ignore]

    def make(batch: int) -> int:
        if batch == 1:
            raise TooManyBadSamples("one")
        return batch

    plan = Plan(num_samples=12, batch_size=4, topology=Topology(), tail=Tail.PAD)
    try:
        batches = AccelerateIteration(map(make, range(3)), lambda: plan)
        assert next(batches) == 0
        with pytest.raises(TooManyBadSamples):
            next(batches)
        assert not batches.end_of_dataloader
        assert next(batches) == 2
        assert batches.end_of_dataloader
    finally:
        GradientState._reset_state()  # otherwise this process would count as a user of Accelerate


class FailsForAWhile:
    """Fails for seconds at a time: for sample 8 and for what is made next."""

    def __init__(self) -> None:
        self._num_left = 0

    def __call__(self, data: bytes) -> Any:
        number = number_in(data)
        if number[0] == 8:
            self._num_left = 6
        if self._num_left:
            self._num_left -= 1
            time.sleep(1.0)
            raise ValueError("not yet")
        return number


@pytest.mark.slow
@pytest.mark.processes
def test_each_substitute_has_as_much_time_as_a_sample(tmp_path: Path) -> None:
    policy = ErrorPolicy(action="substitute", max_error_fraction=1.0, report=tmp_path / "report")
    made = MPDataset(numbers_index(tmp_path, 12), decode=FailsForAWhile(), batch_size=4, on_error=policy)
    options = PoolOptions(sample_timeout_seconds=3.0)
    with MPLoader(made, num_workers=1, options=options) as loader, pytest.warns(MploadWarning, match="a bad sample"):
        assert len(list(loader)) == 3
    report = (tmp_path / "report").read_text().splitlines()
    assert [json.loads(line)["cause"] for line in report] == ["ValueError: not yet"] * 6


def hangs(data: bytes) -> Any:
    time.sleep(1000)
    return number_in(data)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("starts_fresh", [False, True])
def test_the_first_samples_are_made_within_the_limits_of_the_loader(tmp_path: Path, *, starts_fresh: bool) -> None:
    made = MPDataset(numbers_index(tmp_path, 1), decode=hangs, batch_size=1, tail="ragged")
    options = PoolOptions(sample_timeout_seconds=0.5, starts_fresh=starts_fresh)
    with pytest.raises(SampleError, match=r"stuck for more than 0\.5 s"):
        MPLoader(made, num_workers=1, options=options)
