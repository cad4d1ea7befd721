"""Faulty decoders and transforms. Workers import this module, so it imports little."""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray


class OneNumber:
    """Decodes a sample of `numbers_index` and declares the shape of all of them."""

    output_shape = (1,)

    def __call__(self, data: bytes) -> NDArray[np.int64]:
        return np.frombuffer(data, np.int64)


def returns(value: Any) -> Any:
    return lambda _: value


class OneByte:
    """Writes the first byte of a sample into `out`."""

    output_shape = (1,)

    def __call__(self, data: bytes, out: NDArray[np.uint8]) -> NDArray[np.uint8]:
        out[0] = data[0]
        return out


def no_good(_: object) -> None:
    raise ValueError("no good")


FAULTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "raises": (no_good, "ValueError: no good"),
    "calls sys.exit": (lambda _: sys.exit("enough"), "enough"),
    "is interrupted": (lambda _: signal.raise_signal(signal.SIGTERM), r"killed its worker \(SIGTERM\)"),
    "segfaults": (lambda _: ctypes.string_at(0), r"killed its worker \(SIGSEGV\)"),
    "aborts": (lambda _: os.abort(), r"killed its worker \(SIGABRT\)"),
    "exits": (lambda _: os._exit(3), r"killed its worker \(exit status 3\)"),
    "hangs": (lambda _: time.sleep(3600), r"killed its worker \(stuck for more than 0.5 s\)"),
    "stops": (lambda _: os.kill(os.getpid(), signal.SIGSTOP), r"killed its worker \(stuck for more than 0.5 s\)"),
    "returns another shape": (returns(np.zeros(3, np.int64)), r"this sample is int64\[3\], others are int64\[1\]"),
    "returns another dtype": (returns(np.zeros(1, np.float32)), r"this sample is float32\[1\], others are int64\[1\]"),
    "returns nothing": (returns(None), "NoneType"),
    "returns text": (returns("41"), "str"),
}


def every_fourth_is_bad(number: NDArray[np.int64]) -> NDArray[np.int64]:
    if number[0] % 4 == 0:
        raise ValueError("a multiple of four")
    return number


def with_noise(number: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    time.sleep(0.002)
    return np.concatenate([number, rng.integers(0, 1 << 62, 7)])


def with_clock_jumps(number: NDArray[np.int64]) -> NDArray[np.int64]:
    """Make the worker's clock jump back and forth by days."""
    days = -1 if number[0] % 2 else 1
    clock = time.clock_gettime
    time.time = lambda: clock(time.CLOCK_REALTIME) + days * 86400
    time.time_ns = lambda: round(time.time() * 1e9)
    time.sleep(0.002)
    return number
