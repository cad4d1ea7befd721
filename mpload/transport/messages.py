"""The answers of workers: a few integers, and failures as plain data. Nothing here is ever unpickled."""

import builtins
import json
import struct
import sys
import traceback
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import starmap
from operator import add
from typing import Any

from mpload import errors
from mpload.errors import SampleError, WorkerTraceback, cause_of

__all__ = [
    "MAX_COUNTS",
    "NOTICE",
    "Answer",
    "Failure",
    "Tally",
    "cause_of",
    "details_of",
    "shortened",
    "sum_of",
]

MAX_COUNTS = 8
"""Number of counters that a work may use."""
NOTICE = -1
"""Serial number of a message that answers no chunk: its failure is a notice of the work."""
_HEAD = struct.Struct(f"<{5 + MAX_COUNTS}q")
_NUMBERED_COUNT = struct.Struct("<2q")
_TEXT_CHARACTERS = 1_000_000, 16_000
"""Two limits for the text of all failures in an answer. With the first, the compressed text stays below
`_MESSAGE_BYTES` if failures are alike, as they mostly are. With the second it always does, even if JSON escapes every
character."""
_CAUSE_CHARACTERS = 8_000
"""Maximum length of one failure's cause, of its details, and of its traceback."""
_ARGUMENT_CHARACTERS = (4_000, 1_000, 100)
"""Lengths to which the texts among an error's arguments are cut. The first that leaves room is taken."""
_MESSAGE_BYTES = 200_000
"""Maximum size of a message. A socket accepts 208 KiB at once."""

_GAP = "\n...\n"

_KNOWN = frozenset({builtins.__name__, errors.__name__})
"""Modules whose errors can be rebuilt in the parent from their name and arguments."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """The number of samples made, the time they took, and the counters of the work."""

    num_samples: int = 0
    busy_ns: int = 0
    counts: list[int] = field(default_factory=lambda: [0] * MAX_COUNTS)
    """Counters of the work, which defines the meaning of each."""
    numbered: dict[int, int] = field(default_factory=dict)
    """Further counters of the work, by numbers that it chooses, such as some for each server."""

    def add(self, other: "Tally") -> None:
        """Add another tally to this one."""
        self.num_samples += other.num_samples
        self.busy_ns += other.busy_ns
        self.counts = list(map(add, self.counts, other.counts))
        for number, count in other.numbered.items():
            self.numbered[number] = self.numbered.get(number, 0) + count


def sum_of(tallies: Iterable[Tally]) -> Tally:
    """Return the sum of tallies."""
    total = Tally()
    for tally in tallies:
        total.add(tally)
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A sample that could not be made."""

    sample: int
    """Position in the batch."""
    cause: str
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further JSON-compatible facts from the work. The middle of `traceback` may be cut."""

    @property
    def origin(self) -> BaseException | None:
        """The exception raised in the worker, for `raise ... from`, or None if none was raised.

        No object comes from the worker. A builtin error, or one of mpload's, is rebuilt from its name and arguments,
        with the worker's traceback as its cause. For any other error only the traceback is returned.
        """
        if not (text := self.details.get("traceback")):
            return None
        trace = WorkerTraceback(f'\n"""\n{text.rstrip()}\n"""')
        if self.kind is not None and self.kind.__module__ in _KNOWN and self.arguments is not None:
            with suppress(Exception):  # some constructors take other arguments than `args`
                error = self.kind(*self.arguments)
                error.__cause__ = trace
                return error
        return trace

    @property
    def kind(self) -> type[BaseException] | None:
        """The class of that exception, if this process has imported it; None otherwise."""
        module, name, _ = self.details.get("error", ("", "", None))
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        return found if isinstance(found, type) and issubclass(found, BaseException) else None

    @property
    def arguments(self) -> Sequence[Any] | None:
        """The `args` of that exception; None if they are unknown, since they are not all numbers and strings."""
        arguments: Sequence[Any] | None = self.details.get("error", ("", "", None))[2]
        return arguments

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The attributes of that exception that are numbers and strings."""
        attributes: Mapping[str, Any] = self.details.get("attributes", {})
        return attributes


def details_of(error: BaseException) -> dict[str, Any]:
    """Return the details of a `Failure` from which `Failure.origin` rebuilds `error`."""
    if isinstance(error, SampleError) and error.__cause__ is not None:
        error = error.__cause__
    details: dict[str, Any] = {"traceback": "".join(traceback.format_exception(error))}
    kind = type(error)
    arguments: tuple[Any, ...] | None = error.args if all(map(_is_plain, error.args)) else None
    if arguments is not None and len(arguments) == 2 and isinstance(error, OSError) and _is_plain(error.filename):
        arguments = *arguments, error.filename  # `args` lacks it
    details["error"] = kind.__module__, kind.__qualname__, arguments
    if attributes := {name: value for name, value in vars(error).items() if _is_plain(value)}:
        details["attributes"] = attributes
    return details


