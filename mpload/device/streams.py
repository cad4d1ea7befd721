"""Queues of work on a device, beside the one that the consumer's work goes to.

Events order the two; the host waits for neither.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch

__all__ = ["AcceleratorStream", "InlineStream", "Mark", "SideStream", "side_stream"]


class Mark(Protocol):
    """A point in a queue."""

    def query(self) -> bool:
        """Say whether all work before it is done."""

    def synchronize(self) -> None:
        """Wait, on the host, until it is."""


class SideStream(Protocol):
    """A queue of work beside the consumer's."""

    is_async: bool
    """Whether work that was queued may still be under way when the call returns."""

    def queue(self, work: Callable[..., object], *tensors: torch.Tensor) -> None:
        """Queue what `work(*tensors)` does, copies or kernels. Nothing here keeps the tensors' memory."""

    def entered(self) -> AbstractContextManager[None]:
        """Queue here what is called within, behind all that was queued before."""

    def mark(self) -> Mark:
        """Return the point that the queue has reached."""

    def follow_consumer(self) -> None:
        """Begin what is queued here from now on only when what the consumer has queued so far is done."""

    def lead_consumer(self, mark: Mark) -> None:
        """Begin what the consumer queues from now on only when `mark` is reached."""

    def lend(self, tensor: torch.Tensor) -> None:
        """Have torch's allocator use the memory of `tensor` again only when the consumer's work is done with it."""


class _Reached:
    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class InlineStream:
    """No queue at all: work is done when its call returns, or in the order of the consumer's own."""

    is_async = False

    def queue(self, work: Callable[..., object], *tensors: torch.Tensor) -> None:
        """Do it."""
        work(*tensors)

    def entered(self) -> AbstractContextManager[None]:
        """Change nothing."""
        return nullcontext()

    def mark(self) -> Mark:
        """Return a point that is reached."""
        return _Reached()

    def follow_consumer(self) -> None:
        """Change nothing."""

    def lead_consumer(self, mark: Mark) -> None:
        """Change nothing."""

    def lend(self, tensor: torch.Tensor) -> None:
        """Change nothing."""


class AcceleratorStream:
    """A stream of an accelerator, by the generic API of torch."""

    is_async = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module = torch.get_device_module(device)
        self._stream = torch.Stream(device=device)

    def queue(self, work: Callable[..., object], *tensors: torch.Tensor) -> None:
        """Launch it on the stream."""
        with self.entered():
            work(*tensors)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make the stream the current one; the device that was current stays so afterwards."""
        index = self._module.current_device()
        consumer = torch.accelerator.current_stream(self._device)
        torch.accelerator.set_stream(self._stream)
        try:
            yield
        finally:
            torch.accelerator.set_stream(consumer)
            self._module.set_device(index)

    def mark(self) -> Mark:
        """Record an event."""
        return self._stream.record_event()

    def follow_consumer(self) -> None:
        """Wait, on the device, for an event of the stream that is current."""
        self._stream.wait_event(torch.accelerator.current_stream(self._device).record_event())

    def lead_consumer(self, mark: Mark) -> None:
        """Make the stream that is current wait, on the device."""
        if not isinstance(mark, torch.Event):
            raise TypeError(f"a mark of this stream is an event, got {type(mark).__name__}")
        torch.accelerator.current_stream(self._device).wait_event(mark)

    def lend(self, tensor: torch.Tensor) -> None:
        """Tell the allocator of the stream that is current, where that is not the tensor's own."""
        if tensor.device == self._device:
            for part in _parts(tensor):
                part.record_stream(torch.accelerator.current_stream(self._device))


_SPARSE_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors that hold the memory of one: those of a sparse one, which has none itself."""
    if tensor.layout in _SPARSE_PARTS:
        return [getattr(tensor, name)() for name in _SPARSE_PARTS[tensor.layout]]
    return [tensor]


def side_stream(device: torch.device) -> SideStream:
    """Return a stream of `device`, or none where it has no streams (CPU, MPS)."""
    return InlineStream() if device.type in {"cpu", "mps"} else AcceleratorStream(device)
