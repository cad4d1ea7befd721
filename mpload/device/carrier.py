"""Carries batches from the host to a device: over the bus first, then converted into buffers that the user holds."""

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import compress
from typing import Any

import torch
from numpy.typing import NDArray

from mpload.device.normalise import Normaliser
from mpload.device.pinning import Pinner
from mpload.device.staging import Allotment, Arena, BatchMemory, TensorSpec, is_plain, map_tensors, tensors_of
from mpload.device.streams import Mark, SideStream

__all__ = ["Carrier"]

_CPU = torch.device("cpu")
_NUM_COPYING = 2
"""Host batches that copies read from at once."""


class Carrier:
    """Moves one batch after the other, in two steps, both queued on a stream and not waited for.

    `land` copies a batch's bytes into the landing buffer; on the CPU there is none. `settle` converts and copies them
    from there, while fewer than `num_batches` are held, into the memory that is handed out. So the bytes of a batch
    cross the bus while the user still holds all the others.

    On an accelerator that memory is torch's allocator's, asked for on the consumer's stream: a batch is what any tensor
    is that was made there. The CPU's allocator would fault every page in again for each batch; there, and where
    addresses are to stay, batches take turns in arenas.

    Memory: on the device `num_batches` batches as they are handed out and one as it comes; on the host what of two
    batches is not pinned already.
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
    ) -> None:
        has_bus = device.type != "cpu"
        self._device = device
        self._stream = stream
        self._normaliser = normaliser
        self._channels_last = channels_last
        self._lands = has_bus or stream.is_async
        self._pins = has_bus and stream.is_async
        self._pinner = Pinner(device) if self._pins else None
        self._landing = Arena(device)
        self._is_transformed = is_transformed
        """Whether what is settled goes on to a transform on the stream, not to the consumer."""
        kind = Arena if stable_addresses or not has_bus else Allotment
        self._memories: list[BatchMemory] = [kind(device) for _ in range(num_batches)]
        self._turn = 0
        """The memory that has waited longest."""
        self._pinned = [Arena(_CPU, pin_memory=True) for _ in range(_NUM_COPYING if self._pins else 0)]
        self._copying: deque[tuple[Mark, list[torch.Tensor]]] = deque()
        """What is read until its mark is reached, batch by batch, oldest first."""
        self.moved_bytes = 0
        """Bytes of the tensors that have come."""
        self.num_extra_batches = 0
        """Batches that were settled though `num_batches` were held."""

    @property
    def batch_bytes(self) -> int:
        """Memory of the batches that were settled."""
        return sum(memory.num_bytes for memory in self._memories)

    @property
    def landing_bytes(self) -> int:
        """Memory of the landing buffer."""
        return self._landing.num_bytes

    @property
    def pinned_bytes(self) -> int:
        """Pinned host memory of its own."""
        return sum(arena.num_bytes for arena in self._pinned)

    def finish(self) -> None:
        """Wait until all that was queued is done, and let go of the host batches."""
        self._stream.mark().synchronize()
        self._copying.clear()

    def release(self) -> None:
        """Give memory back when all that was queued is done; what is held stays with its holders."""
        self.finish()
        if self._pinner is not None:
            self._pinner.release()
        self._stream.follow_consumer()  # whose work may still use what the allocator gets, and gives to this stream
        for memory in (self._landing, *self._pinned, *self._memories):
            memory.replace()

    def let_go(self) -> None:
        """Let go of host batches whose copies are done."""
        while self._copying and self._copying[0][0].query():
            self._copying.popleft()

    def reclaim(self, *, but: int) -> None:
        """Count memory as free whoever still holds it, but for that which `but` batches settled in last."""
        for number in range(len(self._memories) - but):
            self._memories[(self._turn + number) % len(self._memories)].reclaim()

    def land(self, batch: Any, *, lock: Callable[[int], NDArray[Any] | None]) -> Any:
        """Queue the copies of a batch, which is kept until they are done, and return it as it lies on the device.

        Copies start directly from the slots that `lock` returns, see `Pinner.pin`.

        Waits for the copies of the batch before the last: so the host never gets far ahead of the device, with more and
        more slots in its hands.
        """
        tensors = _plain_tensors(batch)
        self.moved_bytes += sum(tensor.nbytes for tensor in tensors)
        if not self._lands:
            return batch
        while len(self._copying) >= _NUM_COPYING:
            copied, _ = self._copying.popleft()
            copied.synchronize()
        if any(tensor.device.type != "cpu" for tensor in tensors):
            self._stream.follow_consumer()  # who has queued what makes them
        sources = tensors if self._pinner is None else self._staged(tensors, self._pinner, lock)
        with self._stream.entered():
            landed = self._landing.cut([TensorSpec.of(tensor) for tensor in tensors])
        for target, source in zip(landed, sources, strict=True):
            self._stream.queue(self._copy, source, target)
        self._copying.append((self._stream.mark(), tensors))
        with self._user_entered():  # other tensors know best how they are copied, which is waited for
            return _with_tensors(batch, landed, others=lambda tensor: tensor.to(self._device))

    def _staged(
        self, tensors: list[torch.Tensor], pinner: Pinner, lock: Callable[[int], NDArray[Any] | None]
    ) -> list[torch.Tensor]:
        """Return what the bus takes without the host's help: copies in pinned memory of those that lie elsewhere."""
        with self._stream.entered():  # which makes its device the current one
            is_loose = [
                tensor.device.type == "cpu" and not tensor.is_pinned() and not pinner.pin(tensor, lock)
                for tensor in tensors
            ]
        if not any(is_loose):
            return tensors
        self._pinned.reverse()  # now first: the one that was read before the last, which is done
        loose = list(compress(tensors, is_loose))
        staged = iter(self._pinned[0].cut([TensorSpec.of(tensor) for tensor in loose]))
        return [
            next(staged).copy_(tensor) if needs else tensor for tensor, needs in zip(tensors, is_loose, strict=True)
        ]

    def settle(self, landed: Any, *, at_any_cost: bool) -> Any | None:
        """Queue the conversion of a batch that `land` returned, and return it as the user will see it.

        Returns None where all batches are held, or with `at_any_cost` leaves one to its holder and takes new memory.
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
        with self._user_entered():
            outs = memory.cut([self._spec(tensor) for tensor in tensors])
        self._stream.follow_consumer()  # whose work may still use what the memory held before
        for tensor, out in zip(tensors, outs, strict=True):
            self._stream.queue(self._convert, tensor, out)
        return _with_tensors(landed, outs)

    def _user_entered(self) -> AbstractContextManager[None]:
        """Make the stream on which a settled batch is used the current one."""
        return self._stream.entered() if self._is_transformed else nullcontext()

    def _in_turn(self) -> list[BatchMemory]:
        return [*self._memories[self._turn :], *self._memories[: self._turn]]

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
