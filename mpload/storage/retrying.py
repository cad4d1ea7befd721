"""Repeats requests to a server that fail, for as long as the limits allow, and says what was tried."""

import errno
import multiprocessing
import random
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeVar

from mpload.errors import OutageError, StorageError
from mpload.storage.notices import Notice, Notices
from mpload.storage.object_facts import ObjectFacts
from mpload.storage.request_failure import RequestFailure
from mpload.storage.servers import Attempts, Limits, Server, What
from mpload.units import format_seconds

if TYPE_CHECKING:
    from mpload.storage.quick_reads import QuickReads

__all__ = ["Client", "RetryingClient"]

_PROBE = "mpload-probe"
"""Name of an object that does not exist. A server that says so is alive."""
_PROBE_SHARE = 4
_MAX_REMEMBERED = 256
_JITTER_SECONDS = 0.1
_CALM_SECONDS = 5.0

_FACTS = (-1, 0)
"""Stands for a span if the size and the version of an object are requested."""
_Answer = TypeVar("_Answer")
Rest = Callable[..., bytes]
"""Goes on with a read that was begun: the arguments are those of `RetryingClient.fetch`, with the object."""


class Client(Protocol):
    """Makes single requests, as `WebClient` and `BucketClient` do."""

    def fetch(self, url: str, key: str, span: tuple[int, int] | None, *, limit_seconds: float) -> bytes:
        """Return the bytes of an object, or of a span of it, or raise `RequestFailure`."""
        ...

    def look_up(self, url: str, key: str, *, limit_seconds: float) -> ObjectFacts:
        """Return the size and the version of an object, or raise `RequestFailure`."""
        ...


