"""Decoders and transforms of the tests that workers import: a module that imports little."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray


def number_in(data: bytes) -> NDArray[np.int64]:
    """Decode one sample of `numbers_index`: its own number."""
    return np.frombuffer(data, np.int64)


def number_without_dimensions(data: bytes) -> NDArray[np.int64]:
    return np.array(np.frombuffer(data, np.int64)[0])


def slow_number(data: bytes) -> NDArray[np.int64]:
    time.sleep(0.002)
    return np.frombuffer(data, np.int64)


def broken(data: bytes) -> NDArray[np.int64]:
    number = np.frombuffer(data, np.int64)
    if number[0] % 20 == 7:
        raise ValueError("no such number")
    return number


def add_noise(image: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    return image.astype(np.float32) + np.float32(rng.random())


def changing(image: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    return image[: 40 + int(rng.integers(0, 8))]


def large_number(data: bytes) -> NDArray[np.int64]:
    """Decode a sample of `numbers_index` into an array of 2 MiB."""
    return np.full(1 << 18, np.frombuffer(data, np.int64)[0])


def greedy_number(data: bytes) -> NDArray[np.int64]:
    """Take more memory than a small container has for sample 13."""
    number = np.frombuffer(data, np.int64)
    if number[0] == 13:
        np.ones(1 << 30, np.uint8)
    return number


def drawn_number(data: bytes) -> NDArray[np.float64]:
    """Decode a sample's number, and draw from the global generators of `random` and NumPy."""
    drawn = [random.random(), random.gauss(0, 1), *np.random.rand(2), *np.random.randn(1)]  # noqa: NPY002
    return np.array([np.frombuffer(data, np.int64)[0], *drawn])


def sometimes_drawn(data: bytes) -> NDArray[np.float64]:
    """Draw for every third sample only."""
    number = int(np.frombuffer(data, np.int64)[0])
    return np.array([number, np.random.rand() if number % 3 == 2 else -1.0])  # noqa: NPY002


def torch_drawn(data: bytes) -> NDArray[np.float64]:
    """Draw from torch, which is imported only here, as many libraries do."""
    import torch

    return np.array([np.frombuffer(data, np.int64)[0], *torch.rand(2).tolist()])


def torch_drawing(array: NDArray[Any]) -> NDArray[np.float64]:
    """Transform an array as `torch_drawn` does, after changing it in place."""
    import torch

    array = array.copy() if not array.flags.writeable else array
    array += 1
    return np.array([array[0], *torch.rand(2).tolist()])


def own_seed(data: bytes) -> NDArray[np.float64]:
    """Seed the global generator anew, as the images of a pair often are."""
    number = int(np.frombuffer(data, np.int64)[0])
    np.random.seed(number)  # noqa: NPY002
    return np.array([number, np.random.rand()])  # noqa: NPY002


def failing_now_and_then(data: bytes) -> NDArray[np.int64]:
    if random.random() < 0.2:
        raise ValueError("by chance")
    return np.frombuffer(data, np.int64)


def leaving_now_and_then(data: bytes) -> NDArray[np.int64]:
    if random.random() < 0.2:
        raise SystemExit(1)
    return np.frombuffer(data, np.int64)


def one_normal(data: bytes) -> NDArray[np.float64]:
    """Draw one normal number: `random.gauss` makes two at once, and keeps the second one."""
    return np.array([np.frombuffer(data, np.int64)[0], random.gauss(0, 1)])


def drawn_with_rng(data: bytes, rng: np.random.Generator) -> NDArray[np.float64]:
    return np.array([np.frombuffer(data, np.int64)[0], rng.random(), random.random()])


