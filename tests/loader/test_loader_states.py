"""Iterations and states of an MPLoader: each iteration reads an epoch, and a state counts the received batches."""

import copy
import gc
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpload import (
    MPLoader,
)
from mpload.errors import ArgumentError, SampleError
from mpload.loader.iterations import Turns
from tests.support.batches import ids, numbers
from tests.support.decoders import broken
from tests.support.transport_works import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")


@pytest.mark.processes
def test_states_count_received_batches_and_resume_with_any_number_of_workers(folder: Path) -> None:
    whole = numbers(folder, 200)
    whole.set_epoch(1)
    expected = ids(whole)
    with MPLoader(numbers(folder, 200), num_workers=2) as loader:
        ids(loader)
        iterator = iter(loader)
        received = [ids([next(iterator)])[0] for _ in range(9)]
        pool = loader._pool
        assert pool is not None

        def is_ahead() -> bool:
            pool.wait()
            return loader.stats().num_samples > 36

        assert wait_until(is_ahead)
        state = loader.state_dict()
        assert state["position"] == 36
    for num_workers in (0, 3):
        with MPLoader(numbers(folder, 200), num_workers=num_workers) as resumed:
            resumed.load_state_dict(state)
            assert received + ids(resumed) == expected
            assert resumed.state_dict()["epoch"] == 2
    alone = numbers(folder, 200)
    alone.load_state_dict(state)
    assert received + ids(alone) == expected


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_state_taken_before_the_first_batch_of_an_iteration_is_at_the_start_of_its_epoch(
    folder: Path, num_workers: int
) -> None:
    with MPLoader(numbers(folder, 50, batch_size=8), num_workers=num_workers) as loader:
        for epoch in range(1, 3):
            list(loader)
            batches = iter(loader)
            assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (2 * epoch - 1, 0)
            next(batches)
            assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (2 * epoch - 1, 8)


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 1])
def test_two_loaders_of_one_dataset_have_separate_epochs_and_states(folder: Path, num_workers: int) -> None:
    dataset = numbers(folder, 50)
    with MPLoader(dataset, num_workers=num_workers) as one, MPLoader(dataset, num_workers=num_workers) as other:
        batches = iter(one), iter(other)
        received = [ids(itertools.islice(each, num)) for each, num in zip(batches, (3, 5), strict=True)]
        for epoch, loader in enumerate((one, other)):
            resumed, whole = numbers(folder, 50), numbers(folder, 50)
            whole.set_epoch(epoch)
            resumed.load_state_dict(loader.state_dict())
            assert received[epoch] + ids(resumed) == ids(whole)


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.processes)])
def test_a_restored_position_is_not_read_by_another_loader_of_the_dataset(folder: Path, num_workers: int) -> None:
    dataset = numbers(folder, 50)
    with MPLoader(dataset, num_workers=num_workers) as train, MPLoader(dataset, num_workers=num_workers) as other:
        received = ids(itertools.islice(train, 3))
        train.load_state_dict(train.state_dict())
        with pytest.raises(ArgumentError, match=r"has restored position 12 of epoch 0, .* a dataset of its own"):
            next(iter(other))
        received += ids(train)
        assert received == ids(numbers(folder, 50))
        assert len(ids(other)) == 13


def state_of(loader: Any) -> tuple[int, int]:
    state = loader.state_dict()
    return state["epoch"], state["position"]


def test_the_epoch_set_during_an_iteration_is_the_next_one(folder: Path) -> None:
    loader = MPLoader(numbers(folder, 50), num_workers=0)
    batches = iter(loader)
    next(batches)
    one = state_of(loader)[1]
    loader.set_epoch(7)
    assert state_of(loader) == (7, 0)
    next(batches)
    assert state_of(loader) == (0, 2 * one)  # since the loop goes on
    assert len(ids(batches)) == 13 - 2
    assert state_of(loader) == (7, 0)
    assert len(ids(loader)) == 13
    assert state_of(loader) == (8, 0)


@pytest.mark.parametrize("num_before", [0, 1, 3])
def test_an_interrupt_at_any_line_loses_at_most_the_batch_that_it_interrupts(folder: Path, num_before: int) -> None:
    """The state never says more than was received, except at the return of `next` itself."""
    loader = MPLoader(numbers(folder, 50), num_workers=0)
    list(loader)
    batches = iter(loader)
    received = [next(batches) for _ in range(num_before)]
    before, places = state_of(loader), set()

    def trace(frame: Any, event: str, _: Any) -> Any:
        if "mpload" in frame.f_code.co_filename:
            sys.settrace(None)
            if state_of(loader) != before:
                places.add((Path(frame.f_code.co_filename).name, event))
            sys.settrace(trace)
        return trace

    sys.settrace(trace)
    try:
        received.append(next(batches))
    finally:
        sys.settrace(None)
    assert {name for name, event in places if event != "return"} <= {"iterations.py"}
    assert state_of(loader) > before


def test_a_loader_can_be_used_after_an_interrupt_at_any_instruction_that_keeps_other_threads_out(folder: Path) -> None:
    loader = MPLoader(numbers(folder, 50), num_workers=0)
    num_batches = len(list(loader))
    for place in itertools.count():
        left = itertools.count(place, -1)

        def trace(frame: Any, event: str, _: Any, left: Iterator[int] = left) -> Any:
            if frame.f_code is not Turns.alone.__wrapped__.__code__:  # type: ignore[attr-defined]
                return None
            frame.f_trace_opcodes = True
            if event == "opcode" and next(left) == 0:
                raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            next(iter(loader))
        except KeyboardInterrupt:
            sys.settrace(None)
            assert len(list(loader)) == num_batches
        else:
            break
        finally:
            sys.settrace(None)
    assert place > 20


@pytest.mark.processes
def test_a_new_iteration_ends_the_old_one(folder: Path) -> None:
    with MPLoader(numbers(folder, 200), num_workers=2) as loader:
        old = iter(loader)
        next(old)
        alone = numbers(folder, 200)
        alone.set_epoch(1)
        assert ids(loader) == ids(alone)
        with pytest.raises(ArgumentError, match="was iterated again, or released, since this iteration"):
            next(old)
        new = iter(loader)
        first = ids([next(new)])
        del old  # does not affect the new iteration
        gc.collect()
        assert first + ids(new) == ids(alone)


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iteration_of_a_copy_ends_that_of_the_original_with_an_error(folder: Path, num_workers: int) -> None:
    with MPLoader(numbers(folder, 200), num_workers=num_workers) as loader:
        old = iter(loader)
        next(old)
        new = iter(copy.copy(loader))
        next(new)
        with pytest.raises(ArgumentError, match="was iterated again, or released, since this iteration"):
            next(old)
        assert list(new)


@pytest.mark.processes
def test_an_abandoned_or_failed_epoch_does_not_affect_the_next_one(folder: Path, tmp_path: Path) -> None:
    dataset, alone = numbers(folder, 200), numbers(folder, 200)
    with MPLoader(dataset, num_workers=2) as loader:
        for _ in loader:
            break
        ids(itertools.islice(alone, 1))
        assert ids(loader) == ids(alone)
    failing = numbers(folder, 60, shuffle=False)
    failing._run.pipeline.maker.decode = broken
    with MPLoader(failing, num_workers=2) as loader:
        for _ in range(2):
            with pytest.raises(SampleError, match="sample 7 "):
                list(loader)
