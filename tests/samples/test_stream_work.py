"""Workers draw the batches of an iterable dataset and keep no sample that is no longer needed."""

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mpload.samples.stream_work import batches_of


class Sample:
    pass


@pytest.mark.parametrize("collate", [None, lambda samples: [samples, Sample()]])
def test_a_batch_is_freed_before_the_next_one_is_drawn(collate: Callable[[Any], Any] | None) -> None:
    alive = weakref.WeakSet[Sample]()

    def dataset() -> Iterator[Sample]:
        for number in range(12):
            if number % 4 == 0:
                assert not alive
            sample = Sample()
            alive.add(sample)
            yield sample
            del sample

    batches = batches_of(dataset(), batch_size=4, drop_last=False, collate=collate, on_dropped=print)
    assert [next(batches)[0] for _ in range(3)] == [4, 4, 4]
    assert next(batches, None) is None


def test_samples_are_freed_as_soon_as_they_are_collated() -> None:
    alive = weakref.WeakSet[Sample]()

    def dataset() -> Iterator[Sample]:
        for _ in range(4):
            sample = Sample()
            alive.add(sample)
            yield sample
            del sample

    batches = batches_of(dataset(), batch_size=2, drop_last=False, collate=len, on_dropped=print)
    for _ in range(2):
        assert next(batches) == (2, 2)
        assert len(alive) == 1  # the dataset holds the last one itself


def test_an_error_in_collate_ends_the_batches() -> None:
    batches = batches_of(
        range(9), batch_size=3, drop_last=False, collate=lambda samples: 1 // (samples[0] - 3), on_dropped=print
    )
    assert next(batches) == (3, -1)
    with pytest.raises(ZeroDivisionError):
        next(batches)
    assert list(batches) == []
