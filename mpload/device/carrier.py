"""Carries batches from the host to a device: copies them over the bus, then converts them into the user's buffers."""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import compress
from typing import Any

import torch
from numpy.typing import NDArray

from mpload.device.normalise import Normaliser
from mpload.device.pinning import Pinner
from mpload.device.staging import (
    CHANNELS_LAST,
    Allotment,
    Arena,
    BatchMemory,
    TensorSpec,
    is_plain,
    map_tensors,
    tensors_of,
)
from mpload.device.streams import Mark, SideStream

__all__ = ["Carrier"]

_CPU = torch.device("cpu")
_NUM_COPYING = 2
"""Maximum number of host batches that copies in flight read from."""


class Carrier:
    """Moves batches one after another in two steps. Both are queued on a stream, without waiting for them.

    `land` copies the bytes of a batch to the landing buffer (the CPU has none). `settle` converts them from there into
    the memory of the batch that the user receives, as soon as fewer than `num_batches` such batches are held. So a
    batch can cross the bus while the user still holds all the others.

    On an accelerator, that memory comes from torch's allocator on the consumer's stream, so that a batch behaves like
    any tensor created there. On the CPU, the allocator would cause page faults for every batch. There, and with stable
    addresses, batches take turns in arenas instead.

    Memory: on the device, `num_batches` converted batches and one unconverted batch; on the host, the tensors of two
    batches, unless they are already pinned.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        stream: SideStream,
        num_batches: int,
        normaliser: Normaliser | None,
        channels_last: bool,
        stable_addresses: bool,
        is_transformed: bool,
        mask_keys: Collection[str],
    ) -> None:
        has_bus = device.type != "cpu"
        self._device = device
        self._stream = stream
        self._normaliser = normaliser
        self._mask_keys = mask_keys
        self._channels_last = channels_last
        self._lands = has_bus or stream.is_async
        self._pins = has_bus and stream.is_async
        self._pinner = Pinner(device) if self._pins else None
        self._landing = Arena(device)
        self._is_transformed = is_transformed
        """Whether settled batches go to a transform on the side stream before the consumer receives them."""
        kind = Arena if stable_addresses or not has_bus else Allotment
        self._memories: list[BatchMemory] = [kind(device) for _ in range(num_batches)]
        self._turn = 0
        """Index of the least recently used memory."""
        self._pinned = [Arena(_CPU, pin_memory=True) for _ in range(_NUM_COPYING if self._pins else 0)]
        self._copying: deque[tuple[Mark, list[torch.Tensor]]] = deque()
        """Host tensors of each batch that copies read until the mark is reached, oldest batch first."""
        self.moved_bytes = 0
        """Bytes of all tensors received so far."""
        self.num_extra_batches = 0
        """Number of batches settled while `num_batches` were held."""

    @property
    def batch_bytes(self) -> int:
        """Memory of the settled batches."""
        return sum(memory.num_bytes for memory in self._memories)

    @property
    def landing_bytes(self) -> int:
        """Memory of the landing buffer."""
        return self._landing.num_bytes

    @property
    def pinned_bytes(self) -> int:
        """Pinned host memory that this carrier has allocated."""
        return sum(arena.num_bytes for arena in self._pinned)

    def finish(self) -> None:
        """Wait until all queued work is done, and release the host batches."""
        self._stream.mark().synchronize()
        self._copying.clear()

    def release(self) -> None:
        """Wait until all queued work is done, and free all memory. Held tensors keep theirs."""
        self.finish()
        if self._pinner is not None:
            self._pinner.release()
        # The consumer's queued work may still use the freed memory, which the allocator may give to the side stream.
        self._stream.follow_consumer()
        for memory in (self._landing, *self._pinned, *self._memories):
            memory.replace()

    def let_go(self) -> None:
        """Release the host batches whose copies are done."""
        while self._copying and self._copying[0][0].query():
            self._copying.popleft()

    def reclaim(self, *, keep: int) -> None:
        """Count all memory as free, even if still referenced, except that of the last `keep` settled batches."""
        for number in range(len(self._memories) - keep):
            self._memories[(self._turn + number) % len(self._memories)].reclaim()

    def land(self, batch: Any, *, lock: Callable[[int], NDArray[Any] | None]) -> Any:
        """Queue the copies of a batch to the landing buffer, and return the batch with the tensors there.

        The host batch is kept until the copies are done. They read directly from the slots that `lock` returns; see
        `Pinner.pin`.

        This first waits for the copies of the batch before the last one, so that the host does not run ahead of the
        device while holding more and more slots.
        """
        tensors = _plain_tensors(batch)
        self.moved_bytes += sum(tensor.nbytes for tensor in tensors)
        if not self._lands:
            return batch
        while len(self._copying) >= _NUM_COPYING:
            copied, _ = self._copying.popleft()
            copied.synchronize()
        if any(tensor.device.type != "cpu" for tensor in tensors):
            self._stream.follow_consumer()  # the consumer's queue may still be computing these tensors
        with self._stream.entered():
            sources = tensors if self._pinner is None else self._staged(tensors, self._pinner, lock)
            landed = self._landing.cut([TensorSpec.of(tensor) for tensor in tensors])
            for target, source in zip(landed, sources, strict=True):
                self._stream.queue(self._copy, source, target)
        self._copying.append((self._stream.mark(), tensors))
        with self._user_entered():  # tensors that are not plain are copied by their own `to`, which blocks
            return _with_tensors(batch, landed, others=lambda tensor: tensor.to(self._device))

    def _staged(
        self, tensors: list[torch.Tensor], pinner: Pinner, lock: Callable[[int], NDArray[Any] | None]
    ) -> list[torch.Tensor]:
        """Return the tensors in pinned memory: copies of those that cannot be pinned in place, the others as is.

        The stream's device must be current.
        """
        is_loose = [
            tensor.device.type == "cpu" and not tensor.is_pinned() and not pinner.pin(tensor, lock)
            for tensor in tensors
        ]
        if not any(is_loose):
            return tensors
        self._pinned.reverse()  # now first: the arena of the batch before the last, whose copies are done
        loose = list(compress(tensors, is_loose))
        staged = iter(self._pinned[0].cut([TensorSpec.of(tensor) for tensor in loose]))
        return [
            next(staged).copy_(tensor) if needs else tensor for tensor, needs in zip(tensors, is_loose, strict=True)
        ]

    def settle(self, landed: Any, *, at_any_cost: bool) -> Any | None:
        """Queue the conversion of a batch that `land` returned, and return the converted batch.

        If all memory is held, returns None, or with `at_any_cost` leaves one block to its holder and allocates another.
        """
        memory = next((each for each in self._in_turn() if not each.is_held), None)
        if memory is None:
            if not at_any_cost:
                return None
            memory = self._memories[self._turn]
            memory.replace()
            self.num_extra_batches += 1
        self._turn = (self._memories.index(memory) + 1) % len(self._memories)
        tensors = _plain_tensors(landed)
        are_images = self._are_images(landed, tensors)
        with self._user_entered():
            outs = memory.cut(list(map(self._spec, tensors, are_images)))
        self._stream.follow_consumer()  # the consumer's queued work may still use the previous batch in this memory
        with self._stream.entered():
            for tensor, out, is_image in zip(tensors, outs, are_images, strict=True):
                self._stream.queue(self._normalise if is_image else self._copy, tensor, out)
        return _with_tensors(landed, outs)

    def _user_entered(self) -> AbstractContextManager[None]:
        """Make the stream current on which settled batches are used."""
        return self._stream.entered() if self._is_transformed else nullcontext()

    def _in_turn(self) -> list[BatchMemory]:
        return [*self._memories[self._turn :], *self._memories[: self._turn]]

    def _are_images(self, batch: Any, tensors: list[torch.Tensor]) -> list[bool]:
        """Return whether each of the plain tensors of a batch is to be normalised."""
        if self._normaliser is None:
            return [False] * len(tensors)
        masks = [value for key, value in batch.items() if key in self._mask_keys] if isinstance(batch, Mapping) else []
        are_left = set(map(id, tensors_of(masks)))
        return [self._normaliser.takes(tensor) and id(tensor) not in are_left for tensor in tensors]

    def _spec(self, tensor: torch.Tensor, is_image: bool) -> TensorSpec:
        if self._normaliser is None or not is_image:
            return TensorSpec.of(tensor)
        order = CHANNELS_LAST if self._channels_last else (0, 1, 2, 3)
        return TensorSpec(shape=tuple(tensor.shape), dtype=self._normaliser.dtype, order=order)

    def _copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        target.copy_(source, non_blocking=self._stream.is_async)

    def _normalise(self, images: torch.Tensor, out: torch.Tensor) -> None:
        assert self._normaliser is not None
        self._normaliser.write(images, out)


def _plain_tensors(batch: Any) -> list[torch.Tensor]:
    return [tensor for tensor in tensors_of(batch) if is_plain(tensor)]


def _with_tensors(
    batch: Any,
    tensors: list[torch.Tensor],
    *,
    others: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
) -> Any:
    following = iter(tensors)
    return map_tensors(batch, lambda tensor: next(following) if is_plain(tensor) else others(tensor))
