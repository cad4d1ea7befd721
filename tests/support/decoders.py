"""Decoders and transforms for tests. Workers import this module, so it imports little."""

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
    """Decode a sample of `numbers_index` to its number."""
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
    """For sample 13, allocate more memory than a small container has."""
    number = np.frombuffer(data, np.int64)
    if number[0] == 13:
        np.ones(1 << 30, np.uint8)
    return number


def drawn_number(data: bytes) -> NDArray[np.float64]:
    """Decode a sample's number and draw from the global generators of `random` and NumPy."""
    drawn = [random.random(), random.gauss(0, 1), *np.random.rand(2), *np.random.randn(1)]  # noqa: NPY002
    return np.array([np.frombuffer(data, np.int64)[0], *drawn])


def sometimes_drawn(data: bytes) -> NDArray[np.float64]:
    """Draw a random number for every third sample only."""
    number = int(np.frombuffer(data, np.int64)[0])
    return np.array([number, np.random.rand() if number % 3 == 2 else -1.0])  # noqa: NPY002


def torch_drawn(data: bytes) -> NDArray[np.float64]:
    """Draw from torch, which is only imported by this call, as in many libraries."""
    import torch

    return np.array([np.frombuffer(data, np.int64)[0], *torch.rand(2).tolist()])


def torch_drawing(array: NDArray[Any]) -> NDArray[np.float64]:
    """Change an array in place, then draw from torch as `torch_drawn` does."""
    import torch

    array = array.copy() if not array.flags.writeable else array
    array += 1
    return np.array([array[0], *torch.rand(2).tolist()])


def own_seed(data: bytes) -> NDArray[np.float64]:
    """Seed the global generator, as user code often does to treat the images of a pair alike."""
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
    """Draw one normal number; `random.gauss` makes two at once and keeps the second one."""
    return np.array([np.frombuffer(data, np.int64)[0], random.gauss(0, 1)])


def drawn_with_rng(data: bytes, rng: np.random.Generator) -> NDArray[np.float64]:
    return np.array([np.frombuffer(data, np.int64)[0], rng.random(), random.random()])


class UnspeakableError(Exception):
    """An error that takes two arguments, holds an object that cannot be pickled, and has no text."""

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
    raise ValueError(10**5000)  # so long that Python refuses to print it


def too_deep(data: bytes) -> NDArray[np.int64]:
    def descend(levels: int, values: str) -> None:
        if not levels:
            raise ValueError("at the bottom: " + values)
        descend(levels - 1, values)

    descend(levels=300, values="x" * 100)
    return np.frombuffer(data, np.int64)


def cube(data: bytes) -> NDArray[np.uint8]:
    """Decode a sample into an array [5, 7, 9], which is not an image."""
    return np.full((5, 7, 9), data[0], np.uint8)


def picture(data: bytes) -> NDArray[np.uint8]:
    """Decode a sample into an image [4, 6, 3]."""
    return np.arange(72, dtype=np.uint8).reshape(4, 6, 3) + np.uint8(data[0])


picture.makes_images = True  # type: ignore[attr-defined]


def undeclared(data: bytes) -> NDArray[np.uint8]:
    return picture(data)


def turned(
    data: bytes, claim: Callable[[int], object] = lambda _: None, *, seconds: float = 0.005
) -> NDArray[np.float64]:
    """Claim a terabyte and return the times between which it was held.

    Sample 30 holds it until it is killed, if MPLOAD_TEST_TURNS names a folder that has no file `go` yet.
    """
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
    """For sample 7, raise an exception that is not an `Exception`."""
    number = np.frombuffer(data, np.int64)
    if number[0] == 7:
        raise kind("enough")
    return number


def opencv_drawn(data: bytes) -> NDArray[np.float64]:
    drawn = np.empty((2, 1))
    cv2.randu(drawn, 0, 1)  # type: ignore[call-overload]
    return np.array([np.frombuffer(data, np.int64)[0], *drawn[:, 0]])


def wait_for_file(path: Path, *, limit_seconds: float = 30.0) -> bool:
    """Wait until a file exists; return whether it does within the limit."""
    deadline = time.monotonic() + limit_seconds
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def claims_late(data: bytes, claim: Callable[[int], object]) -> NDArray[np.int64]:
    """Claim memory in a thread after the test has `received` sample 0; after that, claim it for sample 1."""
    values, folder = np.frombuffer(data, np.int64), Path(os.environ["MPLOAD_TEST_TURNS"])

    def claim_late() -> None:
        assert wait_for_file(folder / "received")
        claim(1 << 40)
        (folder / "claimed").touch()

    if values[0] == 0:
        threading.Thread(target=claim_late).start()
    else:
        assert wait_for_file(folder / "claimed")
        claim(1 << 40)
    return values


def claims_in_a_child(data: bytes, claim: Callable[[int], object]) -> NDArray[np.int64]:
    """Claim memory in a forked process that stays alive, then in this one."""
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
    """Raise from a signal handler while sample 1 waits for the turn of sample 0; then hang. Waits below 1 second."""
    values, folder = np.frombuffer(data, np.int64), Path(os.environ["MPLOAD_TEST_TURNS"])
    if values[0] == 0:
        claim(1 << 40)
        (folder / "held").touch()
        wait_for_file(folder / "interrupted", limit_seconds=0.8)
    elif values[0] == 1:

        def raise_error(*_: object) -> None:
            raise TimeoutError

        wait_for_file(folder / "held", limit_seconds=0.8)
        signal.signal(signal.SIGALRM, raise_error)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with suppress(TimeoutError):
            claim(1 << 40)
            signal.setitimer(signal.ITIMER_REAL, 0)  # its turn came before the alarm
        (folder / "interrupted").touch()
        time.sleep(1000)
    return values


def halved(row: NDArray[Any]) -> NDArray[np.float32]:
    row += 1  # may be changed in place
    return (row[:1] / 2).astype(np.float32)


class Doubled:
    """A decoder of a user that writes its results, of a dtype other than uint8, into the batch."""

    output_shape = (2,)
    output_dtype = "float32"

    def __call__(self, data: bytes, out: NDArray[Any] | None = None) -> NDArray[Any]:
        return np.multiply(np.frombuffer(data, np.int16), 2, out=out, dtype=np.float32)
