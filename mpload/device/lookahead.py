"""Takes batches from a loader, and decodes the images of the next one while the caller uses a batch."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from mpload.device.unpacking import Begun, Unpacker
from mpload.errors import SampleError

__all__ = ["Lookahead"]

State = TypeVar("State")
"""What the loader says of itself after a batch."""


class _Taken(NamedTuple, Generic[State]):
    """A batch taken from the loader, or the error that it raised instead."""

    begun: Begun | None
    error: Exception | None
    state: State | None


class Lookahead(Iterator[Begun], Generic[State]):
    """The batches of a loader whose images are being decoded.

    If a thread decodes them, `look_ahead` begins with the next batch. Call it once the batch before has been copied,
    because a loader may fill the same tensors again. An error of the loader is raised when its turn comes.

    Args:
        batches: the batches.
        unpacker: decodes their images.
        state_after: returns what the loader says of itself after the batch that it yielded last.
    """

    def __init__(self, batches: Iterator[Any], *, unpacker: Unpacker, state_after: Callable[[], State]) -> None:
        self.state: State | None = None
        """What the loader said of itself after the batch that was returned, or failed, last."""
        self._batches = batches
        self._unpacker = unpacker
        self._state_after = state_after
        self._taken: deque[_Taken[State]] = deque()
        self._looks_ahead = False

    @property
    def num_ahead(self) -> int:
        """Number of batches that were taken from the loader, but not returned."""
        return sum(taken.begun is not None for taken in self._taken)

    def __next__(self) -> Begun:
        if not self._taken:
            self._take()
        first = self._taken.popleft()
        self.state = first.state
        self._looks_ahead = first.begun is not None and bool(first.begun.images) and self._unpacker.is_async
        if first.begun is not None:
            return first.begun
        try:
            raise first.error or StopIteration
        finally:
            del first  # the traceback of the error refers to this frame

    def look_ahead(self) -> None:
        """Begin to decode the next batch, if a thread decoded the images of the one that was returned last."""
        if self._looks_ahead and not self._taken:
            self._take()

    def _take(self) -> None:
        try:
            begun = self._unpacker.begin(next(self._batches))
        except SampleError as raised:  # only this batch has failed
            self._taken.append(_Taken(None, raised, self._state_after()))
        except Exception as raised:  # noqa: BLE001  StopIteration too
            self._taken.append(_Taken(None, raised, self.state))
        else:
            self._taken.append(_Taken(begun, None, self._state_after()))

    def close(self) -> None:
        """Wait until no more images are being decoded."""
        while self._taken:
            taken = self._taken.popleft()
            if taken.begun is not None:
                self._unpacker.wait(taken.begun)
