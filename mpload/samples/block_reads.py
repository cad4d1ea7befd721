"""Loads whole blocks of records into the page cache before their turn, and frees them afterwards."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np

from mpload.errors import MploadError
from mpload.index.index import lines_of
from mpload.index.lines import Lines
from mpload.memory.machine import MemoryGauge
from mpload.plan.batch_number import BatchNumber
from mpload.plan.batching import Batching
from mpload.samples.pipeline import Pipeline
from mpload.samples.reading import SpreadStorage
from mpload.storage.local import LocalStorage, PageCache
from mpload.storage.merging import merged
from mpload.storage.opening import LocalOrRemote
from mpload.storage.protocols import PageStorage
from mpload.storage.ranges import Span
from mpload.storage.remote import RemoteStorage
from mpload.units import KIB

__all__ = ["BlockReads", "max_blocks_in"]

_GAP_BYTES = 64 * KIB
_NUM_MEASURED = 64  # samples whose mean size stands for all
_USED_SHARE = 3 / 4  # of the room for page cache; the rest is for samples read singly, and for what processes allocate


@runtime_checkable
class _BlockOrder(Protocol):
    """An order that visits the samples block by block."""

    block_samples: int
    window_blocks: int

    def due_blocks(
        self, start: int, stop: int, *, is_first: bool, is_last: bool, max_blocks: int | None, is_shared: bool
    ) -> tuple[list[range], list[range]]:
        """Return the blocks to load before these positions are reached, and the blocks to free after them."""
        ...

    def window_end(self, block: range) -> int:
        """Return a position after the last one at which a sample of a block is used."""
        ...


def max_blocks_in(room_bytes: int, *, data_bytes: float, block_bytes: float) -> int | None:
    """Return how many blocks may be in the page cache at the same time; None if all of the data fits."""
    return None if data_bytes <= room_bytes else int(room_bytes * _USED_SHARE / block_bytes)


@dataclass(slots=True)
class _Progress:
    """How far a process has come. Jobs that wait for a thread hold this alone, not what they were put by."""

    latest: tuple[int, int, int] = (0, 0, 0)
    """Seed, epoch and last position of the latest samples."""


class BlockReads:
    """Reads blocks for all processes of a machine, which share the page cache. It is for one process.

    Nothing happens until reads turn out to be slow, unless pages are dropped: then the kernel reads nothing ahead.
    If the data does not fit into memory, only as many blocks are loaded as memory holds, and they are freed after their
    turn; a window that does not fit is read sample by sample.
    """

    def __init__(self, pipeline: Pipeline, batching: Batching) -> None:
        self._pipeline = pipeline
        self._batching = batching
        self._has_begun = False
        self._max_blocks: int | None = None
        self._frees = True
        self._loads = False
        self._progress = _Progress()

    def load(self, number: BatchNumber, first: int, last: int) -> list[range]:
        """Load the blocks that become due with samples `first` to `last` (exclusive) of a batch.

        Returns:
            The sample_ids of each block to free once these samples are made.
        """
        pipeline = self._pipeline
        if not pipeline.ahead.was_active and pipeline.page_cache != PageCache.DROP:
            return []
        if not isinstance(pipeline.opened_storage, PageStorage):  # takes long to find out
            return []
        order = self._batching.order_of(seed=number.seed, epoch=number.epoch)
        if number.substitute >= 0 or not isinstance(order, _BlockOrder):
            return []
        plan = self._batching.plan_of(topology=number.topology, start=number.start)
        positions = plan.positions(number.batch)
        if first:
            start = int(positions[first - 1]) + 1
        elif number.batch:  # the positions between two batches of this rank belong to other ranks
            start = int(plan.positions(number.batch - 1)[-1]) + 1
        else:
            start = number.start
        if not self._has_begun:
            self._choose(order)
        coming, done = order.due_blocks(
            start,
            int(positions[last - 1]) + 1,
            is_first=not self._has_begun or start == number.start,
            is_last=number.batch == plan.num_batches - 1 and last == len(positions),
            max_blocks=self._max_blocks,
            is_shared=number.topology.world_size > 1,
        )
        self._has_begun = True
        self._progress.latest = number.seed, number.epoch, int(positions[last - 1])
        self._loads = self._max_blocks is None or self._max_blocks >= order.window_blocks
        if self._loads:
            for block in coming:
                end = number.seed, number.epoch, order.window_end(block)
                for span in self._spans_of([block]):
                    pipeline.ahead.run(partial(_prefetch, pipeline.opened_storage, span, self._progress, end))
        return done if self._frees else []

    def are_cached(self, lines: Lines) -> bool:
        """Return whether the page cache holds samples, because their blocks were loaded.

        The middle byte of each span stands for all of them. False too if a sample is in a file of its own.
        """
        storage = self._pipeline.opened_storage
        if not self._loads or not isinstance(storage, LocalStorage):
            return False
        middles: dict[str, list[int]] = {}
        try:
            for path, offset_bytes, length_bytes in _runs_of(self._pipeline, lines):
                middles.setdefault(path, []).append(offset_bytes + length_bytes // 2)
            if sum(map(len, middles.values())) < len(lines) * len(self._pipeline.sources):
                return False
            return all(storage.has_cached(path, offsets) for path, offsets in middles.items())
        except MploadError:  # raised again when the samples are made
            return False

    def free(self, blocks: Sequence[range]) -> None:
        """Free blocks whose turn is over."""
        storage = self._pipeline.opened_storage
        if blocks and isinstance(storage, PageStorage):
            self._pipeline.ahead.run(partial(_forget, storage, self._spans_of(blocks)))

    def _choose(self, order: _BlockOrder) -> None:
        """Choose how many blocks to hold, and whether to free them."""
        pipeline = self._pipeline
        storage = pipeline.opened_storage
        if not isinstance(pipeline.storage, RemoteStorage | None):
            return  # the user's storage knows what to free
        self._frees = pipeline.page_cache != PageCache.KEEP
        if not self._frees:
            return
        num_samples = len(pipeline.index)
        records = pipeline.index.records(np.linspace(0, num_samples - 1, num=_NUM_MEASURED, dtype=np.int64))
        lengths = [item.length_bytes or 0 for record in records for item in pipeline.ranges_of(record)]
        sample_bytes = sum(lengths) / _NUM_MEASURED
        self._max_blocks = max_blocks_in(
            MemoryGauge().page_cache_bytes(),
            data_bytes=sample_bytes * num_samples,
            block_bytes=sample_bytes * order.block_samples,
        )
        if pipeline.page_cache == PageCache.AUTO:
            self._frees = self._max_blocks is not None
            if self._frees and isinstance(storage, LocalStorage | LocalOrRemote):
                storage.save_page_cache()

    def _spans_of(self, blocks: Sequence[range]) -> list[Span]:
        """Return spans that hold the samples of blocks. Blocks whose lines cannot be read are left out."""
        found = []
        for sample_ids in blocks:
            with suppress(MploadError):  # raised again when the samples are made
                runs = _runs_of(self._pipeline, lines_of(self._pipeline.index, sample_ids))
                found += merged(runs, max_gap_bytes=_GAP_BYTES)
        return found


def _prefetch(storage: PageStorage, span: Span, progress: _Progress, end: tuple[int, int, int]) -> None:
    """Load a span of a block, unless its window is over: other processes have loaded it, and freed it since."""
    if progress.latest < end:
        storage.prefetch(span)


def _forget(storage: PageStorage, spans: Sequence[Span]) -> None:
    for span in spans:
        with suppress(Exception):  # the others are to be freed too
            storage.forget(span)


def _runs_of(pipeline: Pipeline, lines: Lines) -> Iterator[tuple[str, int, int]]:
    """Yield path, offset and length of the spans of samples; whole files are left out.

    A worker frees many blocks at the end of an epoch, before it hands over its last samples. So no records are made
    of their lines if that can be avoided: it takes nine times as long.
    """
    columns = [lines.spans(column) for column in pipeline.sources]
    if isinstance(pipeline.opened_storage, SpreadStorage) or any((each.paths < 0).any() for each in columns):
        for record in lines.records():
            for item in pipeline.ranges_of(record):
                if item.length_bytes is not None:
                    yield item.path, item.offset_bytes, item.length_bytes
        return
    for spans in columns:
        paths, offsets, lengths = spans.paths.tolist(), spans.offsets.tolist(), spans.lengths.tolist()
        for (start, stop), offset_bytes, length_bytes in zip(paths, offsets, lengths, strict=True):
            if length_bytes >= 0:
                yield lines.data[start:stop].decode("utf-8", "surrogateescape"), offset_bytes, length_bytes
