"""What a process knows about a server: whether it answers, since when it does not, and when it wants to be asked again.

All threads share it, so that an outage counts once, however many reads meet it, and so that an outage can be
distinguished from one bad object.
"""

import random
import threading
from collections import Counter
from dataclasses import dataclass, field
from math import inf

from mpload.storage.request_failure import RequestFailure

__all__ = ["Attempts", "Limits", "Server", "What"]

What = tuple[str, tuple[int, int] | None]
"""What is read: the key of an object, and the span of it: (offset, length). None means all of it."""

_FIRST_WAIT_SECONDS = 0.1
_MAX_WAIT_SECONDS = 10.0
_MAX_BLAMES = 6
_LEAST_SHARE = 1 / 8  # of the time limit of a request: less time is not enough for another attempt
_MOST_SHARE = 1.15  # of the time limit of a read, with the extension
_CUT_SHARE = 0.9  # of the time limit of an attempt: one that takes longer has met the limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Time limits, each of which holds several of the one before."""

    connect_seconds: float
    """For a connection to be made."""
    request_seconds: float
    """For one request, from its beginning to the last byte of the answer."""
    retry_seconds: float
    """For a read: a request, all its repetitions and the waits between them."""
    quiet_seconds: float = 5.0
    """Only an outage that lasts longer is worth a notice."""

    @property
    def fresh_seconds(self) -> float:
        """For so long after a read has failed for good, the same read fails again without a request."""
        return self.retry_seconds / 10

    @property
    def outage_seconds(self) -> float:
        """For so long after a server was given up, all reads from it fail without a request."""
        return min(2.0, self.fresh_seconds)


class Server:
    """The state of one server, for all threads of a process."""

    def __init__(self) -> None:
        self.answered_at = float("-inf")
        """When a request to it last succeeded."""
        self.failing_since = float("-inf")
        """When the first request failed since it last answered; earlier than `answered_at` while it answers."""
        self.failed_at = float("-inf")
        """When a request to it last failed."""
        self.resumes_at = float("-inf")
        """When it wants to be asked again."""
        self.given_up_at = float("-inf")
        """When a read last failed because it had not answered any request for too long."""
        self.good: tuple[tuple[str, tuple[int, int] | None, float], ...] = ()
        """Two different reads that succeeded last, and the seconds that each took."""
        self.is_noticed = False
        """Whether a notice of the current outage has been sent."""
        self.noticing = threading.Lock()
        """Held while `is_noticed` changes."""
        self.probing = threading.Lock()
        """Held by the thread that asks it for another object."""

    def answered(self, now: float) -> None:
        """Note that a request succeeded."""
        self.answered_at = now

    def delivered(self, what: What, *, seconds: float) -> None:
        """Note what it has delivered, to ask for that again in an outage."""
        others = [each for each in self.good if each[:2] != what]
        self.good = (*what, seconds), *others[:1]

    def failed(self, failure: RequestFailure, *, began: float, now: float) -> None:
        """Note that a request failed, though it may succeed later."""
        if not self.is_failing:
            self.failing_since = max(began, self.answered_at)
        self.failed_at = now
        if failure.wait_seconds is not None:
            self.resumes_at = max(self.resumes_at, now + failure.wait_seconds)

    @property
    def is_failing(self) -> bool:
        """Whether its last answer was a failure."""
        return self.failing_since >= self.answered_at and self.failed_at > self.answered_at