class UnspeakableError(Exception):
    """Takes two arguments, holds what cannot be pickled, and cannot say what it is."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(first, second)
        self.lock = threading.Lock()

    def __str__(self) -> str:
        raise ZeroDivisionError("no words")


def deep_function(number: int) -> None:
    if number % 20 == 7:
        raise KeyError("deep", number)


def deeply_broken(data: bytes) -> NDArray[np.int64]:
    deep_function(int(np.frombuffer(data, np.int64)[0]))
    return np.frombuffer(data, np.int64)


def unspeakable(data: bytes) -> NDArray[np.int64]:
    if np.frombuffer(data, np.int64)[0] % 20 == 7:
        raise UnspeakableError(1, 2)
    return np.frombuffer(data, np.int64)


def always_unspeakable(data: bytes) -> NDArray[np.int64]:
    raise UnspeakableError(1, len(data))


def wordy(data: bytes) -> NDArray[np.int64]:
    raise ValueError("x" * 10_000_000)


def immense(data: bytes) -> NDArray[np.int64]:
    raise ValueError(10**5000)  # so long that Python refuses to write it down


def too_deep(data: bytes) -> NDArray[np.int64]:
    def descend(levels: int, values: str) -> None:
        if not levels:
            raise ValueError("at the bottom: " + values)
        descend(levels - 1, values)

    descend(levels=300, values="x" * 100)
    return np.frombuffer(data, np.int64)


def cube(data: bytes) -> NDArray[np.uint8]:
    """Decode a sample into [5, 7, 9], which is no image."""
    return np.full((5, 7, 9), data[0], np.uint8)


def picture(data: bytes) -> NDArray[np.uint8]:
    """Decode a sample into an image of [4, 6, 3]."""
    return np.arange(72, dtype=np.uint8).reshape(4, 6, 3) + np.uint8(data[0])


picture.makes_images = True  # type: ignore[attr-defined]


def undeclared(data: bytes) -> NDArray[np.uint8]:
    return picture(data)


def turned(
    data: bytes, claim: Callable[[int], object] = lambda _: None, *, seconds: float = 0.005
) -> NDArray[np.float64]:
    """Claim a terabyte, and say from when to when it was held: by sample 30 until a test says so."""
    claim(1 << 40)
    start = time.monotonic()
    number = int(np.frombuffer(data, np.int64)[0])
    if number == 30 and (folder := os.environ.get("MPLOAD_TEST_TURNS")) and not Path(folder, "go").exists():
        Path(folder, f"held by {os.getpid()}").touch()
        time.sleep(1000)
    time.sleep(seconds)
    return np.array([number, start, time.monotonic()])


def corner(image: NDArray[Any]) -> NDArray[Any]:
    return image[:8, :8].copy()


def leaving(data: bytes, *, kind: type[BaseException]) -> NDArray[np.int64]:
    """Raise what is no `Exception` for sample 7."""
    number = np.frombuffer(data, np.int64)
    if number[0] == 7:
        raise kind("enough")
    return number


def opencv_drawn(data: bytes) -> NDArray[np.float64]:
    drawn = np.empty((2, 1))
    cv2.randu(drawn, 0, 1)  # type: ignore[call-overload]
    return np.array([np.frombuffer(data, np.int64)[0], *drawn[:, 0]])


def claims_late(data: bytes, claim: Callable[[int], object]) -> NDArray[np.int64]:
    """Claim memory in a thread that goes on when the first sample is made; then for the second one."""
    values = np.frombuffer(data, np.int64)
    if values[0] == 0:
        threading.Timer(0.3, claim, (1 << 40,)).start()
    else:
        time.sleep(0.8)
        claim(1 << 40)
    return values


def claims_in_a_child(data: bytes, claim: Callable[[int], object]) -> NDArray[np.int64]:
    """Claim memory in a forked process that lives on, then here."""
    values, folder = np.frombuffer(data, np.int64), Path(os.environ["MPLOAD_TEST_TURNS"])
    if values[0] == 0:
        with suppress(FileExistsError):
            (folder / "forked").touch(exist_ok=False)
            if (child := os.fork()) == 0:
                claim(1 << 40)
                time.sleep(1000)
            (folder / "child").write_text(str(child))
    claim(1 << 40)
    return values


def interrupted_while_it_waits(data: bytes, claim: Callable[[int], object]) -> NDArray[np.int64]:
    """Raise from a signal's handler while the second sample waits for the first one; then be stuck."""
    values = np.frombuffer(data, np.int64)
    if values[0] == 0:
        claim(1 << 40)
        time.sleep(0.8)
    elif values[0] == 1:

        def raise_error(*_: object) -> None:
            raise TimeoutError

        time.sleep(0.2)
        signal.signal(signal.SIGALRM, raise_error)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with suppress(TimeoutError):
            claim(1 << 40)
            signal.setitimer(signal.ITIMER_REAL, 0)  # where its turn came first
        time.sleep(1000)
    return values
