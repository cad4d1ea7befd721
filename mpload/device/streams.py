"""Side streams: queues of device work, separate from the consumer's stream.

Events order the two queues. The host waits for neither.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

__all__ = ["AcceleratorStream", "InlineStream", "Mark", "SideStream", "side_stream"]


class Mark(Protocol):
    """A point in a queue of work."""

    def query(self) -> bool:
        """Return whether all work before this point is done."""

    def synchronize(self) -> None:
        """Block the host until all work before this point is done."""


class SideStream(Protocol):
    """A queue of work besides the consumer's stream, which is torch's current stream."""

    is_async: bool
    """Whether queued work may still be running when the call returns."""

    def queue(self, work: Callable[..., object], *tensors: torch.Tensor) -> None:
        """Queue the copies or kernels of `work(*tensors)`. Call it inside `entered()`.

        The caller must keep the tensors until they are done.
        """

    def entered(self) -> AbstractContextManager[None]:
        """Return a context in which all device work goes to the end of this queue."""

    def mark(self) -> Mark:
        """Return the current end of the queue."""

    def follow_consumer(self) -> None:
        """Let later work of this queue start only after all work that the consumer has queued so far."""

    def lead_consumer(self, mark: Mark) -> None:
        """Let later work of the consumer start only after `mark`."""

    def lend(self, tensor: torch.Tensor) -> None:
        """Keep torch's allocator from reusing the memory of `tensor` before the consumer's work with it is done."""


class _Reached:
    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class InlineStream:
    """No queue of its own: work is done at once, or goes to the consumer's stream."""

    is_async = False

    def queue(self, work: Callable[..., object], *tensors: torch.Tensor) -> None:
        """Do the work now."""
        work(*tensors)

    def entered(self) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return nullcontext()

    def mark(self) -> Mark:
        """Return a mark that has been reached."""
        return _Reached()

    def follow_consumer(self) -> None:
        """Do nothing."""

    def lead_consumer(self, mark: Mark) -> None:
        """Do nothing."""

    def lend(self, tensor: torch.Tensor) -> None:
        """Do nothing."""


class _Entered:
    """Makes a stream current. A class, because `contextmanager` would double the host's time for it."""

    __slots__ = ("_consumer", "_index", "_module", "_number", "_stream")

    def __init__(self, stream: torch.Stream, number: int | None, module: Any) -> None:
        self._stream = stream
        self._number = number
        self._module = module

    def __enter__(self) -> None:
        self._index = self._module.current_device()
        self._consumer = torch.accelerator.current_stream(self._number)
        torch.accelerator.set_stream(self._stream)  # also makes its device current

    def __exit__(self, *_: object) -> None:
        torch.accelerator.set_stream(self._consumer)
        if self._module.current_device() != self._index:
            self._module.set_device(self._index)


class AcceleratorStream:
    """A stream of an accelerator, through torch's generic API."""

    is_async = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._number = device.index
        """Names the device in calls to torch, which look up the accelerator if they get a `torch.device`."""
        self._module: Any = torch.get_device_module(device)
        self._stream = torch.Stream(device=device)

    def queue(self, work: Callable[..., object], *tensors: torch.Tensor) -> None:
        """Launch the work on the current stream, which is this one inside `entered()`."""
        work(*tensors)

    def entered(self) -> AbstractContextManager[None]:
        """Return a context that makes this stream current, and restores the previous stream and device afterwards."""
        return _Entered(self._stream, self._number, self._module)

    def mark(self) -> Mark:
        """Record an event."""
        return self._stream.record_event()

    def follow_consumer(self) -> None:
        """Make the device wait for an event on the current stream."""
        self._stream.wait_event(torch.accelerator.current_stream(self._number).record_event())

    def lead_consumer(self, mark: Mark) -> None:
        """Make the current stream wait for `mark` on the device."""
        if not isinstance(mark, torch.Event):
            raise TypeError(f"mark must be a torch.Event, got {type(mark).__name__}")
        torch.accelerator.current_stream(self._number).wait_event(mark)

    def lend(self, tensor: torch.Tensor) -> None:
        """Tell the allocator that the current stream uses the tensor, in addition to the tensor's own stream."""
        if tensor.device == self._device:
            for part in _parts(tensor):
                part.record_stream(torch.accelerator.current_stream(self._number))


_SPARSE_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors that own the memory of `tensor`: the parts of a sparse tensor, else the tensor itself."""
    if tensor.layout in _SPARSE_PARTS:
        return [getattr(tensor, name)() for name in _SPARSE_PARTS[tensor.layout]]
    return [tensor]


def side_stream(device: torch.device) -> SideStream:
    """Return a side stream of `device`; an `InlineStream` if the device has no streams (CPU, MPS)."""
    return InlineStream() if device.type in {"cpu", "mps"} else AcceleratorStream(device)
