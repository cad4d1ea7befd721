"""Map-style datasets whose batches need a `collate_fn`. Workers import this module."""

import errno
import multiprocessing
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from tests.support.map_styles import Sized


class Special(torch.Tensor):
    """A class of tensors of the user."""


@dataclass
class Scene:
    boxes: Any
    caption: str | None


class Scenes(Sized):
    """Samples of varying shape, in a dataclass of the user: no slot of fixed fields can hold them."""

    def __getitem__(self, i: int) -> Scene:
        return Scene(torch.full((i % 4, 4), float(i)), None if i % 3 else f"scene {i}")


class Photos(Sized):
    def __getitem__(self, i: int) -> Any:
        return Image.fromarray(np.full((4, 3 + i, 3), i, np.uint8)), {"id": i, "half": torch.tensor(i).bfloat16()}


class ByName(Sized):
    def __getitem__(self, name: Any) -> str:
        return f"<{name}>"


class Bulk(Sized):
    """Gets the samples of a batch at once."""

    def __getitem__(self, i: int) -> int:
        raise AssertionError("__getitems__ is there to be used")

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [(i, len(indices), torch.rand(1)) for i in indices]


class Informed(Sized):
    """Tells which worker makes a sample."""

    number = -1

    def __getitem__(self, i: int) -> tuple[int, int, int, int]:
        info = torch.utils.data.get_worker_info()
        return (
            (i, self.number, -1, 0)
            if info is None
            else (i, vars(info.dataset).get("number", -1), info.id, info.num_workers)
        )


class Listed:
    """Samples of nested containers."""

    factor = 1

    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int) -> Any:
        return {"number": self.factor * i, "pair": [float(i), (str(i), i % 2 == 0)], "scalar": np.float32(i)}


class AllAtOnce(Sized):
    """Takes a list of indices."""

    def __getitem__(self, indices: Any) -> Any:
        return torch.as_tensor(indices)


class Meeting:
    """Returns the first sample that a worker makes only when all workers are making one."""

    def __init__(self, *, num_workers: int, batch_size: int) -> None:
        self.barrier = multiprocessing.get_context("fork").Barrier(num_workers)
        self.num_samples = num_workers * batch_size
        self.has_met = False

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, i: int) -> int:
        if not self.has_met:
            self.has_met = True
            self.barrier.wait(20)
        info = torch.utils.data.get_worker_info()
        assert info is not None
        return info.id


class Deadly(Sized):
    """Sample 7 always kills its worker."""

    def __getitem__(self, i: int) -> int:
        if i == 7:
            os.kill(os.getpid(), signal.SIGSEGV)
        return i


class DamagedError(Exception):
    """Its `args` are not what its constructor takes."""

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code

    def __str__(self) -> str:
        return f"file {self.code} is damaged"


class OddError(LookupError):
    """Its arguments cannot be sent, and its constructor takes others."""

    def __init__(self, *, where: object) -> None:
        super().__init__(where)
        self.level = 5


class Unlucky(Sized):
    """Fails in each batch of five, each time in another way."""

    def __getitem__(self, i: int) -> int:
        match i:
            case 2:
                raise DamagedError(3)
            case 7:
                raise FileNotFoundError(errno.ENOENT, "not there", "a.jpg")
            case 12:
                raise StopIteration
            case 17:
                raise OddError(where=object())
            case 21:
                raise NotImplementedError
        return i


def number_dataset(worker: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    assert (info.id, info.seed) == (worker, torch.initial_seed())
    vars(info.dataset)["number"] = worker


def as_list(samples: list[Any]) -> list[Any]:
    return samples


def mixed_up(samples: Sequence[Any]) -> tuple[list[Any], Any]:
    """Draws random numbers, as mixup does."""
    assert torch.utils.data.get_worker_info() is None
    return list(samples), torch.rand(2)


def picky(samples: list[Any]) -> list[Any]:
    if 7 in samples:
        raise LookupError("seven")
    return samples


def deadly(samples: list[Any]) -> list[Any]:
    if 7 in samples:
        os.kill(os.getpid(), signal.SIGSEGV)
    return samples


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, Mapping):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)
