"""Batches in page-locked memory, for `pin_memory=True`."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory

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
    return pin_memory
