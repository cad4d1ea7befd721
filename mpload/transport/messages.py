"""What workers answer: a few integers, and failures as plain data. Nothing here is ever unpickled."""

import builtins
import json
import struct
import traceback
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import add
from typing import Any

from mpload import errors
from mpload.errors import SampleError, WorkerError, WorkerTraceback, cause_of

__all__ = ["MAX_COUNTS", "Answer", "Failure", "Tally", "cannot_open", "cause_of", "told_of"]

MAX_COUNTS = 8
"""Integers that a work may count."""
_HEAD = struct.Struct(f"<{4 + MAX_COUNTS}q")
_TEXT_CHARACTERS = 1_000_000, 16_000
"""Of all failures in an answer. Compressed, the first stays below `_MESSAGE_BYTES` where failures are alike, as they
mostly are; the second always does, with JSON's escapes too."""
_CAUSE_CHARACTERS = 8_000
"""Of one failure's cause, and of its traceback."""
_MESSAGE_BYTES = 200_000
"""A socket takes 208 KiB at once."""

_GAP = "\n...\n"

_KNOWN = {module.__name__: module for module in (builtins, errors)}
"""Where errors are defined that are made anew from their name and arguments."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """What making samples took."""

    num_samples: int = 0
    busy_ns: int = 0
    counts: list[int] = field(default_factory=lambda: [0] * MAX_COUNTS)
    """What the work has counted: it is the work that says what each place means."""

    def add(self, other: "Tally") -> None:
        """Add what other samples took."""
        self.num_samples += other.num_samples
        self.busy_ns += other.busy_ns
        self.counts = list(map(add, self.counts, other.counts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A sample that could not be made."""

    sample: int
    """Its place in the batch."""
    cause: str
    details: Mapping[str, Any] = field(default_factory=dict)
    """What else the work said about it, as JSON can carry it; `traceback` may lack its middle."""

    @property
    def origin(self) -> BaseException | None:
        """What was raised in the worker, for `raise ... from`: the error itself where it is plain, and its traceback.

        None where nothing was raised. No object comes from the worker: a builtin error, or one of ours, is made anew.
        """
        if not (text := self.details.get("traceback")):
            return None
        trace = WorkerTraceback(f'\n"""\n{text.rstrip()}\n"""')
        module, name, arguments = self.details.get("error", ("", "", ()))
        kind = getattr(_KNOWN.get(module), name, None)
        if isinstance(kind, type) and issubclass(kind, BaseException):
            with suppress(Exception):  # some take other arguments than they show
                error = kind(*arguments)
                error.__cause__ = trace
                return error
        return trace


def told_of(error: BaseException) -> dict[str, Any]:
    """Return the details of a `Failure` from which `Failure.origin` is made."""
    if isinstance(error, SampleError) and error.__cause__ is not None:
        error = error.__cause__
    told: dict[str, Any] = {"traceback": "".join(traceback.format_exception(error))}
    kind = type(error)
    if kind.__module__ in _KNOWN and all(map(_is_plain, error.args)):
        told["error"] = kind.__module__, kind.__name__, error.args
    return told


def _is_plain(argument: object) -> bool:
    """Return whether JSON carries a value as it is; Python refuses to write down ints of more than 4,300 digits."""
    if type(argument) is int:
        return argument.bit_length() <= 64
    return type(argument) in {str, float, bool, type(None)}


def _shortened(trace: str, room: int) -> str:
    """Return the start of a traceback, which names the lines of an error with a long message, and its end."""
    if len(trace) <= room:
        return trace
    half = (room - len(_GAP)) // 2
    return trace[:half] + _GAP + trace[-half:] if half > 0 else ""


def _written(failures: Sequence[Failure], num_characters: int) -> list[tuple[int, str, str, str]]:
    """Return place, cause, details (as JSON) and traceback of each failure, in so many characters together."""
    limit = min(_CAUSE_CHARACTERS, num_characters // (2 * len(failures)))  # the other half is for tracebacks
    texts: list[tuple[int, str, str]] = []
    for failure in failures:
        told = {name: value for name, value in failure.details.items() if name != "traceback"}
        details = json.dumps(told, default=str)
        if len(failure.cause) + len(details) > limit:
            details = json.dumps({name: True for name, value in told.items() if value is True})
        texts.append((failure.sample, failure.cause[:limit], details))
    left = num_characters - sum(len(cause) + len(details) for _, cause, details in texts)
    share = left // (2 * len(texts))
    rooms = [left // 2 + share, *[share] * (len(texts) - 1)]  # it is most often the first one that is raised
    traces = [str(failure.details.get("traceback", "")) for failure in failures]
    traces = [_shortened(trace, min(_CAUSE_CHARACTERS, room)) for trace, room in zip(traces, rooms, strict=True)]
    return [(*text, trace) for text, trace in zip(texts, traces, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A chunk is done, or (serial 0) a worker could not open what it works with."""

    worker: int
    serial: int
    tally: Tally = field(default_factory=Tally)
    failures: tuple[Failure, ...] = ()

    def encode(self) -> bytes:
        """Return the answer as the bytes of one message."""
        tally = self.tally
        head = _HEAD.pack(self.worker, self.serial, tally.num_samples, tally.busy_ns, *tally.counts)
        if not self.failures:
            return head
        for num_characters in _TEXT_CHARACTERS:
            told = zlib.compress(json.dumps(_written(self.failures, num_characters)).encode(), level=1)
            if len(told) <= _MESSAGE_BYTES:
                break
        return head + told

    @classmethod
    def decode(cls, message: bytes | bytearray) -> "Answer":
        """Return the answer that `encode` made `message` of."""
        worker, serial, num_samples, busy_ns, *counts = _HEAD.unpack_from(message)
        failures: tuple[Failure, ...] = ()
        if len(message) > _HEAD.size:
            texts = json.loads(zlib.decompress(message[_HEAD.size :]))
            failures = tuple(
                Failure(sample=s, cause=cause, details=json.loads(d) | ({"traceback": trace} if trace else {}))
                for s, cause, d, trace in texts
            )
        tally = Tally(num_samples=num_samples, busy_ns=busy_ns, counts=counts)
        return cls(worker=worker, serial=serial, tally=tally, failures=failures)


def cannot_open(answer: Answer) -> WorkerError:
    """Return the error that an answer with serial number 0 stands for."""
    failure = answer.failures[0]
    text = failure.details.get("traceback", "").rstrip()
    return WorkerError(f"worker {answer.worker} cannot open what it works with: {failure.cause}\n{text}")
