"""One iteration of an `MPLoader`, as its user and its device prefetcher see it."""

import weakref
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError

__all__ = ["HostLoader", "Iteration", "OnHost"]


class HostLoader(Protocol):
    """What an iteration asks of its loader."""

    iteration: int
    """Number of the iteration that is under way."""

    def iterate_on_host(self) -> Iterator[Any]:
        """Begin an iteration whose batches stay on the host."""
        ...

    def begin(self) -> Iterator[Any]:
        """Begin the next epoch."""
        ...

    def take(self, batches: Iterator[Any]) -> Any:
        """Return the next batch."""
        ...

    def state_on_host(self) -> dict[str, Any]:
        """Return where the run stands, counting the batches that are on their way to a device."""
        ...

    def lock_slot(self, address: int) -> NDArray[np.uint8] | None:
        """Return the part of a slot that holds `address`, to be pinned."""
        ...

    @property
    def first_place(self) -> int:
        """Place of this rank's first sample in a global batch."""
        ...


class OnHost:
    """A loader as its own prefetcher sees it, which does not keep it alive."""

    def __init__(self, loader: HostLoader) -> None:
        self._loader: HostLoader = weakref.proxy(loader)

    def __iter__(self) -> Iterator[Any]:
        return self._loader.iterate_on_host()

    def state_dict(self) -> dict[str, Any]:
        """Return where the run stands, counting the batches that are on their way to the device."""
        return self._loader.state_on_host()

    def lock_slot(self, address: int) -> NDArray[np.uint8] | None:
        """Return the part of a slot that holds `address`, to be pinned."""
        return self._loader.lock_slot(address)

    @property
    def first_place(self) -> int:
        """Place of this rank's first sample in a global batch."""
        return self._loader.first_place


class Iteration(Iterator[Any]):
    """One iteration of a loader, which lives as long as this is in use; its epoch begins with the first batch."""

    def __init__(self, loader: HostLoader) -> None:
        self._loader = loader
        self._batches: Iterator[Any] | None = None
        self._number = loader.iteration

    def __next__(self) -> Any:
        if self._number != self._loader.iteration:
            raise ArgumentError("a newer iteration of this loader was begun, or it was released: use that one")
        if self._batches is None:
            self._batches = self._loader.begin()
        return self._loader.take(self._batches)
