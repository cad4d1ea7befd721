# ruff: noqa: SLF001  these classes are parts of MPLoader
"""One iteration of an `MPLoader`, as its user and its device prefetcher see it."""

import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError

__all__ = ["HostSide", "Iterated", "Iteration", "OnHost"]


class HostSide(Protocol):
    """What `OnHost` needs of an `MPLoader`."""

    @property
    def _first_place(self) -> int: ...

    def _iterate_on_host(self) -> Iterator[Any]: ...

    def _set_epoch_on_host(self, epoch: int) -> None: ...

    def _state_on_host(self) -> dict[str, Any]: ...

    def _load_state_on_host(self, state_dict: Mapping[str, Any]) -> None: ...

    def _lock_slot(self, address: int) -> NDArray[np.uint8] | None: ...


class Iterated(Protocol):
    """What an `Iteration` needs of an `MPLoader`."""

    _iteration: int

    def _begin(self) -> Iterator[Any]: ...

    def _take(self, batches: Iterator[Any]) -> Any: ...


class OnHost:
    """A loader as its own prefetcher sees it: batches stay on the host. Does not keep the loader alive."""

    def __init__(self, loader: HostSide) -> None:
        self._loader: HostSide = weakref.proxy(loader)

    def __iter__(self) -> Iterator[Any]:
        return self._loader._iterate_on_host()

    def set_epoch(self, epoch: int) -> None:
        """Fix the epoch that the next iteration reads."""
        self._loader._set_epoch_on_host(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the run stands, counting the batches that are on their way to the device."""
        return self._loader._state_on_host()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue where a state was taken."""
        self._loader._load_state_on_host(state_dict)

    def _lock_slot(self, address: int) -> NDArray[np.uint8] | None:
        return self._loader._lock_slot(address)

    @property
    def _first_place(self) -> int:
        return self._loader._first_place


class Iteration(Iterator[Any]):
    """One iteration of a loader, which lives as long as this is in use; its epoch begins with the first batch."""

    def __init__(self, loader: Iterated) -> None:
        self._loader = loader
        self._batches: Iterator[Any] | None = None
        self._number = loader._iteration

    def __next__(self) -> Any:
        if self._number != self._loader._iteration:
            raise ArgumentError("a newer iteration of this loader was begun, or it was released: use that one")
        if self._batches is None:
            self._batches = self._loader._begin()
        return self._loader._take(self._batches)
