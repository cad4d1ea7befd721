"""Batches in page-locked memory, for `pin_memory=True`."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from mpload.device.staging import map_leaves
from mpload.errors import warn

__all__ = ["pin_of"]


def pin_of(*, is_wanted: bool) -> Callable[[Any], Any] | None:
    """Return what copies a batch into page-locked memory; None if that is not wanted, or has no use here.

    The copies belong to torch, which does not use their memory again before an asynchronous copy from it has ended.
    Slots cannot be lent like that: they are free as soon as the last tensor of the batch is.
    """
    if not is_wanted:
        return None
    if not torch.accelerator.is_available():
        warn("pin_memory=True has no effect, since there is no accelerator")
        return None
    return _pinned


def _pinned(batch: Any) -> Any:
    if _holds_files(batch):
        batch = map_leaves(batch, _AsItIs, is_leaf=lambda value: isinstance(value, memoryview))
    return pin_memory(batch)  # type: ignore[no-untyped-call]


def _holds_files(value: Any) -> bool:
    """Return whether a batch holds files for `GpuDecode`, in containers as mpload makes them."""
    if type(value) in {list, tuple}:
        return any(map(_holds_files, value))
    return any(map(_holds_files, value.values())) if type(value) is dict else isinstance(value, memoryview)


class _AsItIs:
    """A file for `GpuDecode`. torch would make a list of numbers of it, since a memoryview is a sequence."""

    def __init__(self, file: memoryview) -> None:
        self._file = file

    def pin_memory(self) -> memoryview:
        """Return the file. torch calls this."""
        return self._file