@dataclass(slots=True, kw_only=True)
class Attempts:
    """The attempts of one read so far. Decides whether another one is made, and when."""

    limits: Limits
    server: Server
    began: float
    deadline: float
    count: Counter[str] = field(default_factory=Counter)
    """Failures by kind."""
    first_of_kind: dict[str, RequestFailure] = field(default_factory=dict)
    num_blames: int = 0
    """Failures while the server answered another request: then the object is to blame."""
    num_unsent: int = 0
    """Attempts that failed before the server knew which object was wanted."""
    last: RequestFailure | None = None
    _last_uncut: RequestFailure | None = None
    last_failed_at: float = float("-inf")
    previous_failed_at: float = float("-inf")
    _is_extended: bool = False

    @classmethod
    def begin(cls, limits: Limits, server: Server, *, now: float) -> "Attempts":
        """Begin a read. It ends together with other reads that the same outage delays."""
        deadline = now + limits.retry_seconds
        if server.is_failing and now - server.failed_at < limits.request_seconds + limits.fresh_seconds:
            # An outage that has lasted longer than the limit gets another chance, but not all of the time again.
            deadline = min(deadline, max(server.failing_since + limits.retry_seconds, now + limits.fresh_seconds))
        return cls(limits=limits, server=server, began=now, deadline=deadline)

    def failed(self, failure: RequestFailure, *, now: float, seconds: float = 0.0, limit_seconds: float = inf) -> None:
        """Note a failed attempt, which took so long and might take up to its limit."""
        if limit_seconds >= self.limits.request_seconds or seconds < limit_seconds * _CUT_SHARE:
            self._last_uncut = failure
        self.num_unsent += failure.is_unsent
        has_answered = self.last is not None and self.server.answered_at > self.last_failed_at
        self.num_blames += has_answered and not failure.is_unsent
        self.last, self.previous_failed_at, self.last_failed_at = failure, self.last_failed_at, now
        self.count[failure.what] += 1
        self.first_of_kind.setdefault(failure.what, failure)

    @property
    def cause(self) -> RequestFailure:
        """The first failure of the kind of the last one.

        An attempt that the end of all attempts has cut short says nothing if others had their time.
        """
        last = self._last_uncut or self.last
        assert last is not None
        return self.first_of_kind[last.what]

    def limit_seconds(self, now: float) -> float:
        """Return the time limit of the next attempt. Limits repeat, since a client may be made for each of them."""
        seconds = self.limits.request_seconds
        least_seconds = seconds * _LEAST_SHARE
        while seconds > self.deadline - now and seconds > least_seconds:
            seconds /= 2
        return seconds

    def wait_seconds(self, now: float) -> float | None:
        """Return how long to wait before the next attempt; None if there is none."""
        assert self.last is not None
        if not self.last.is_temporary or (self.num_blames >= _MAX_BLAMES and not self.last.is_overload):
            return None
        left = self.deadline - now - self.limits.request_seconds * _LEAST_SHARE
        if left <= 0:
            is_late = now + self.limits.fresh_seconds > self.began + _MOST_SHARE * self.limits.retry_seconds
            if self.num_blames or self.server.is_failing or self._is_extended or is_late:
                return None
            self._is_extended = True  # the server answers others by now, so this object gets a last chance
            self.deadline = now + self.limits.fresh_seconds
            return 0.0
        most = min(_MAX_WAIT_SECONDS, self.limits.fresh_seconds, left)
        num_doublings = min(self.count.total() - 1, 20)
        return min(most, _FIRST_WAIT_SECONDS * float(1 << num_doublings)) * random.uniform(0.5, 1.0)

    @property
    def is_outage(self) -> bool:
        """Whether the server, not the object, is to blame for the failures."""
        assert self.last is not None
        if not self.last.is_temporary:
            return self.last.is_of_server
        # When an outage begins, answers to earlier requests may still arrive, so an early blame proves nothing.
        has_ceased = self.server.is_failing and self.server.failing_since < self.previous_failed_at
        # A server that shuts down refuses new connections, and still answers over those that it has.
        return has_ceased or not self.num_blames or 2 * self.num_unsent > self.count.total()

    def described(self, now: float) -> str:
        """Return what was tried: `3 attempts in 2.1 s (2 x connection refused, 1 x no answer in time)`."""
        total = self.count.total()
        kinds = ", ".join(f"{number} x {what}" for what, number in self.count.most_common(4))
        return (
            f"{total} attempt{'s' * (total != 1)} in {max(0.001, now - self.began):.3g} s{f' ({kinds})' * (total > 1)}"
        )
