"""Loads whole blocks of records into the page cache before their turn, and frees them afterwards."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np

from mpload.errors import MploadError
from mpload.memory.machine import MemoryGauge
from mpload.plan.batch_number import BatchNumber
from mpload.plan.batching import Batching
from mpload.samples.pipeline import Pipeline
from mpload.storage.local import LocalStorage, PageCache
from mpload.storage.merging import merged
from mpload.storage.opening import LocalOrRemote
from mpload.storage.protocols import PageStorage
from mpload.storage.ranges import ByteRange
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
        self, start: int, stop: int, *, is_first: bool, is_last: bool, max_blocks: int | None
    ) -> tuple[list[range], list[range]]:
        """Return the blocks to load before these positions are reached, and the blocks to free after them."""
        ...


def max_blocks_in(room_bytes: int, *, data_bytes: float, block_bytes: float) -> int | None:
    """Return how many blocks may be in the page cache at the same time; None if all of the data fits."""
    return None if data_bytes <= room_bytes else int(room_bytes * _USED_SHARE / block_bytes)


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
        )
        self._has_begun = True
        if self._max_blocks is None or self._max_blocks >= order.window_blocks:
            self._act(pipeline.opened_storage.prefetch, coming)
        return done if self._frees else []

    def free(self, blocks: Sequence[range]) -> None:
        """Free blocks whose turn is over."""
        storage = self._pipeline.opened_storage
        if blocks and isinstance(storage, PageStorage):
            self._act(storage.forget, blocks)

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

    def _act(self, act: Callable[[ByteRange], None], blocks: Sequence[range]) -> None:
        pipeline = self._pipeline
        for sample_ids in blocks:
            with suppress(MploadError):  # raised again when the samples are made
                ranges = [item for record in pipeline.index.records(sample_ids) for item in pipeline.ranges_of(record)]
                for item in merged(ranges, max_gap_bytes=_GAP_BYTES):
                    pipeline.ahead.run(partial(act, item))
