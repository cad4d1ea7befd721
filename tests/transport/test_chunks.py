"""Chunks cover each sample of a batch once, and those of dead workers are split until the deadly sample is found."""

import math

from hypothesis import given
from hypothesis import strategies as st

from mpload.transport.chunks import MAX_CHUNKS, Chunk, after_death, cut


@given(
    num_samples=st.integers(1, 5000), share=st.integers(0, 5000), sample_ns=st.floats(0, 1e12) | st.just(float("inf"))
)
def test_the_chunks_of_a_batch_cover_each_sample_once(num_samples: int, share: int, sample_ns: float) -> None:
    chunks = cut(batch=1, slot=2, num_samples=num_samples, task=(7,), share=share, sample_ns=sample_ns)
    assert [sample for chunk in chunks for sample in range(chunk.first, chunk.last)] == list(range(num_samples))
    assert len(chunks) <= MAX_CHUNKS


def test_chunks_of_fast_samples_are_as_large_as_a_workers_share_allows() -> None:
    def sizes(share: int, sample_ns: float) -> set[int]:
        return {chunk.num_samples for chunk in cut(
            batch=1, slot=2, num_samples=256, task=(), share=share, sample_ns=sample_ns
        )}  # fmt: skip

    assert sizes(512, 4_000_000) == {16}
    assert sizes(512, 500_000) == sizes(512, 320_000) == {64}
    assert sizes(512, 10) == {256}
    assert sizes(64, 10) == {32}


@given(share=st.integers(0, 5000), sample_ns=st.floats(1, 1e9))
def test_larger_chunks_begin_where_smaller_ones_do(share: int, sample_ns: float) -> None:
    def begins(sample_ns: float) -> set[int]:
        chunks = cut(batch=1, slot=2, num_samples=1000, task=(), share=share, sample_ns=sample_ns)
        return {chunk.first for chunk in chunks}

    assert begins(sample_ns) <= begins(math.inf)


@given(
    first=st.integers(0, 50),
    size=st.integers(1, 64),
    deadly=st.integers(0, 200),
    is_marked=st.booleans(),
    is_from_outside=st.booleans(),
)
def test_a_deadly_sample_is_found_and_nothing_else_is_blamed(
    first: int, size: int, deadly: int, is_marked: bool, is_from_outside: bool
) -> None:
    todo = [Chunk(batch=1, slot=0, first=first, last=first + size, task=())]
    filled: list[int] = []
    blamed: list[int] = []
    num_deaths = num_alone = 0
    while todo:
        chunk = todo.pop()
        if not chunk.first <= deadly < chunk.last:
            filled += range(chunk.first, chunk.last)
            continue
        num_deaths += 1
        num_alone += chunk.num_samples == 1
        again = after_death(chunk, deadly if is_marked else None, is_from_outside=is_from_outside)
        todo += again
        blamed += [] if again else [chunk.first]
    assert sorted(filled + blamed) == list(range(first, first + size))
    assert blamed == ([deadly] if first <= deadly < first + size else [])
    assert num_deaths <= (4 if is_marked else 2 * (size.bit_length() + 1)) + 4 * is_from_outside
    assert num_alone == (6 if is_from_outside else 2) * len(blamed), "a death over several samples does not count"


@given(first=st.integers(0, 50), size=st.integers(2, 64), sample=st.integers(-2, 120))
def test_the_parts_of_a_split_chunk_cover_it_once_whichever_sample_its_worker_died_over(
    first: int, size: int, sample: int
) -> None:
    chunk = Chunk(batch=1, slot=0, first=first, last=first + size, task=(), num_deaths=1)
    parts = after_death(chunk, sample)
    assert len(parts) > 1
    assert [at for part in parts for at in range(part.first, part.last)] == list(range(first, first + size))