def _is_plain(argument: object) -> bool:
    """Return whether a value survives JSON unchanged. Python refuses to print integers of more than 4,300 digits."""
    if type(argument) is int:
        return argument.bit_length() <= 64
    return type(argument) in {str, float, bool, type(None)}


def _shortened(trace: str, room: int) -> str:
    """Return the start and end of a traceback. The start holds the code lines if the error message is long."""
    if len(trace) <= room:
        return trace
    half = (room - len(_GAP)) // 2
    return trace[:half] + _GAP + trace[-half:] if half > 0 else ""


def _shortened_details(details: Mapping[str, Any], room: int) -> str:
    """Return details but the traceback as JSON, in at most `room` characters if flags alone do not take more.

    The texts among the error's arguments are cut first. Its class goes last: the user's `except` needs it.
    """
    details = {name: value for name, value in details.items() if name != "traceback"}
    flags: dict[str, Any] = {name: True for name, value in details.items() if value is True}
    tried = [details]
    error = details.get("error")
    if isinstance(error, list | tuple) and len(error) == 3 and isinstance(error[2], list | tuple | None):
        module, name, arguments = error
        for limit in _ARGUMENT_CHARACTERS if arguments is not None else ():
            cut = [_shortened(each, limit) if isinstance(each, str) else each for each in arguments]
            tried += [details | {"error": (module, name, cut)}, flags | {"error": (module, name, cut)}]
        tried.append(flags | {"error": (module, name, None)})
    texts = (json.dumps(each, default=str) for each in tried)
    return next((text for text in texts if len(text) <= room), json.dumps(flags))


def _shortened_texts(failures: Sequence[Failure], num_characters: int) -> list[tuple[int, str, str, str]]:
    """Return position, cause, details (as JSON) and traceback of each failure, `num_characters` in total."""
    limit = num_characters // (2 * len(failures))  # the other half is left for tracebacks
    texts: list[tuple[int, str, str]] = []
    for failure in failures:
        room = limit - min(len(failure.cause), _CAUSE_CHARACTERS, limit // 2)
        details = _shortened_details(failure.details, min(_CAUSE_CHARACTERS, room))
        num_left = max(0, min(_CAUSE_CHARACTERS, limit - len(details)))
        texts.append((failure.sample, failure.cause[:num_left], details))
    left = num_characters - sum(len(cause) + len(details) for _, cause, details in texts)
    share = left // (2 * len(texts))
    rooms = [left // 2 + share, *[share] * (len(texts) - 1)]  # the first failure is the one most often raised
    traces = [str(failure.details.get("traceback", "")) for failure in failures]
    traces = [_shortened(trace, min(_CAUSE_CHARACTERS, room)) for trace, room in zip(traces, rooms, strict=True)]
    return [(*text, trace) for text, trace in zip(texts, traces, strict=True)]


def shortened(failures: Sequence[Failure], num_characters: int) -> tuple[Failure, ...]:
    """Return failures whose texts have about `num_characters` in total: tracebacks are cut first."""
    texts = _shortened_texts(failures, num_characters) if failures else []
    return tuple(_failure(*text) for text in texts)


def _failure(sample: int, cause: str, details: str, trace: str) -> Failure:
    return Failure(sample=sample, cause=cause, details=json.loads(details) | ({"traceback": trace} if trace else {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A worker's answer: a chunk is done, or (serial 0) `Work.open` failed, or (`NOTICE`) the work says something."""

    worker: int
    serial: int
    tally: Tally = field(default_factory=Tally)
    failures: tuple[Failure, ...] = ()

    def encode(self) -> bytes:
        """Return the answer as one message."""
        tally = self.tally
        size = len(tally.numbered)
        head = _HEAD.pack(self.worker, self.serial, tally.num_samples, tally.busy_ns, size, *tally.counts)
        head += b"".join(starmap(_NUMBERED_COUNT.pack, tally.numbered.items()))
        if not self.failures:
            return head
        for num_characters in _TEXT_CHARACTERS:
            text = zlib.compress(json.dumps(_shortened_texts(self.failures, num_characters)).encode(), level=1)
            if len(head) + len(text) <= _MESSAGE_BYTES:
                break
        return head + text

    @classmethod
    def decode(cls, message: bytes | bytearray) -> "Answer":
        """Return the answer that `encode` turned into `message`."""
        worker, serial, num_samples, busy_ns, size, *counts = _HEAD.unpack_from(message)
        end = _HEAD.size + size * _NUMBERED_COUNT.size
        numbered = dict(_NUMBERED_COUNT.iter_unpack(message[_HEAD.size : end])) if size else {}
        failures: tuple[Failure, ...] = ()
        if len(message) > end:
            failures = tuple(_failure(*text) for text in json.loads(zlib.decompress(message[end:])))
        tally = Tally(num_samples=num_samples, busy_ns=busy_ns, counts=counts, numbered=numbered)
        return cls(worker=worker, serial=serial, tally=tally, failures=failures)
