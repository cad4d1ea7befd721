"""Weights of a mixture that change while a loader iterates: from the next batch on, on all ranks."""

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpload import DevicePrefetcher, Mixture, MPDataset, MPLoader, Topology
from mpload.errors import ArgumentError
from tests.support.mixtures import mixed, samples, source
from tests.support.streams import LateStream


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("sources")
    return [source(folder, name, size, root="files") for name, size in (("a", 70), ("b", 9))]


def _weights(sources: list[Path], *values: float) -> dict[Path, float]:
    return dict(zip(sources, values, strict=True))


def _mixture(sources: list[Path]) -> Mixture:
    return Mixture(_weights(sources, 1, 0), epoch_samples=120)


def _expected(sources: list[Path], changes: dict[int, tuple[float, float]]) -> list[tuple[str, int]]:
    """Return two epochs in which the weights change after numbers of samples, by leaving the loop and resuming."""
    dataset = mixed(_mixture(sources), batch_size=12)
    found: list[tuple[str, int]] = []
    for stop in (*changes, 240):
        while len(found) < stop:
            num_wanted = min(stop, 120 * (len(found) // 120 + 1)) - len(found)
            found += samples(itertools.islice(iter(dataset), num_wanted // 12))
            dataset.load_state_dict(dataset.state_dict())
        if stop in changes:
            dataset.set_weights(_weights(sources, *changes[stop]))
    return found


def _read(loader: MPLoader, sources: list[Path], changes: dict[int, tuple[float, float]]) -> Iterator[Any]:
    """Yield the batches of two epochs, and change the weights after numbers of global batches, within the loop."""
    num_received = 0
    for _ in range(2):
        for batch in loader:
            num_received += 1
            yield batch
            if num_received in changes:
                loader.set_weights(_weights(sources, *changes[num_received]))


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_new_weights_hold_from_the_next_batch_on(sources: list[Path], num_workers: int) -> None:
    changes = {3: (0.0, 1.0), 4: (1.0, 1.0), 10: (0.0, 1.0), 17: (1.0, 0.0)}
    with MPLoader(mixed(_mixture(sources), batch_size=12), num_workers=num_workers) as loader:
        found = samples(_read(loader, sources, changes))
    assert found == _expected(sources, {12 * batches: weights for batches, weights in changes.items()})
    names = [name[0] for name, _ in found]
    assert Counter(names[:36]) == {"a": 36}
    assert Counter(names[36:48]) == {"b": 12}
    assert Counter(names[120:204]) == {"b": 84}
    assert Counter(names[204:]) == {"a": 36}


@pytest.mark.processes
def test_all_ranks_change_weights_at_the_same_position(sources: list[Path]) -> None:
    changes = {2: (1.0, 3.0), 5: (1.0, 0.0)}
    parts = []
    for rank, num_workers in enumerate((0, 1, 3)):
        dataset = mixed(_mixture(sources), batch_size=4, topology=Topology(rank=rank, world_size=3))
        with MPLoader(dataset, num_workers=num_workers) as loader:
            parts.append([samples([batch]) for batch in _read(loader, sources, changes)])
    in_order = [sample for step in zip(*parts, strict=True) for batch in step for sample in batch]
    assert in_order == _expected(sources, {12 * batches: weights for batches, weights in changes.items()})


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("num_saved", [2, 3, 4, 9])
def test_a_run_resumes_exactly_before_at_and_after_a_change(sources: list[Path], num_saved: int) -> None:
    changes = {3: (1.0, 2.0)}
    stored = ""
    with MPLoader(mixed(_mixture(sources), batch_size=12), num_workers=2) as loader:
        rest = []
        for num_received, batch in enumerate(loader, 1):
            if num_received > num_saved:
                rest += samples([batch])
            if num_received in changes:
                loader.set_weights(_weights(sources, *changes[num_received]))
            if num_received == num_saved:
                stored = json.dumps(loader.state_dict())
    with MPLoader(mixed(_mixture(sources), batch_size=12), num_workers=1) as again:
        again.load_state_dict(json.loads(stored))
        batches = iter(again)
        found = []
        for num_received in range(num_saved + 1, 11):
            found += samples([next(batches)])
            if num_received in changes:
                again.set_weights(_weights(sources, *changes[num_received]))
        with pytest.raises(StopIteration):
            next(batches)
    assert found == rest


def test_a_run_with_many_changes_resumes_exactly_from_small_states(sources: list[Path]) -> None:
    changes = {number: (number / 7, 1 / number) for number in range(1, 20)}
    found, states = [], []
    with MPLoader(mixed(_mixture(sources), batch_size=12), num_workers=0) as loader:
        for batch in _read(loader, sources, changes):
            found += samples([batch])
            states.append(json.dumps(loader.state_dict()))  # before the change that follows the batch
    assert max(map(len, states)) < 1024
    assert found == _expected(sources, {12 * number: weights for number, weights in changes.items()})
    for number in (3, 13, 18):
        resumed = mixed(_mixture(sources), batch_size=12)
        resumed.load_state_dict(json.loads(states[number - 1]))
        rest = {12 * changed: weights for changed, weights in changes.items() if changed >= number}
        again: list[tuple[str, int]] = []
        for at, stop in itertools.pairwise([*sorted(rest), 240]):
            resumed.set_weights(_weights(sources, *rest[at]))
            while len(again) < stop - 12 * number:
                again += samples(itertools.islice(iter(resumed), 1))
                resumed.load_state_dict(resumed.state_dict())
        assert again == found[12 * number :]


@pytest.mark.processes
def test_the_iteration_ends_with_its_epoch_after_a_change_at_its_end(sources: list[Path]) -> None:
    with MPLoader(mixed(_mixture(sources), batch_size=12), num_workers=1) as loader:
        batches = iter(loader)
        assert len(samples(itertools.islice(batches, 10))) == 120
        loader.set_weights(_weights(sources, 0, 1))
        assert [*batches] == [] == [*batches]
        loader.set_weights(_weights(sources, 1, 1))
        assert {name[0] for name, _ in samples(loader)} == {"a", "b"}
        assert loader.state_dict()["epoch"] == 2


@pytest.mark.processes
def test_a_loop_that_was_left_does_not_go_on_because_of_a_change(sources: list[Path]) -> None:
    with MPLoader(mixed(_mixture(sources), batch_size=12), num_workers=0) as loader:
        next(iter(loader))
        loader.set_weights(_weights(sources, 0, 1))
        assert loader.state_dict()["position"] == 12
        assert len(samples(loader)) == 120
        assert loader.state_dict()["epoch"] == 2


@pytest.mark.processes
@pytest.mark.parametrize("is_outer", [False, True])
def test_batches_ahead_on_a_device_make_a_change_an_error(sources: list[Path], is_outer: bool) -> None:
    dataset: MPDataset = mixed(_mixture(sources), batch_size=12)
    with MPLoader(dataset, num_workers=1, device=None if is_outer else "cpu") as loader:
        iterated: Any = DevicePrefetcher(loader) if is_outer else loader
        next(iter(iterated))
        with pytest.raises(ArgumentError, match="has taken batches ahead"):
            loader.set_weights(_weights(sources, 0, 1))
        assert "changes" not in iterated.state_dict()
        iterated.load_state_dict(iterated.state_dict())
        loader.set_weights(_weights(sources, 0, 1))
        assert iterated.state_dict()["changes"] == [[12, [0, 1]]]
        found = samples(iterated)
        assert (len(found), {name[0] for name, _ in found}) == (108, {"b"})


@pytest.mark.parametrize("is_outer", [False, True])
def test_the_last_batches_ahead_on_a_device_make_a_change_an_error_too(sources: list[Path], is_outer: bool) -> None:
    dataset: MPDataset = mixed(_mixture(sources), batch_size=40)
    with MPLoader(dataset, num_workers=0, device=None if is_outer else "cpu") as loader:
        iterated: Any = DevicePrefetcher(loader, device="cpu") if is_outer else loader
        prefetcher: Any = iterated if is_outer else loader._prefetcher
        prefetcher._stream = LateStream(0)
        batches = iter(iterated)
        for num_received in (1, 2):  # all 3 are on the device or on their way
            next(batches)
            with pytest.raises(ArgumentError, match="has taken batches ahead"):
                loader.set_weights(_weights(sources, 0, 1))
            assert iterated.state_dict()["position"] == 40 * num_received
            assert "changes" not in iterated.state_dict()
        next(batches)
        loader.set_weights(_weights(sources, 0, 1))
        assert iterated.state_dict()["changes"] == [[120, [0, 1]]]


@pytest.mark.processes
def test_a_state_of_batches_on_a_device_does_not_forget_a_change(sources: list[Path]) -> None:
    dataset = mixed(_mixture(sources), batch_size=12)
    with MPLoader(dataset, num_workers=1, device="cpu") as loader:
        batches = iter(loader)
        next(batches)
        dataset.set_weights(_weights(sources, 0, 1))
        assert loader.state_dict()["changes"] == [[120, [0, 1]]]
        assert loader.state_dict()["position"] == 12


def test_loaders_of_other_datasets_have_no_weights(sources: list[Path]) -> None:
    with MPLoader([1, 2, 3], num_workers=0) as loader, pytest.raises(ArgumentError, match="is not a mixture"):
        loader.set_weights({})
    with MPLoader(mixed(_mixture(sources)), num_workers=0) as loader, pytest.raises(ArgumentError, match="name each"):
        loader.set_weights({sources[0]: 1})
