"""Map-style datasets for tests. Workers import this module, so it imports little."""

import os
import random
import signal
import time
from collections import OrderedDict
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tests.support.decoders import UnspeakableError, deep_function


class Pair(NamedTuple):
    image: Any
    label: int


class Sized:
    def __init__(self, num_samples: int = 23) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples


class Tuples(Sized):
    def __getitem__(self, i: int) -> Any:
        return np.full((3, 4), i, np.uint8), i, float(i), f"name {i}", np.float32(i), i % 2 == 0


class Dicts(Sized):
    def __getitem__(self, i: int) -> Any:
        inner = OrderedDict(mask=np.full((2, 2), i, np.int16), note=b"x" * i)
        return {"image": np.full((3, 4, 2), i).transpose(2, 0, 1), "more": inner, "list": [i, (i, str(i))]}


class Named(Sized):
    def __getitem__(self, i: int) -> Pair:
        return Pair(np.arange(6.0).reshape(2, 3) + i, i)


class Texts(Sized):
    def __getitem__(self, i: int) -> str:
        return f"\N{GREEK SMALL LETTER ALPHA} {i}"


class Growing(Sized):
    """Images whose size is the same within each batch of five, but differs between batches."""

    def __getitem__(self, i: int) -> Any:
        return np.full((2 + i // 5, 3), i), i


class Tensors(Sized):
    def __getitem__(self, i: int) -> Any:
        import torch

        return torch.full((3, 4, 2), i).permute(2, 0, 1), torch.tensor(i, dtype=torch.float16)


class Drawn(Sized):
    """Draws from the generators that datasets use, with `with_torch` also from torch's."""

    def __init__(self, *, with_torch: bool = False) -> None:
        super().__init__()
        self.with_torch = with_torch

    def __getitem__(self, i: int) -> Any:
        drawn = np.random.rand(2), random.random(), opencv_random()  # noqa: NPY002
        return i, torch_random() if self.with_torch else 0, *drawn


def opencv_random() -> Any:
    import cv2

    return cv2.randu(np.empty((2, 1)), 0, 1)  # type: ignore[call-overload]


def torch_random() -> Any:
    import torch

    return torch.rand(3)


class Odd(Sized):
    """Samples of the same shape, except sample 7."""

    def __getitem__(self, i: int) -> Any:
        return np.zeros(3 if i == 7 else 2)


class Broken(Sized):
    def __getitem__(self, i: int) -> int:
        if i == 7:
            raise KeyError("seven")
        return i


class Killing(Sized):
    """Kills the worker that makes sample 13, once."""

    def __init__(self, once: Path) -> None:
        super().__init__()
        self.once = once

    def __getitem__(self, i: int) -> int:
        if i == 13 and not self.once.exists():
            self.once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return i


class Changing(Sized):
    """Samples of one form within each batch of five; the keys, the types and the number of axes change in between."""

    def __getitem__(self, i: int) -> Any:
        value = np.full((2,) * (i // 5), i)
        match i // 5:
            case 0 | 3:
                return {"a": value, "text": str(i)}
            case 1:
                return {"a": value, "text": str(i), "b": i}
            case _:
                return {"a": float(i), "text": [str(i), i % 2]}


class Counted(Sized):
    """Writes down which samples are read."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self.log = log

    def __getitem__(self, i: int) -> int:
        with self.log.open("a") as file:
            file.write(f"{i}\n")
        return i


class FirstBroken(Sized):
    """The first nine samples cannot be made."""

    def __getitem__(self, i: int) -> int:
        if i < 9:
            raise OSError("cannot be read")
        return i


class Strange(Sized):
    def __getitem__(self, i: int) -> Any:
        return {"what": object()}


class Unstackable(Sized):
    """Samples are tensors without a place in one array."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def __getitem__(self, i: int) -> Any:
        import torch

        match self.kind:
            case "sparse":
                return torch.eye(3).to_sparse()
            case "compressed":
                return torch.eye(3).to_sparse_csr()
            case _:
                layout = torch.jagged if self.kind == "jagged" else torch.strided
                return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)


class Sleeping(Sized):
    """Sleeps for each sample, like a slow disk."""

    def __getitem__(self, i: int) -> int:
        time.sleep(0.01)
        return i


class Computing(Sized):
    def __getitem__(self, i: int) -> int:
        ends = time.thread_time() + 0.005
        while time.thread_time() < ends:
            pass
        return i


class DeeplyBroken(Sized):
    def __getitem__(self, i: int) -> int:
        deep_function(i)
        return i


class Unspeakable(Sized):
    def __getitem__(self, i: int) -> int:
        if i == 7:
            raise UnspeakableError(1, 2)
        return i


class Halves(Sized):
    """Tensors of dtypes that NumPy lacks."""

    def __getitem__(self, i: int) -> Any:
        import torch

        values = torch.arange(i, i + 6, dtype=torch.float32).reshape(2, 3) / 8
        eighth = values.to(torch.float8_e4m3fn)
        return values.bfloat16().T, eighth, torch.tensor(i, dtype=torch.bfloat16), values[: 1 + i // 5].bfloat16()


class Mixed(Sized):
    """Numbers that alternate between int, float and bool, both within a batch and from batch to batch."""

    def __getitem__(self, i: int) -> Any:
        return i if i % 2 else i + 0.1, [2**60 + i, i / 3, True][(i // 5) % 3], (True, 2, 3)[i % 3]


class WithGrad(Sized):
    def __getitem__(self, i: int) -> Any:
        import torch

        return {"x": torch.full((2,), float(i), requires_grad=True)}


class Turning(Sized):
    """Floats, except sample 7, which is an int."""

    def __getitem__(self, i: int) -> Any:
        return i if i == 7 else float(i)


class Plus:
    """A transform with an attribute."""

    def __init__(self, number: int) -> None:
        self.number = number


class Added(Sized):
    def __init__(self, num_samples: int = 20) -> None:
        super().__init__(num_samples)
        self.transforms = [Plus(0)]

    def __getitem__(self, i: int) -> int:
        return i + self.transforms[0].number


class Split(StrEnum):
    TRAIN = "train"
    TEST = "test"


class Labels(list[Any]):
    """A list of a class of the user."""


class Noted(dict[str, Any]):
    """A dict with an attribute, which `default_collate` copies from the first sample of a batch."""


def noted(i: int) -> Noted:
    sample = Noted(x=i)
    sample.note = i  # type: ignore[attr-defined]
    return sample


def special_tensor(i: int) -> Any:
    import torch

    from tests.support.whole_batches import Special

    return torch.full((2,), i).as_subclass(Special)


FORMS: dict[str, Callable[[int], Any]] = {
    "a dtype that differs": lambda i: np.full(3, i, np.float64 if i == 17 else np.float32),
    "a number of another dtype": lambda i: (np.float64 if i == 17 else np.float32)(i),
    "keys of dicts in lists": lambda i: [{"a": i, "b": i}] if i < 10 else [{"a": i}],
    "the order of keys": lambda i: {"a": 1, "b": 2} if i < 10 else {"b": 2, "a": 1},
    "a class of strings": lambda i: (Split.TRAIN, Split.TEST)[i % 2],
    "a class of lists": lambda i: Labels([i]),
    "a dict with attributes": noted,
    "a read-only dict": lambda i: MappingProxyType({"a": i}),
    "tuples and named tuples": lambda i: Pair(i, i) if i < 10 else (i, i),
    "lists and tuples": lambda i: ("s", i) if i < 10 else ["s", i],
    "classes of dicts": lambda i: {"a": i} if i < 10 else OrderedDict(a=i),
    "a class of tensors": special_tensor,
}
"""Samples that no array holds as they are, or that change their form, by what is special about them."""


class Formed(Sized):
    def __init__(self, form: str) -> None:
        super().__init__(20)
        self.form = form

    def __getitem__(self, i: int) -> Any:
        return FORMS[self.form](i)


class Unlike(Sized):
    """Arrays that have one shape in each batch of five, except sample 17."""

    def __getitem__(self, i: int) -> Any:
        return np.zeros(99 if i == 17 else i // 5)


class Alternating(Sized):
    """Arrays and tensors, which `default_collate` does not stack if the first one is a tensor."""

    def __getitem__(self, i: int) -> Any:
        import torch

        return np.zeros(2) if i % 2 else torch.zeros(2, dtype=torch.float64)
