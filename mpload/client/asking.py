"""Asks servers for samples: keeps several requests open, repeats those that fail, and makes late ones a second time."""

import math
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from mpload.client.choice import Choice, Nearest
from mpload.client.connection import Busy, Connection, OtherDataset, Refused, RequestError, readable, tls_for
from mpload.client.listing import ServerList
from mpload.client.options import Servers, longest_pause_of
from mpload.client.patience import PATIENCE_SECONDS, Patience
from mpload.client.protocol import Description
from mpload.client.refusals import differences
from mpload.client.requests import Answered, KnownServer, Piece, Read, Request
from mpload.errors import ArgumentError, ServerError
from mpload.plan.topology import Topology
from mpload.storage.notices import Notice
from mpload.telemetry.server_stats import ServerCounts
from mpload.units import format_seconds

__all__ = ["HEDGES_PER_REQUEST", "Asking"]

HEDGES_PER_REQUEST = 0.05
"""Second requests, as a fraction of all requests so far."""
_MAX_SAVED_HEDGES = 8
_LEAST_LATE_SECONDS = 0.05
_TICK_SECONDS = 1.0


class Asking:
    """One worker's requests.

    Args:
        servers: whom to ask.
        description: of the samples that are wanted.
        notify: called when a server fails, and when it answers again.

    Process: each has its own. Connections are made when they are needed.
    """

    def __init__(self, servers: Servers, description: Description, *, notify: Callable[[Notice], None]) -> None:
        self._servers = servers
        self._description = description
        self._digest = description.digest
        self._notify = notify
        self._tls = tls_for(servers)
        self._list = ServerList(servers.urls, None if servers.list_file is None else Path(servers.list_file))
        self._known = [KnownServer(url=url) for url in self._list.urls]
        self._choice = Choice(
            len(self._known),
            jitter=random.Random().random,
            is_awaited=servers.fallback == "raise",
            longest_pause_seconds=longest_pause_of(servers),
        )
        self._patience = Patience(servers, self._choice, self._known, failed=self._note_failure)
        self._topology: Topology | None = None
        self._open: dict[Piece, Request] = {}
        self._began: float | None = None  # since when the next piece to read is waited for
        self._until = math.inf  # when that wait ends
        self._saved_hedges = 0.0
        self.counts = ServerCounts()
        """What servers have done; the caller may take it."""
        self.num_hedges = 0
        """Requests that were made a second time; the caller may reset it."""

    def use_topology(self, topology: Topology) -> None:
        """Ask the servers of this rank from now on."""
        if topology != self._topology:
            self._topology = topology
            self._use_listed()

    def ask_ahead(self, wanted: Mapping[Piece, Callable[[], bytes]]) -> None:
        """Keep a request open for each of these pieces if a server is available, and give up all other requests.

        The values return the body of a request.

        Raises:
            ServerError: a server is another user's.
        """
        self._update()
        self._wait_from_now()
        for piece in [piece for piece in self._open if piece not in wanted]:
            self._give_up(self._open.pop(piece))
        for piece, body in wanted.items():
            if piece not in self._open:
                request = self._sent(piece, body())
                if request is None:
                    return
                self._open[piece] = request

    def answer(
        self, piece: Piece, body: Callable[[], bytes], read: Read, *, live: Callable[[], None]
    ) -> Answered | None:
        """Return the answer for a piece; None if no server gives any and the samples can be made here.

        Args:
            piece: what is wanted.
            body: returns the body of the request.
            read: receives an answer. It may be called again, if an answer breaks off.
            live: is called at least once for each request, and each second of waiting for a server.

        Raises:
            ServerError: a server refuses this loader, or none answers in time.
        """
        began, waited = self._wait_from_now() if self._began is None else self._began, 0.0
        self._began = None
        is_local = self._servers.fallback == "local"
        limit_seconds = self._servers.request_timeout_seconds if is_local else self._servers.retry_seconds
        while True:
            live()
            self._update()
            now = time.monotonic()
            if now - began < limit_seconds or now == began:
                request = self._taken(piece) or self._sent(piece, body()) or self._sent_in_place(piece, body())
                if request is not None:
                    answered = self._received(request, read)
                    if answered is not None:
                        return answered
                    continue
                without = self._patience.unreached(now) if is_local else ()
                pause_seconds = self._choice.seconds_until_ready(now, only_sound=is_local, without=without)
                if not is_local or waited + pause_seconds <= PATIENCE_SECONDS:
                    pause_seconds = max(0.001, min(pause_seconds, _TICK_SECONDS, began + limit_seconds - now))
                    waited += pause_seconds
                    time.sleep(pause_seconds)
                    continue
            if is_local:
                return None
            raise ServerError(
                f"no server has made samples for {format_seconds(now - began)}: {self._problems()}. Check the "
                "servers, or pass fallback='local' to make samples in this loader when servers do not"
            )

    def _wait_from_now(self) -> float:
        """Begin to wait for the next piece, and return the time."""
        self._began = time.monotonic()
        self._until = self._began + self._servers.retry_seconds if self._servers.fallback == "raise" else math.inf
        return self._began

    def elsewhere(
        self, piece: Piece, body: bytes, read: Read, *, than: Collection[str], live: Callable[[], None]
    ) -> Answered | None:
        """Return the answer of another server than those with these URLs; None if there is none. `read` may call this.

        The other arguments are those of `answer`. No server is waited for that is left out at present.
        """
        live()
        with suppress(ServerError):  # raised again when it is asked for what is its turn
            request = self._sent(piece, body, without=[n for n, known in enumerate(self._known) if known.url in than])
            return None if request is None else self._received(request, read)
        return None

    def _taken(self, piece: Piece) -> Request | None:
        """Return the open request for a piece, unless it is so old that the server may have dropped the answer."""
        request = self._open.pop(piece, None)
        if request is not None and time.monotonic() - request.sent_at > self._servers.request_timeout_seconds:
            self._give_up(request)
            return None
        return request

    def _problems(self) -> str:
        told = [(self._known[number].url, self._choice.problem_of(number)) for number in self._listed]
        none = f"{self._servers.list_file} lists none"
        return "; ".join(f"{url} {problem or 'was not asked'}" for url, problem in told) or none

    @property
    def _listed(self) -> Sequence[int]:
        return sorted(self._choice.nearest.order)

    def _update(self) -> None:
        """Ask those servers from now on that the list names at present."""
        try:
            if self._list.update(time.monotonic()):
                self._use_listed()
        except ArgumentError as error:
            self._notify(Notice(place=str(self._servers.list_file), is_outage=True, text=f"{error}. It is not used"))

    def _use_listed(self) -> None:
        known = {server.url: number for number, server in enumerate(self._known)}
        for url in self._list.urls:
            if url not in known:
                known[url] = len(self._known)
                self._known.append(KnownServer(url=url))
        numbers = [known[url] for url in self._list.urls]
        for number in set(self._listed).difference(numbers):
            self._drop(number)
        few = self._servers.servers_per_rank
        nearest = Nearest.of(self._list.urls, self._topology or Topology(), servers_per_rank=few)
        self._choice.use(replace(nearest, order=tuple(numbers[place] for place in nearest.order)))

    def _drop(self, number: int) -> None:
        """Ask a server no more, since the list does not name it."""
        server = self._known[number]
        while server.idle:
            server.idle.pop().close()
        if server.probe is not None:
            server.probe.close()
            server.probe = None
        for piece in [piece for piece, each in self._open.items() if each.server == number]:
            self._give_up(self._open.pop(piece))
        if self._choice.pause_of(number):
            text = f"{server.url} is not listed any more, and not asked"
            self._notify(Notice(place=server.url, is_outage=False, text=text))

    def _sent(self, piece: Piece, body: bytes, *, without: Sequence[int] = ()) -> Request | None:
        """Send a request to the next server; return None if there is none, or it fails.

        Raises:
            ServerError: it is a server of another user.
        """
        now = time.monotonic()
        server = self._choice.pick(piece.turn, now, without=[*without, *self._patience.unreached(now)])
        if server is None:
            return None
        known = self._known[server]
        connection = known.idle.pop() if known.idle else Connection(known.url, self._servers, self._tls)
        known.probe = None
        connect_seconds = min(self._patience.connect_seconds(server, now), self._left_for(server, now))
        request = Request(server=server, connection=connection, piece=piece, body=body, sent_at=now, waits_since=now)
        try:
            connection.ask(body, self._digest, connect_seconds=connect_seconds)
        except Refused as error:
            self._give_up(request)
            raise self._refused(request, str(error)) from error
        except RequestError as error:
            self._failed(request, error)
            return None
        self._saved_hedges = min(_MAX_SAVED_HEDGES, self._saved_hedges + HEDGES_PER_REQUEST)
        return request

    def _left_for(self, server: int, now: float) -> float:
        """Return how much of the wait a server may use: half of what is left if it never answered and others may."""
        left_seconds = self._until - now
        is_new = self._known[server].answered_at == -math.inf
        return left_seconds / 2 if is_new and len(self._choice.nearest.order) > 1 else left_seconds

    def _sent_in_place(self, piece: Piece, body: bytes) -> Request | None:
        """Give up a request made ahead to a server that is tried again, and send one for the piece that is needed now.

        Such a server gets one request at a time. One made ahead would be read only after this piece, so never.
        """
        for ahead, request in self._open.items():
            if self._choice.pause_of(request.server):
                self._give_up(self._open.pop(ahead))
                return self._sent(piece, body)
        return None

    def _give_up(self, request: Request) -> None:
        self._choice.end(request.server)
        request.connection.close()

    def _failed(self, request: Request, error: Exception) -> None:
        """Note that a request has failed. Give up all others to the same server, which would fail one after another."""
        self._give_up(request)
        now, server = time.monotonic(), request.server
        if isinstance(error, Busy):
            self._choice.busy(server, now, error.seconds)
            return
        for piece in [piece for piece, each in self._open.items() if each.server == server]:
            self._give_up(self._open.pop(piece))
        self._note_failure(server, str(error), seconds=now - request.waits_since)

    def _note_failure(self, server: int, problem: str, *, seconds: float = 0.0) -> None:
        self.counts.failed(server)
        if self._choice.failed(server, time.monotonic(), problem, seconds=seconds):
            url = self._known[server].url
            others = "by other servers" if len(self._listed) > 1 else "when it is back"
            instead = "in this loader, unless other servers do" if self._servers.fallback == "local" else others
            text = f"{url} {problem}. It is asked again later. Until then, its samples are made {instead}"
            self._notify(Notice(place=url, is_outage=True, text=text, answered_at=self._known[server].answered_at))

    def _received(self, request: Request, read: Read) -> Answered | None:
        """Receive the answer to a request, or to the same request to another server; None if all have failed.

        Raises:
            ServerError: a server refuses this loader.
        """
        found = self._first_to_answer(request)
        if found is None:
            return None
        request, num_bytes = found
        try:
            head = read(request.connection, num_bytes)
        except (RequestError, ValueError) as error:  # a `ProtocolError` is one
            self._failed(request, error)
            return None
        server = self._known[request.server]
        num_samples, seconds = request.num_samples, request.latency_seconds
        self.counts.answered(request.server, num_samples=num_samples, num_bytes=num_bytes, latency_seconds=seconds)
        self._choice.end(request.server)
        server.answered_at = time.monotonic()
        was_failing = self._choice.answered(request.server)
        if request.connection.keep():
            server.idle.append(request.connection)
        self._close_far(self._choice.few(server.answered_at))
        if was_failing:
            self._notify(Notice(place=server.url, is_outage=False, text=f"{server.url} makes samples again"))
        return Answered(url=server.url, head=head, num_bytes=num_bytes, connection=request.connection)

    def _close_far(self, near: Collection[int]) -> None:
        """Close the connections to servers that have stood in for others."""
        for number, server in enumerate(self._known):
            while server.idle and number not in near:
                server.idle.pop().close()

    def _first_to_answer(self, request: Request) -> tuple[Request, int] | None:
        """Wait for an answer, and return what was answered and the size of the answer; None if all have failed."""
        running = [request]
        began = request.waits_since = time.monotonic()
        seconds = min(self._patience.answer_seconds(request.server, began), self._left_for(request.server, began))
        deadline = max(began, began + seconds)
        hedge_at = self._late_at(request, began)
        try:
            while running:
                now = time.monotonic()
                ready = readable(running, until=min(deadline, max(hedge_at, now)))
                if ready is not None:
                    running.remove(ready)
                    num_bytes = self._begun(ready, deadline)
                    if num_bytes is not None:
                        self._lost(running, request)
                        return ready, num_bytes
                elif time.monotonic() >= deadline:
                    for each in running:
                        self._failed(each, RequestError(f"has not answered for {format_seconds(deadline - began)}"))
                    return None
                else:
                    hedge_at = deadline
                    second = self._hedged(request)
                    if second is not None:
                        running.append(second)
        except ServerError:  # a server refuses this loader, and no other answer is read
            for each in running:
                self._give_up(each)
            raise
        return None

    def _begun(self, request: Request, deadline: float) -> int | None:
        """Read the head of an answer; return None if the request has failed."""
        request.latency_seconds = time.monotonic() - request.sent_at
        try:
            num_bytes = request.connection.begin(deadline)
        except OtherDataset as other:
            self._give_up(request)
            raise self._refused(request, differences(self._description, other.description)) from None
        except Refused as error:
            self._give_up(request)
            raise self._refused(request, str(error)) from error
        except RequestError as error:
            self._failed(request, error)
            return None
        self._known[request.server].latencies.add(round(request.latency_seconds * 1e9), request.num_samples)
        return num_bytes

    def _refused(self, request: Request, text: str) -> ServerError:
        return ServerError(f"{self._known[request.server].url} {text}")

    def _late_at(self, request: Request, now: float) -> float:
        """Return when a second request should be made, by the clock; infinity if that is unknown."""
        late_ns = self._known[request.server].latencies.late_ns(request.num_samples)
        if late_ns is None or len(self._listed) == 1:
            return float("inf")
        return max(request.sent_at + max(_LEAST_LATE_SECONDS, late_ns * 1e-9), now + _LEAST_LATE_SECONDS / 10)

    def _hedged(self, request: Request) -> Request | None:
        if self._saved_hedges < 1:
            return None
        second = self._sent(request.piece, request.body, without=[request.server])
        if second is not None:
            self._saved_hedges -= 1
            self.num_hedges += 1
        return second

    def _lost(self, running: Sequence[Request], late: Request) -> None:
        """Give up the requests that another server has answered first."""
        for each in running:
            self._give_up(each)
            if each is late:
                self._choice.failed(each.server, time.monotonic(), "was much later than usual")
