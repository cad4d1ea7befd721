"""A simulated device on the CPU that does its work late, in a random order that its events allow."""

import ctypes
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch

from mpload.device.prefetcher import DevicePrefetcher
from mpload.device.streams import Mark, SideStream, side_stream

__all__ = ["LateStream", "on_stream"]


def on_stream(stream: SideStream | None, loader: Iterable[Any], **options: Any) -> DevicePrefetcher:
    """Return a prefetcher that queues its work on `stream`; None lets it make its own."""
    wanted = side_stream if stream is None else lambda _: stream
    with mock.patch("mpload.device.prefetcher.side_stream", wanted):
        return DevicePrefetcher(loader, **options)


@dataclass
class Queue:
    """Queued work, and marks to wait for."""

    items: deque["Callable[[], object] | LateMark"] = field(default_factory=deque)
    num_done: int = 0

    @property
    def num_queued(self) -> int:
        return self.num_done + len(self.items)

    def step(self) -> bool:
        """Do the next piece of work; return False if there is none, or if its mark has not been reached."""
        if not self.items:
            return False
        item = self.items[0]
        if isinstance(item, LateMark):
            if not item.query():
                return False
        else:
            item()
        self.items.popleft()
        self.num_done += 1
        return True


@dataclass
class LateMark:
    stream: "LateStream"
    queue: Queue
    num_before: int

    def query(self) -> bool:
        return self.queue.num_done >= self.num_before

    def synchronize(self) -> None:
        self.stream.run_until(self.query)


class LateStream:
    """A side stream beside a consumer's stream. Which one goes on next is random, within the limits that events set.

    As on a device, queued work holds addresses only and does not keep memory alive.
    """

    is_async = True

    def __init__(self, seed: int, *, eagerness: float = 0.3) -> None:
        self.side, self.consumer = Queue(), Queue()
        self._random = random.Random(seed)
        self._eagerness = eagerness

    def queue(self, work: Callable[..., object], *tensors: torch.Tensor) -> None:
        found = [at_address(tensor) for tensor in tensors]
        self.side.items.append(lambda: work(*found))
        self._go_on()

    def consume(self, work: Callable[..., object], *tensors: torch.Tensor) -> None:
        """Queue work on the consumer's stream."""
        found = [at_address(tensor) for tensor in tensors]
        self.consumer.items.append(lambda: work(*found))
        self._go_on()

    @contextmanager
    def entered(self) -> Iterator[None]:
        yield

    def mark(self) -> Mark:
        return LateMark(self, self.side, self.side.num_queued)

    def follow_consumer(self) -> None:
        self.side.items.append(LateMark(self, self.consumer, self.consumer.num_queued))

    def lead_consumer(self, mark: Mark) -> None:
        assert isinstance(mark, LateMark)
        self.consumer.items.append(mark)

    def lend(self, tensor: torch.Tensor) -> None:
        pass

    def finish(self) -> None:
        self.run_until(lambda: not self.side.items and not self.consumer.items)

    def run_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            first, second = self._random.sample([self.side, self.consumer], 2)
            assert first.step() or second.step(), "both queues wait for each other"

    def _go_on(self) -> None:
        while self._random.random() < self._eagerness:
            self._random.choice([self.side, self.consumer]).step()


def at_address(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor over the same memory that does not keep it alive."""
    storage = tensor.untyped_storage()
    if not storage.nbytes():
        return tensor
    memory = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())

    values = torch.frombuffer(memory, dtype=torch.uint8)
    whole = values[: values.numel() // tensor.dtype.itemsize * tensor.dtype.itemsize].view(tensor.dtype)
    return whole.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
