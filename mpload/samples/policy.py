"""What happens to a sample that cannot be read, decoded or transformed: the user's choice and the error report."""

import errno
import hashlib
import json
import os
import re
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

from mpload.errors import ArgumentError, SampleError, TooManyBadSamples, warn

__all__ = [
    "BadSample",
    "BadSamples",
    "ErrorAction",
    "ErrorPolicy",
    "all_failed",
    "policy_of",
    "substitute_for",
    "substitutes_in_turn",
]

# The report may be a FIFO or a terminal. Training must not wait until somebody reads it.
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_NO_READER = "it is a pipe that nobody reads, or not fast enough. Name a regular file"
_GRACE_SAMPLES = 1000
_MAX_KEPT = 1 << 14
_MAX_WARNINGS = 20
"""So many bad samples are shown if the report cannot be written."""
_SHOWN_CAUSES = 3
_NUMBER = re.compile(r"\d[\d.,:]*")
_MORE = re.compile(r"\n| \(|\. |; ")  # behind the first words of a cause
_SUBSTITUTES = 8
"""Number of other samples that are tried in place of a bad one."""


class ErrorAction(StrEnum):
    """How a bad sample is handled."""

    RAISE = "raise"
    """Iteration ends with a `SampleError`."""
    SKIP = "skip"
    """The sample is left out, which makes its batch shorter."""
    SUBSTITUTE = "substitute"
    """The sample is replaced by another one, chosen by a hash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPolicy:
    """How bad samples are handled, where they are reported, and how many are too many.

    `"raise"` ends the epoch with a `SampleError`. `"skip"` leaves the sample out, which makes its batch shorter.
    `"substitute"` replaces the sample by another one, chosen by a hash, so that batches keep their shape. A sample is
    bad if making it raises any exception, even `SystemExit`; only `KeyboardInterrupt` bypasses the policy.

    Raises:
        ArgumentError: `action` is unknown, or `max_error_fraction` is not in [0, 1].
    """

    action: ErrorAction | Literal["raise", "skip", "substitute"] = ErrorAction.RAISE
    """How a bad sample is handled."""
    report: str | os.PathLike[str] | None = None
    """The error report, a file of JSON lines: each skipped or substituted sample is appended to it. None:
    `<index>.errors.jsonl` in the working directory."""
    max_error_fraction: float = 0.01
    """The epoch ends with `TooManyBadSamples` once more than this fraction of the samples requested so far (counted as
    one thousand while they are fewer) were skipped or substituted. An `MPLoader` counts over all its workers; each
    worker of a stock DataLoader counts separately."""

    def __post_init__(self) -> None:
        if self.action not in list(ErrorAction):
            raise ArgumentError(f"on_error must be one of {', '.join(ErrorAction)}, got {self.action!r}")
        if not 0 <= self.max_error_fraction <= 1:
            raise ArgumentError(f"max_error_fraction must be in [0, 1], got {self.max_error_fraction}")
        object.__setattr__(self, "action", ErrorAction(self.action))


def policy_of(choice: ErrorPolicy | Literal["raise", "skip", "substitute"]) -> ErrorPolicy:
    """Return `choice` itself if it is a policy, otherwise the policy with that action."""
    return choice if isinstance(choice, ErrorPolicy) else ErrorPolicy(action=choice)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadSample:
    """One sample that failed, with its location and the cause."""

    sample_id: int
    where: str
    """The line of the index that lists the sample: `train.txt:17`."""
    paths: tuple[str, ...]
    """The sample's sources, as the index lists them."""
    cause: str
    error: BaseException | None = None
    """The exception, if it was raised in this process."""

    def __str__(self) -> str:
        return f"{self.where}: sample {self.sample_id} ({', '.join(self.paths)}): {self.cause}"


