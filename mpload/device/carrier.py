"""Carries batches from the host to a device: over the bus first, then converted into buffers that the user holds."""

import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray

from mpload.device.normalise import Normaliser
from mpload.device.pinning import PinnedMemory
from mpload.device.staging import Arena, TensorSpec, map_tensors
from mpload.device.streams import Mark, SideStream
from mpload.errors import MploadWarning

__all__ = ["Carrier"]

_CPU = torch.device("cpu")
_NUM_COPYING = 2
"""Host batches that copies read from at once."""


class Carrier:
    """Moves one batch after the other, in two steps, both queued on a stream and not waited for.

    `land` copies a batch's bytes into the landing buffer; on the CPU there is none. `settle` converts and copies them
    from there into one of `num_arenas` sets of buffers, one that nobody holds any more. So the bytes of a batch cross
    the bus while the user still holds all the others.

    Memory: on the device `num_arenas` batches as they are handed out and one as it comes; on the host two pinned ones,
    unless what comes is pinned already.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        stream: SideStream,
        num_arenas: int,
        normaliser: Normaliser | None,
        channels_last: bool,
    ) -> None:
        has_bus = device.type != "cpu"
        self._device = device
        self._stream = stream
        self._normaliser = normaliser
        self._channels_last = channels_last
        self._lands = has_bus or stream.is_async
        self._pins = has_bus and stream.is_async
        self._can_register = self._pins and device.type == "cuda"
        self._landing = Arena(device)
        self._arenas = [Arena(device) for _ in range(num_arenas)]
        self._turn = 0
        """The arena that has waited longest."""
        self._pinned = [Arena(_CPU, pin_memory=True) for _ in range(_NUM_COPYING if self._pins else 0)]
        self._registered: PinnedMemory | None = None
        self._copying: deque[tuple[Mark, Any]] = deque()
        """Host batches that are read until their mark is reached, oldest first."""
        self.moved_bytes = 0
        """Bytes of the tensors that have come."""
        self.num_extra_batches = 0
        """Batches that needed new buffers, because the user held all there were."""

    @property
    def batch_bytes(self) -> int:
        """Memory of the arenas."""
        return sum(arena.num_bytes for arena in self._arenas)

    @property
    def landing_bytes(self) -> int:
        """Memory of the landing buffer."""
        return self._landing.num_bytes

    @property
    def pinned_bytes(self) -> int:
        """Pinned host memory of its own."""
        return sum(arena.num_bytes for arena in self._pinned)

    def pin(self, lock: Callable[[], NDArray[Any] | None]) -> None:
        """Let copies start directly from the host memory that `lock` returns, and no more from what it returned before.

        `lock` is only called where that can be done.
        """
        if not self._can_register or (memory := lock()) is None:
            return
        if self._registered is not None and self._registered.is_of(memory):
            return
        self.unpin()
        try:
            with self._stream.entered():  # which makes its device the current one
                self._registered = PinnedMemory(memory)
        except RuntimeError as error:
            self._can_register = False
            warnings.warn(f"batches are copied once more on the host: {error}", MploadWarning, stacklevel=4)

    def unpin(self) -> None:
        """Let go of the memory that was pinned, when all copies from it are done."""
        self.finish()
        if self._registered is not None:
            self._registered.release()
            self._registered = None

    def finish(self) -> None:
        """Wait until no copy is under way, and let go of the host batches."""
        self._let_go(num_left=0)

    def begin(self) -> None:
        """Order what follows behind what the consumer has queued so far; let go of host batches that were copied."""
        self._stream.follow_consumer()
        while self._copying and self._copying[0][0].query():
            self._copying.popleft()

    def reclaim(self, *, but: int) -> None:
        """Count the arenas as free whoever still holds them, but for those that `but` batches settled in last."""
        for number in range(len(self._arenas) - but):
            self._arenas[(self._turn + number) % len(self._arenas)].reclaim()

    def land(self, batch: Any) -> Any:
        """Queue the copies of a batch, which is kept until they are done, and return it as it lies on the device.

        Waits for the copies of the batch before the last: so the host never gets far ahead of the device, with more and
        more slots in its hands.
        """
        tensors = _tensors(batch)
        self.moved_bytes += sum(tensor.nbytes for tensor in tensors)
        if not self._lands:
            return batch
        self._let_go(num_left=_NUM_COPYING - 1)
        sources = tensors
        if self._pins and not all(tensor.is_pinned() or tensor.device.type != "cpu" for tensor in tensors):
            sources = self._staged(tensors)
        with self._stream.entered():
            landed = self._landing.cut([TensorSpec.of(tensor) for tensor in tensors])
        for target, source in zip(landed, sources, strict=True):
            self._stream.queue(self._copy, source, target)
        self._copying.append((self._stream.mark(), batch))
        return _with_tensors(batch, landed)

    def _let_go(self, *, num_left: int) -> None:
        while len(self._copying) > num_left:
            copied, _ = self._copying.popleft()
            copied.synchronize()

    def _staged(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return copies in pinned memory, from where the bus takes them without the host's help."""
        self._pinned.reverse()  # now first: the one that was read before the last, which is done
        staged = self._pinned[0].cut([TensorSpec.of(tensor) for tensor in tensors])
        for target, tensor in zip(staged, tensors, strict=True):
            target.copy_(tensor)
        return staged

    def settle(self, landed: Any, *, at_any_cost: bool) -> Any | None:
        """Queue the conversion of a batch that `land` returned, and return it as the user will see it.

        Returns None where all arenas are held, or with `at_any_cost` leaves one to its holder and takes new memory.
        """
        arena = next((each for each in self._in_turn() if not each.is_held), None)
        if arena is None:
            if not at_any_cost:
                return None
            arena = self._arenas[self._turn]
            arena.replace()
            self.num_extra_batches += 1
        self._turn = (self._arenas.index(arena) + 1) % len(self._arenas)
        tensors = _tensors(landed)
        with self._stream.entered():
            outs = arena.cut([self._spec(tensor) for tensor in tensors])
        for tensor, out in zip(tensors, outs, strict=True):
            self._stream.queue(self._convert, tensor, out)
        return _with_tensors(landed, outs)

    def _in_turn(self) -> list[Arena]:
        return [*self._arenas[self._turn :], *self._arenas[: self._turn]]

    def _spec(self, tensor: torch.Tensor) -> TensorSpec:
        if self._normaliser is None or not self._normaliser.takes(tensor):
            return TensorSpec.of(tensor)
        return TensorSpec(shape=tuple(tensor.shape), dtype=self._normaliser.dtype, channels_last=self._channels_last)

    def _copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        target.copy_(source, non_blocking=self._stream.is_async)

    def _convert(self, tensor: torch.Tensor, out: torch.Tensor) -> None:
        if self._normaliser is None or not self._normaliser.takes(tensor):
            out.copy_(tensor)
        else:
            self._normaliser.write(tensor, out)


def _tensors(batch: Any) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []
    map_tensors(batch, tensors.append)
    return tensors


def _with_tensors(batch: Any, tensors: list[torch.Tensor]) -> Any:
    following = iter(tensors)
    return map_tensors(batch, lambda _: next(following))
