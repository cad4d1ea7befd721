"""Jobs for the nodes of a Ray cluster."""

import os
import signal
import time
from functools import partial
from pathlib import Path

from mpload.errors import SampleError

__all__ = ["dies", "dies_once", "fails", "square", "stands_still"]


def square(number: int) -> int:
    return number * number


def fails(number: int) -> int:
    if number == 3:
        raise SampleError("list.txt:3: is broken")
    return number


def dies(_: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def _dies_once(folder: Path, number: int) -> int:
    try:
        (folder / str(number)).touch(exist_ok=False)
    except FileExistsError:
        return number
    return dies(number)


def dies_once(folder: Path) -> "partial[int]":
    return partial(_dies_once, folder)


def _stands_still(folder: Path, _: int) -> int:
    (folder / "pid").write_text(str(os.getpid()))
    time.sleep(1000)
    return 0


def stands_still(folder: Path) -> "partial[int]":
    return partial(_stands_still, folder)