class BadSamples:
    """Counts and reports the bad samples of one process, and ends an epoch in which too many samples fail."""

    def __init__(self, policy: ErrorPolicy, *, index_path: Path) -> None:
        self._policy = policy
        self._report = Path(policy.report or f"{index_path.stem}.errors.jsonl")
        with suppress(FileNotFoundError):  # the current folder was deleted: then the report cannot be written
            self._report = self._report.absolute()
        self._epoch = -1
        self._warned_in = -1  # the epoch of the latest warning
        self._num_seen = 0
        self._num_bad = 0
        self._num_unwritten = 0
        self.failed: deque[int] = deque(maxlen=_MAX_KEPT)
        """The sample_ids of the latest bad samples."""

    def begin(self) -> None:
        """Count from 0 again, as the epoch that begins may be one that was read before."""
        self._epoch = -1

    def count(self, num_samples: int, *, epoch: int) -> None:
        """Count requested samples: the denominator of the error rate, which starts at 0 in each epoch."""
        if epoch != self._epoch:
            self._epoch, self._num_seen, self._num_bad = epoch, 0, 0
        self._num_seen += num_samples

    def add(self, bad: BadSample) -> None:
        """Append one bad sample to the error report.

        Raises:
            TooManyBadSamples: More samples failed than the policy allows.
        """
        line = {
            "sample_id": bad.sample_id,
            "where": bad.where,
            "paths": bad.paths,
            "cause": bad.cause,
            "epoch": self._epoch,
            "action": str(self._policy.action),
        }
        self._append(json.dumps(line) + "\n")
        self._num_bad += 1
        self.failed.append(bad.sample_id)
        allowed = self._policy.max_error_fraction
        if self._num_bad > allowed * max(self._num_seen, _GRACE_SAMPLES):
            raise TooManyBadSamples(
                f"{self._num_bad} of {self._num_seen} samples failed, more than max_error_fraction={allowed} allows; "
                f"the last one: {bad}. They are listed in {self._report}. Fix the data, or raise max_error_fraction"
            )

    def _append(self, line: str) -> None:
        try:
            # A single write to a file opened for appending: lines of different processes do not interleave.
            descriptor = os.open(self._report, _APPEND, 0o666)
            try:
                os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            self._num_unwritten += 1
            if self._num_unwritten > _MAX_WARNINGS:
                return
            further = " Further ones are not shown" if self._num_unwritten == _MAX_WARNINGS else ""
            cause = _NO_READER if error.errno in {errno.ENXIO, errno.EAGAIN} else error
            warn(f"{self._report}: cannot be written ({cause}). Bad sample: {line.strip()}{further}")
        else:
            if self._epoch != self._warned_in:
                self._warned_in = self._epoch
                warn(f"a bad sample ({self._policy.action}); this and further ones are listed in {self._report}")


def all_failed(index_path: Path, num_samples: int, bad: Sequence[BadSample]) -> SampleError:
    """Return the error for a batch that has no sample left, with its most common cause and the first `bad` samples."""
    kinds: dict[str, list[str]] = {}
    for each in bad:
        short = _short_cause(each)
        kinds.setdefault(_NUMBER.sub("#", short), []).append(short)
    most = max(kinds.values(), key=len)
    share = f"{len(most)} of {len(bad)} times" if len(bad) > 1 else "once"
    listed = "".join(f"\n  {each}" for each in bad[:_SHOWN_CAUSES])
    more = f"\n  and {len(bad) - _SHOWN_CAUSES} more" if len(bad) > _SHOWN_CAUSES else ""
    what = f"all {num_samples} samples of a batch failed, {share} because of: {most[0]}"
    return SampleError(f"{index_path}: {what}; see the error report{listed}{more}")


def _short_cause(bad: BadSample) -> str:
    """Return what is likely to be the same for all samples that fail in the same way, but for its numbers."""
    head, _, rest = bad.cause.partition(": ")
    name = head.rpartition("/")[2]
    text = rest if name and any(name in path for path in bad.paths) else bad.cause
    return _MORE.split(text, maxsplit=1)[0]


def substitute_for(sample_id: int, peers: Sequence[int], *, seed: int, epoch: int) -> list[int]:
    """Return the sample_ids to try in place of a bad one: the same in every process, scattered over its `peers`."""
    digest = hashlib.blake2b(f"mpload substitute {seed} {epoch} {sample_id}".encode(), digest_size=8 * _SUBSTITUTES)
    words = digest.digest()
    return [peers[int.from_bytes(words[8 * i : 8 * i + 8], "little") % len(peers)] for i in range(_SUBSTITUTES)]


def substitutes_in_turn(
    sample_ids: Sequence[int], peers_of: Callable[[int], Sequence[int]], *, seed: int, epoch: int
) -> dict[int, int]:
    """Return the substitutes of bad samples, each with the bad one: the first of all, then the second of all, ..."""
    found = [substitute_for(each, peers_of(each), seed=seed, epoch=epoch) for each in sample_ids]
    return {
        substitute: sample_id
        for rank in zip(*found, strict=True)
        for substitute, sample_id in zip(rank, sample_ids, strict=True)
    }
