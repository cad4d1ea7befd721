# ruff: noqa: SLF001  these classes are parts of MPLoader
"""One iteration of an `MPLoader`, as seen by its user and by its device prefetcher."""

import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError, SampleError, ServerError, TooManyBadSamples
from mpload.loader.sample_errors import is_outage

if TYPE_CHECKING:
    from mpload.loader.engine import Engine
    from mpload.loader.epochs import Epoch
    from mpload.telemetry.counting import Telemetry
    from mpload.transport.pool import WorkerPool

__all__ = ["Ahead", "HostSide", "Iterated", "Iteration", "OnHost", "Turns"]


class Turns:
    """Counts the iterations of a loader and its copies. Only the newest one can go on, in one thread at a time."""

    def __init__(self) -> None:
        self.number = 0
        self._inside: dict[str, int] = {}
        """The thread that is inside `alone`, if there is one. A lock would stay locked if Ctrl-C came just after it."""

    def __reduce__(self) -> tuple[type["Turns"], tuple[()]]:
        return Turns, ()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other threads out.

        Raises:
            ArgumentError: Another thread is inside.
        """
        thread = threading.get_ident()
        if self._inside.setdefault("thread", thread) != thread:
            raise ArgumentError(
                "another thread is waiting for a batch of this loader. Iterate in one thread at a time, or make a "
                "loader for each"
            )
        try:
            yield
        finally:
            self._inside.pop("thread", None)


@dataclass(slots=True)
class Ahead:
    """What a `DevicePrefetcher` has taken from a loader, but not handed over. Both are None without a prefetcher."""

    num_batches: int | None = None
    state: dict[str, Any] | None = None
    """The state of the run without these batches."""


class HostSide(Protocol):
    """What `OnHost` needs of an `MPLoader`."""

    _ahead: Ahead

    @property
    def _first_place(self) -> int: ...

    def _iterate_on_host(self) -> Iterator[Any]: ...

    def _set_epoch_on_host(self, epoch: int) -> None: ...

    def _state_on_host(self) -> dict[str, Any]: ...

    def _updated_state(self, state_dict: dict[str, Any]) -> dict[str, Any]: ...

    def _load_state_on_host(self, state_dict: Mapping[str, Any]) -> None: ...

    def _lock_slot(self, address: int) -> NDArray[np.uint8] | None: ...


class Iterated(Protocol):
    """What an `Iteration` needs of an `MPLoader`."""

    _turns: Turns
    _epoch: "Epoch | None"
    _num_received: int
    _rest: "Epoch | None"
    _telemetry: "Telemetry"
    _engine: "Engine | None"

    @property
    def _pool(self) -> "WorkerPool | None": ...

    @property
    def num_workers(self) -> int:
        """Number of worker processes."""
        ...

    def _state_on_host(self) -> dict[str, Any]: ...

    def _load_state_on_host(self, state_dict: Mapping[str, Any]) -> None: ...

    def _begin(self) -> Iterator[Any]: ...


class OnHost:
    """A loader as seen by its own prefetcher: batches stay on the host. It does not keep the loader alive."""

    def __init__(self, loader: HostSide) -> None:
        self._loader: HostSide = weakref.proxy(loader)

    def __iter__(self) -> Iterator[Any]:
        return self._loader._iterate_on_host()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration reads."""
        self._loader._set_epoch_on_host(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the run. Batches still on their way to the device count as received."""
        return self._loader._state_on_host()

    def _updated_state(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        return self._loader._updated_state(state_dict)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self._loader._load_state_on_host(state_dict)

    def _lock_slot(self, address: int) -> NDArray[np.uint8] | None:
        return self._loader._lock_slot(address)

    @property
    def _ahead(self) -> Ahead:
        return self._loader._ahead

    @property
    def _first_place(self) -> int:
        return self._loader._first_place


class Iteration(Iterator[Any]):
    """One iteration of a loader. It keeps the loader alive. Its epoch begins when the first batch is requested."""

    def __init__(self, loader: Iterated) -> None:
        self._loader = loader
        self._batches: Iterator[Any] | None = None
        self._number = loader._turns.number
        self._epoch: Epoch | None = None
        self._has_other_next = False  # whether `set_epoch` has been called since it began

    def __next__(self) -> Any:
        asked = time.monotonic()
        with self._loader._turns.alone():
            self._check()
            if self._batches is None or self._loader._rest is not None:
                self._batches = self._loader._begin()
                self._epoch = self._loader._epoch
            try:
                return self._take(self._batches, asked=asked)
            except SampleError as error:
                if is_outage(error):
                    self._loader._num_received -= 1
                    self._go_back()
                raise
            except ServerError:
                self._go_back()
                raise

    def _check(self) -> None:
        if self._number != self._loader._turns.number:
            raise ArgumentError(
                "the loader was iterated again, or released, since this iteration began. Use the newest iteration"
            )

    def _take(self, batches: Iterator[Any], *, asked: float) -> Any:
        """Return the next batch, requested at `asked`. No reference is kept: its slot is recycled."""
        loader, telemetry = self._loader, self._loader._telemetry
        telemetry.asked = asked
        if asked >= telemetry.due:
            telemetry.notify(loader._pool, num_workers=loader.num_workers)
        if loader._engine is not None:
            loader._engine.adjust(telemetry.waited)
        try:
            batch = next(batches)
        except BaseException as error:
            telemetry.count_wait(asked)
            if isinstance(error, StopIteration):
                self._check()  # another thread may have ended it
            if isinstance(error, SampleError | TooManyBadSamples):
                loader._num_received += 1  # otherwise a resumed run would repeat the batch
            elif isinstance(error, StopIteration) and self._has_other_next:
                loader._epoch = None
            raise
        if loader._engine is not None:
            loader._engine.note_layout()
        telemetry.count_batch(asked)
        if loader._epoch is None:  # since `set_epoch`, but the loop goes on
            loader._epoch, self._has_other_next = self._epoch, True
        loader._num_received += 1  # last, so that no interrupt comes between this and the return
        return batch

    def _go_back(self) -> None:
        """Go back to before the batch that has failed. It is made again for the next request, or in a resumed run."""
        self._loader._load_state_on_host(self._loader._state_on_host())
        self._batches, self._number = None, self._loader._turns.number
