"""A map-style dataset as a worker uses it: its random numbers depend on seed, epoch and sample alone."""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from mpload.images.opencv import load_opencv
from mpload.plan.sample_rng import SampleRng
from mpload.samples.held_generators import HeldGenerators, warn_of_copies
from mpload.samples.transforms import seed_opencv

__all__ = ["MapDataset", "SeededDataset"]

_T = TypeVar("_T")
_SAMPLE, _COLLATE = 2, 4  # streams of a sample's randomness; the pipeline of an index uses 0, 1 and 3
_MAX_SEED = 1 << 63
_SEED_STEP = 0x9E37_79B9_7F4A_7C15  # that of splitmix64, so that epochs with seeds of their own do not meet


class MapDataset(Protocol):
    """A map-style dataset, in torch's terms."""

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, sample_id: int, /) -> Any:
        """Return a sample."""
        ...


def _is_of_tensors(dataset: Any) -> bool:
    """Return whether a dataset only returns rows of tensors, so that its generators need no seed."""
    data = sys.modules.get("torch.utils.data")
    if data is None:
        return False
    kind = type(dataset)  # a subclass may do anything
    if kind is data.TensorDataset:
        return all(type(each) is sys.modules["torch"].Tensor for each in dataset.tensors)
    if kind is data.Subset:
        return type(dataset.indices) in {list, range} and _is_of_tensors(dataset.dataset)
    return kind is data.ConcatDataset and all(map(_is_of_tensors, dataset.datasets))


@dataclass(kw_only=True)
class SeededDataset:
    """Calls the user's code with seeded generators: those of `random`, NumPy, OpenCV and (if it is imported) torch.

    Process: copied to each worker. There `torch.utils.data.get_worker_info()` returns the worker's number and dataset,
    except inside `collate`: `default_collate` would then put each tensor into a file of its own in /dev/shm.
    """

    dataset: MapDataset
    num_workers: int = 0
    """The number that `get_worker_info()` returns."""
    worker_init_fn: Callable[[int], object] | None = None
    """Called in each worker with its number, before any other code of the user."""
    base_seed: int = 0
    """The seed in `get_worker_info()` is this one plus the worker's number, in the first epoch."""
    _epoch: int = 0
    """Of an iterable dataset."""
    _worker: int | None = None
    _draws: bool = field(init=False, default=True)
    """Whether the code of the dataset may draw random numbers."""
    _rng: SampleRng = field(default_factory=lambda: SampleRng(seed=0, epoch=0), repr=False)
    _held: dict[int, HeldGenerators] = field(default_factory=dict, repr=False)
    """By the identity of the code that holds them."""

    def __post_init__(self) -> None:
        load_opencv()  # its generator is seeded; workers that are forked from this process share its memory

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def open(self, worker: int) -> None:
        """Prepare worker number `worker`."""
        self._worker = worker
        self._draws = not _is_of_tensors(self.dataset)
        if worker == 0:
            warn_of_copies()
        self._announce(self._info())
        if self.worker_init_fn is not None:
            seed = (self.base_seed + worker) % _MAX_SEED
            random.seed(seed)
            np.random.seed(seed % (1 << 32))  # noqa: NPY002  the generator that datasets draw from
            if (torch := sys.modules.get("torch")) is not None:
                torch.default_generator.manual_seed(seed)
            self.worker_init_fn(worker)

    def sample(self, index: Any, *, seed: int, epoch: int, key: int | None = None) -> Any:
        """Return the sample at `index`. Its random numbers belong to `key`, which is the index itself if None."""
        if not self._draws:
            return self.dataset[index]
        key = index if key is None else key
        return self._seeded(lambda: self.dataset[index], self.dataset, seed=seed, epoch=epoch, key=key, stream=_SAMPLE)

    def samples(self, indices: list[Any], *, seed: int, epoch: int, key: int) -> Any:
        """Return the samples at `indices` from the dataset's `__getitems__`."""
        get: Callable[[list[Any]], Any] = self.dataset.__getitems__  # type: ignore[attr-defined]
        return self._seeded(lambda: get(indices), self.dataset, seed=seed, epoch=epoch, key=key, stream=_SAMPLE)

    def collated(self, collate: Callable[[Any], Any], samples: Any, *, seed: int, epoch: int, key: int) -> Any:
        """Return `collate(samples)`."""
        with self.hidden():
            return self._seeded(lambda: collate(samples), collate, seed=seed, epoch=epoch, key=key, stream=_COLLATE)

    def begun(self, *, epoch: int, key: int, collate: Callable[[Any], Any] | None) -> Any:
        """Return the dataset, to be iterated over with generators seeded once, and another seed in each epoch.

        Those that `collate` holds are seeded too.
        """
        self._epoch = epoch
        self._announce(self._info())
        code = (self.dataset, collate)
        return self._seeded(lambda: self.dataset, code, seed=self.base_seed, epoch=epoch, key=key, stream=_SAMPLE)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Let `get_worker_info()` return None within this context."""
        self._announce(None)
        try:
            yield
        finally:
            self._announce(self._info())

    @contextmanager
    def kept_generators(self) -> Iterator[None]:
        """Restore all generators of this process afterwards, so that making a sample does not affect the script's."""
        self._draws = not _is_of_tensors(self.dataset)  # the user may have changed it since the last batch
        torch = sys.modules.get("torch")
        states = random.getstate(), np.random.get_state(), torch and torch.get_rng_state()  # noqa: NPY002
        try:
            yield
        finally:
            for held in self._held.values():
                held.restore()
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002
            if torch is not None:
                torch.set_rng_state(states[2])

    def _seeded(self, make: Callable[[], _T], code: object, *, seed: int, epoch: int, key: int, stream: int) -> _T:
        """Return the result of `make`, which calls the user's `code`."""
        if (self._rng.seed, self._rng.epoch) != (seed, epoch):
            self._rng = SampleRng(seed=seed, epoch=epoch)
            for each in self._held.values() if self._worker is None else ():  # workers get a copy of what has changed
                each.search_again()
        if (held := self._held.get(id(code))) is None:
            held = self._held[id(code)] = HeldGenerators(code)
        while True:
            if is_held := held.are_seeded():
                rng = self._rng.for_sample(key, stream=stream)
                words = rng.integers(0, 1 << 32, size=3).tolist()  # the same numbers
            else:
                words = self._rng.words_for(key, stream=stream)
            random.seed(words[0])
            np.random.seed(words[1])  # noqa: NPY002  the generator that datasets draw from
            torch = sys.modules.get("torch")
            if torch is not None:
                torch.default_generator.manual_seed(words[2])
            seed_opencv(seed=seed, epoch=epoch, sample_id=key)
            if is_held:
                held.seed(rng)
            made = make()
            if torch is sys.modules.get("torch"):
                return made
            # The call has just imported torch and may have drawn from its unseeded generator. Call it again.
            self._announce(self._info())

    def _info(self) -> Any:
        """Return the `WorkerInfo` of this worker; None outside of workers, and where torch is not loaded."""
        module = sys.modules.get("torch.utils.data._utils.worker")
        if module is None or self._worker is None:
            return None
        seed = (self.base_seed + self._worker + self._epoch * _SEED_STEP) % _MAX_SEED
        return module.WorkerInfo(id=self._worker, num_workers=self.num_workers, seed=seed, dataset=self.dataset)

    def _announce(self, info: Any) -> None:
        module = sys.modules.get("torch.utils.data._utils.worker")
        if module is not None and self._worker is not None:
            module._worker_info = info  # type: ignore[attr-defined]  # noqa: SLF001  torch has no public way
