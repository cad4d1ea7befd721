"""Decoders and transforms of the tests that workers import: a module that imports little."""

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray


def number_in(data: bytes) -> NDArray[np.int64]:
    """Decode one sample of `numbers_index`: its own number."""
    return np.frombuffer(data, np.int64)


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
