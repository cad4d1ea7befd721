"""What workers answer: a few integers, and failures as plain data. Nothing here is ever unpickled."""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from mpload.errors import MploadError, WorkerError

__all__ = ["Answer", "Failure", "Timings", "cannot_open", "cause_of"]

_HEAD = struct.Struct("<8q")
_TEXT_CHARACTERS = 16_000
"""Of all failures in an answer: with JSON's escapes it stays below the 208 KiB that a socket takes at once."""


@dataclass(slots=True, kw_only=True)
class Timings:
    """Nanoseconds spent by workers; the parts, and what a cache did, are what the work chose to tell."""

    read_ns: int = 0
    decode_ns: int = 0
    transform_ns: int = 0
    total_ns: int = 0
    num_cache_hits: int = 0
    num_cache_misses: int = 0
    """Samples that were asked for and not in the cache, those that it never keeps included."""

    def add(self, other: "Timings") -> None:
        """Add what another chunk or batch took."""
        self.read_ns += other.read_ns
        self.decode_ns += other.decode_ns
        self.transform_ns += other.transform_ns
        self.total_ns += other.total_ns
        self.num_cache_hits += other.num_cache_hits
        self.num_cache_misses += other.num_cache_misses

    def since(self, earlier: "Timings") -> "Timings":
        """Return what was added after `earlier`, a copy."""
        return Timings(
            **{field.name: getattr(self, field.name) - getattr(earlier, field.name) for field in fields(self)}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A sample that could not be made."""

    sample: int
    """Its place in the batch."""
    cause: str
    details: Mapping[str, Any] = field(default_factory=dict)
    """What else the work said about it, as JSON can carry it."""


def cause_of(error: BaseException) -> str:
    """Return why `error` was raised, with its type unless it is ours, whose messages speak for themselves."""
    return str(error) if isinstance(error, MploadError) else f"{type(error).__name__}: {error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A chunk is done, or (serial 0) a worker could not open what it works with."""

    worker: int
    serial: int
    timings: Timings = field(default_factory=Timings)
    failures: tuple[Failure, ...] = ()

    def encode(self) -> bytes:
        """Return the answer as the bytes of one message."""
        times = self.timings
        numbers = (times.read_ns, times.decode_ns, times.transform_ns, times.total_ns)
        head = _HEAD.pack(self.worker, self.serial, *numbers, times.num_cache_hits, times.num_cache_misses)
        if not self.failures:
            return head
        limit = _TEXT_CHARACTERS // len(self.failures)
        texts = []
        for failure in self.failures:
            details = json.dumps(dict(failure.details), default=str)
            if len(failure.cause) + len(details) > limit:
                details = json.dumps({name: True for name, value in failure.details.items() if value is True})
            texts.append((failure.sample, failure.cause[:limit], details))
        return head + json.dumps(texts).encode()

    @classmethod
    def decode(cls, message: bytes | bytearray) -> "Answer":
        """Return the answer that `encode` made `message` of."""
        worker, serial, read_ns, decode_ns, transform_ns, total_ns, hits, misses = _HEAD.unpack_from(message)
        failures: tuple[Failure, ...] = ()
        if len(message) > _HEAD.size:
            texts = json.loads(message[_HEAD.size :])
            failures = tuple(Failure(sample=s, cause=cause, details=json.loads(d)) for s, cause, d in texts)
        timings = Timings(
            read_ns=read_ns,
            decode_ns=decode_ns,
            transform_ns=transform_ns,
            total_ns=total_ns,
            num_cache_hits=hits,
            num_cache_misses=misses,
        )
        return cls(worker=worker, serial=serial, timings=timings, failures=failures)


def cannot_open(answer: Answer) -> WorkerError:
    """Return the error that an answer with serial number 0 stands for."""
    failure = answer.failures[0]
    text = failure.details.get("traceback", "").rstrip()
    return WorkerError(f"worker {answer.worker} cannot open what it works with: {failure.cause}\n{text}")
