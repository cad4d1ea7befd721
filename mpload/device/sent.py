"""Batches on their way from a `DevicePrefetcher` to the consumer. The error of a batch that failed takes its place."""

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from mpload.device.streams import Mark
from mpload.errors import SampleError

__all__ = ["Failed", "Received", "Sent", "State"]

State: TypeAlias = dict[str, Any] | None
"""The state of the loader after a batch, if it has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A batch that can be yielded. The consumer's stream waits for `ready` before it uses the batch."""

    batch: Any
    """The batch, or a `Failed`."""
    ready: Mark
    state: State

    @property
    def is_uncounted(self) -> bool:
        """Whether it is an error of more than a sample. States do not count it, and nothing is fetched before."""
        return isinstance(self.batch, Failed) and not isinstance(self.batch.error, SampleError)


@dataclass(frozen=True, slots=True)
class Failed:
    """Takes the place of a failed batch, because a generator ends when it raises."""

    error: Exception


class Received(Iterator[Any]):
    """The iterator for the consumer: returns batches, and raises the errors of failed ones."""

    def __init__(self, batches: Generator[Any, None, None]) -> None:
        self._batches = batches
        self.close = batches.close

    def __next__(self) -> Any:
        with _without_inference_mode():
            batch = next(self._batches)
        if isinstance(batch, Failed):
            try:
                raise batch.error
            finally:
                del batch  # the traceback of the error refers to this frame
        return batch


def _without_inference_mode() -> AbstractContextManager[object]:
    """Return a context in which tensors are made that autograd may use later: a batch ahead may be one to train on."""
    if not torch.is_inference_mode_enabled():
        return nullcontext()
    context = ExitStack()
    context.enter_context(torch.inference_mode(mode=False))
    context.enter_context(torch.no_grad())
    return context


def _no_slot(_: int) -> None:
    """Return None: no slot contains the address."""