class RetryingClient:
    """Reads from one server, or bucket.

    If a request fails, the server may be down, or only this object may be bad. It is the object if the server answers
    other requests. If no other thread makes one, this client makes one itself: it repeats an earlier read that
    succeeded, since a server that only drips can still send a few bytes. Before any has succeeded, it makes one of the
    `examples`.

    Args:
        client: makes the requests.
        url: the URL of the server, or the bucket.
        limits: the time limits.
        examples: returns a few reads of which most should succeed.
        notices: is told about outages before they lead to errors.
        quick: makes the first request of reads that `begin` begins, if there is such a client for the server.

    Process: for the process in which it was made. Any thread may read.
    """

    def __init__(
        self,
        client: Client,
        url: str,
        limits: Limits,
        *,
        examples: Callable[[], Iterable[What]] = tuple,
        notices: Notices | None = None,
        quick: "QuickReads | None" = None,
    ) -> None:
        self._client = client
        self._quick = quick
        self._url = url
        self._limits = limits
        self._examples = examples
        self._notices = notices or Notices()
        self._server = Server()
        self._outage = ""  # the message of the latest outage
        self._failed: dict[What, tuple[float, str]] = {}  # what could not be read, until when that counts, and why

    def fetch(self, key: str, span: tuple[int, int] | None, is_wanted: Callable[[], bool] = lambda: True) -> bytes:
        """Return the bytes of an object, or of a span of it: (offset, length). A span may end early.

        A request that fails is repeated only while `is_wanted` returns true.

        Raises:
            OutageError: the server does not answer. The message does not contain the URL.
            StorageError: the object cannot be read. The message does not contain the URL.
        """
        return self._repeated((key, span), partial(self._client.fetch, self._url, key, span), is_wanted)

    def begin(self, key: str, span: tuple[int, int] | None, ended: Callable[[bytes | None, Rest | None], None]) -> bool:
        """Begin to read the same as `fetch`, without waiting. Return False if `fetch` must be called instead.

        `ended` is called in another thread with the bytes, or with what reads them: it is called with this object, the
        key and the span, and otherwise does what `fetch` does.
        """
        quick, what, began = self._quick, (key, span), time.monotonic()
        if quick is None or not quick.is_usual or not self.is_calm or what in self._failed:
            return False

        def found(data: bytes | None, failure: RequestFailure | None = None, *, is_unusual: bool = False) -> None:
            now = time.monotonic()
            if data is not None:
                self._server.answered(now)  # it is another thread that says so: a notice may have to wait
                self._server.delivered(what, seconds=now - began)
            elif failure is not None:
                self._server.failed(failure, began=began, now=now)
            rest = partial(RetryingClient._go_on, began=began, failure=failure, is_unusual=is_unusual)
            ended(data, rest if data is None else None)

        return quick.begin(key, span, limit_seconds=self._limits.request_seconds, found=found)

    def _go_on(
        self,
        key: str,
        span: tuple[int, int] | None,
        is_wanted: Callable[[], bool] = lambda: True,
        *,
        began: float,
        failure: RequestFailure | None,
        is_unusual: bool,
    ) -> bytes:
        """Read what `begin` has not read, within the same limits."""
        request = partial(self._client.fetch, self._url, key, span)
        data = self._repeated((key, span), request, is_wanted, began=began)
        if self._quick is not None and (is_unusual or failure is not None):
            self._quick.refused(is_failure=failure is not None)
        return data

    def fetch_once(self, key: str, span: tuple[int, int] | None) -> bytes:
        """Return the same as `fetch`, with one request. Raises `StorageError` if that fails."""
        began = time.monotonic()
        try:
            data = self._client.fetch(self._url, key, span, limit_seconds=self._limits.request_seconds)
        except RequestFailure as failure:
            self._note(failure, began=began)
            message = str(failure)
        else:
            self._answered()
            return data
        raise StorageError(message)

    @property
    def is_calm(self) -> bool:
        """Whether no request has failed for some seconds, apart from those for objects that the server refuses."""
        now, server = time.monotonic(), self._server
        return not server.is_failing and now - server.failed_at > _CALM_SECONDS and now >= server.resumes_at

    def look_up(self, key: str) -> ObjectFacts:
        """Return the size and the version of an object. Errors are those of `fetch`."""
        return self._repeated((key, _FACTS), partial(self._client.look_up, self._url, key))

    def _repeated(
        self,
        what: What,
        request: Callable[..., _Answer],
        is_wanted: Callable[[], bool] = lambda: True,
        *,
        began: float | None = None,
    ) -> _Answer:
        """Return the answer to a request, which is repeated if it fails. The limits hold from `began` on."""
        began = time.monotonic() if began is None else began
        attempts = Attempts.begin(self._limits, self._server, now=began)
        self._raise_if_known(what, attempts, now=time.monotonic())
        while True:
            if self._server.is_failing:
                _check_parent()
            if self._await_turn(what, attempts) and attempts.last is not None and self._server.is_failing:
                self._probe(what, attempts)
            began = time.monotonic()
            limit_seconds = attempts.limit_seconds(began)
            try:
                answer = request(limit_seconds=limit_seconds)
            except RequestFailure as failure:
                if not is_wanted():
                    raise StorageError(f"{failure} (no longer wanted)") from None
                now = time.monotonic()
                attempts.failed(failure, now=now, seconds=now - began, limit_seconds=limit_seconds)
                self._note(failure, began=began)
            else:
                self._answered()
                if what[1] != _FACTS:
                    self._server.delivered(what, seconds=time.monotonic() - began)
                return answer
            if self._server.is_failing:
                _check_parent()
                self._probe(what, attempts)
            wait_seconds = attempts.wait_seconds(time.monotonic())
            if wait_seconds is None:
                self._give_up(what, attempts)
            self._notice(attempts, wait_seconds=wait_seconds)
            time.sleep(wait_seconds)

    def _note(self, failure: RequestFailure, *, began: float) -> None:
        now = time.monotonic()
        if failure.is_answer:
            self._answered()
        else:
            self._server.failed(failure, began=began, now=now)

    def _answered(self) -> None:
        server, now = self._server, time.monotonic()
        server.answered(now)
        if server.is_noticed:
            with server.noticing:
                was_noticed, server.is_noticed = server.is_noticed, False
            if was_noticed:
                lasted = format_seconds(now - server.failing_since)
                text = f"{self._url}: the server answers again, after {lasted}"
                self._notices.send(Notice(place=self._url, is_outage=False, text=text))

    def _notice(self, attempts: Attempts, *, wait_seconds: float) -> None:
        """Say that there is an outage, if it will have lasted for some time when the next request is made."""
        server, now = self._server, time.monotonic()
        if attempts.last is None or server.is_noticed or not server.is_failing:
            return
        if now + wait_seconds < server.failing_since + self._limits.quiet_seconds:
            return
        with server.noticing:
            was_noticed, server.is_noticed = server.is_noticed, True
        if not was_noticed:
            left = format_seconds(max(0.0, attempts.deadline - now))
            text = (
                f"{self._url}: {attempts.cause} ({attempts.described(now)}). No request to this server succeeds. "
                f"Requests are repeated for {left} more, and no sample is skipped meanwhile. "
                f"MPDataset(storage=RemoteStorage(retry_seconds={self._limits.retry_seconds:g})) sets that limit"
            )
            try:
                self._notices.send(Notice(place=self._url, is_outage=True, text=text, answered_at=server.answered_at))
            except OutageError:
                server.is_noticed = False  # a thread that reads ahead drops errors, so that another one must say it too
                raise

    def _await_turn(self, what: What, attempts: Attempts) -> bool:
        """Wait until the server wants to be asked again, and return whether that took any time."""
        has_waited = False
        while (pause := self._server.resumes_at - (now := time.monotonic())) > 0:
            if now + pause >= attempts.deadline:
                if attempts.last is None:
                    attempts.failed(RequestFailure("server overloaded"), now=now)
                self._give_up(what, attempts, note=f", and asks to wait for {format_seconds(pause)} more")
            self._notice(attempts, wait_seconds=pause)
            time.sleep(pause + random.uniform(0, min(_JITTER_SECONDS, self._limits.fresh_seconds)))
            has_waited = True
        return has_waited

    def _probe(self, what: What, attempts: Attempts) -> None:
        """Ask the server for something else, in one thread at a time, unless it wants to be left alone."""
        server = self._server
        now = time.monotonic()
        if server.resumes_at > now or now >= attempts.deadline or not server.probing.acquire(blocking=False):
            return
        try:
            key, span, usual_seconds = self._other(what)
            limit_seconds = attempts.limit_seconds(now)
            if 2 * usual_seconds < limit_seconds / _PROBE_SHARE:
                limit_seconds /= _PROBE_SHARE
            self._client.fetch(self._url, key, span, limit_seconds=limit_seconds)
            self._answered()
            server.delivered((key, span), seconds=time.monotonic() - now)
        except RequestFailure as failure:
            self._note(failure, began=now)
        except StorageError:  # the object has become too large
            self._answered()
        finally:
            server.probing.release()

    def _other(self, what: What) -> tuple[str, tuple[int, int] | None, float]:
        """Return another read than `what`, with which to find out whether the server answers, and its usual seconds."""
        for each in self._server.good:
            if each[:2] != what:
                return each
        if others := [each for each in self._examples() if each != what]:
            return *random.choice(others), float("inf")
        return f"{what[0].rpartition('/')[0]}/{_PROBE}".lstrip("/"), (0, 1), 0.0

    def _raise_if_known(self, what: What, attempts: Attempts, *, now: float) -> None:
        """Raise again what was raised a moment ago, since a failed sample is read several times."""
        server = self._server
        if server.is_failing and now - server.given_up_at < self._limits.outage_seconds:
            raise OutageError(self._outage)
        for other, (until, message) in list(self._failed.items()):
            if now < until:
                if other == what:
                    raise StorageError(message)
                if _is_part(what, other):  # it may be good: another part of it may be to blame
                    attempts.deadline = min(attempts.deadline, now + self._limits.fresh_seconds)

    def _give_up(self, what: What, attempts: Attempts, *, note: str = "") -> NoReturn:
        now = time.monotonic()
        failure = attempts.cause
        if failure.is_answer:
            message = str(failure) if attempts.count.total() == 1 else f"{failure} ({attempts.described(now)})"
            refused = StorageError(message)
            refused.errno = errno.ENOENT if failure.is_missing else None
            raise refused from None
        message = f"{failure}{note} ({attempts.described(now)}; retry_seconds={self._limits.retry_seconds:g})"
        if attempts.is_outage:
            others = "The server answers no other request either"
            if failure.is_of_server:
                others = "All requests fail in this way"
            elif not self._server.is_failing:
                others = "The server answers only over connections that were made earlier"
            self._outage = f"{message}. {others}, so no sample is skipped"
            self._server.given_up_at = now
            raise OutageError(self._outage) from None
        message = f"{message}. The server answers other requests"
        for other, (until, _) in list(self._failed.items()):
            if now > until:
                self._failed.pop(other, None)
        if len(self._failed) < _MAX_REMEMBERED:
            self._failed[what] = max(now, self._server.resumes_at) + self._limits.fresh_seconds, message
        raise StorageError(message) from None


def _check_parent() -> None:
    """Raise `OutageError` if the process that started this one, such as a DataLoader's, has ended."""
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        raise OutageError("requests are not repeated, since the process that started this one has ended")


def _is_part(what: What, of: What) -> bool:
    span, whole = what[1], of[1]
    if what[0] != of[0] or span is None or whole is None:
        return False
    return whole[0] <= span[0] and sum(span) <= sum(whole)
