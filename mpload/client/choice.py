"""Which servers a rank asks, and which of them next. Pure: the caller passes the time."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from mpload.plan.topology import Topology

__all__ = ["LONGEST_PAUSE_SECONDS", "SHORTEST_PAUSE_SECONDS", "Choice", "Nearest"]

SHORTEST_PAUSE_SECONDS = 0.5
"""How long a server is left out after it has failed. Each further failure doubles the pause."""
LONGEST_PAUSE_SECONDS = 30.0
_TRIAL_SHARE = 1 / 20
"""How much of its time a worker spends on failing servers at most, all of them together."""
_CHARGED_SECONDS = 1.0
"""How much of the wait for a server that had not failed before counts for that, so that it is soon tried again."""
_MORE_OWED = 1
"""How many more answers a server may owe than the least busy one, and still be asked for what is its turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """The servers of a rank: it asks the first few of `order`, and the next ones if some of those fail."""

    order: tuple[int, ...]
    """The numbers of all servers that are listed."""
    num_few: int

    @classmethod
    def of(cls, urls: Sequence[str], topology: Topology, *, servers_per_rank: int) -> "Nearest":
        """Return the servers of a rank. All jobs with these servers and as many ranks have the same.

        Ranks take `servers_per_rank` servers each, or more if servers were left with fewer than that many ranks. They
        take them in turn, so that no server has two ranks more than another. What stands in for a server that fails is
        drawn for each rank (rendezvous hashing), so that its load is spread over all others.
        """
        num_servers, num_ranks = len(urls), topology.world_size
        num_few = min(num_servers, max(servers_per_rank, -(-servers_per_rank * num_servers // num_ranks)))
        in_turn = sorted(range(num_servers), key=urls.__getitem__)
        few = [in_turn[(topology.rank * num_few + place) % num_servers] for place in range(num_few)]
        others = set(in_turn).difference(few)
        drawn = sorted(others, key=lambda number: blake2b(f"{topology.rank} {urls[number]}".encode()).digest())
        return cls(order=(*few, *drawn), num_few=num_few)


@dataclass(slots=True)
class _Server:
    num_unanswered: int = 0
    pause_seconds: float = 0.0
    """0 while the server answers."""
    resumes_at: float = -math.inf
    problem: str = ""
    """What it did last instead of answering."""


class Choice:
    """Chooses among the few servers that are nearest in turn, unless one owes this worker much more than another.

    A server that fails is left out, for a pause that doubles with each failure. After it, one request at a time shows
    whether the server is back. Meanwhile the next one in order takes its place. Such trials take a small part of a
    worker's time, however many servers fail: there is one at a time, and a longer time without any after one that took
    long. That does not hold while nothing but a failing server can help.

    Args:
        num_servers: number of servers.
        is_awaited: whether nothing but a server can make the samples.
        jitter: returns a random number in [0, 1), so that the workers do not return to a server all at once.
        longest_pause_seconds: upper limit of a pause, without its jitter.
    """

    def __init__(
        self,
        num_servers: int,
        *,
        jitter: Callable[[], float],
        is_awaited: bool = False,
        longest_pause_seconds: float = LONGEST_PAUSE_SECONDS,
    ) -> None:
        self._servers = [_Server() for _ in range(num_servers)]
        self.nearest = Nearest(order=tuple(range(num_servers)), num_few=num_servers)
        """The servers of this worker's rank. See `use`."""
        self._jitter = jitter
        self._is_awaited = is_awaited
        self._longest_seconds = longest_pause_seconds
        self._trials_at = -math.inf  # when a failing server may be tried again

    def use(self, nearest: Nearest) -> None:
        """Choose among these servers from now on. Failures of those that come back are forgotten."""
        self._servers += [_Server() for _ in range(len(self._servers), 1 + max(nearest.order, default=-1))]
        for number in set(nearest.order).difference(self.nearest.order):
            server = self._servers[number]
            server.pause_seconds, server.resumes_at, server.problem = 0.0, -math.inf, ""
        self.nearest = nearest

    def pick(self, turn: int, now: float, *, without: Collection[int] = ()) -> int | None:
        """Return the number of the server to ask, and count the request; None if none may be asked now.

        Args:
            turn: number of the request. Equal requests of several jobs have the same, and so meet the same server.
            now: the time.
            without: servers that are not wanted.
        """
        few = self.few(now, without=without)
        start = turn % max(1, len(few))
        ready = [number for number in few[start:] + few[:start] if self._is_ready(number)]
        if not ready:
            return None
        most = _MORE_OWED + min(self._servers[number].num_unanswered for number in ready)
        chosen = next(number for number in ready if self._servers[number].num_unanswered <= most)
        self._servers[chosen].num_unanswered += 1
        return chosen

    def few(self, now: float, *, without: Collection[int] = ()) -> list[int]:
        """Return the servers to choose among: the nearest that answer, and those before them that may be back."""
        order = [each for each in self.nearest.order if each not in without and now >= self._servers[each].resumes_at]
        tried = self.on_trial(now)
        found, num_sound = list[int](), 0
        for number in order:
            is_sound = not self._servers[number].pause_seconds
            if is_sound or number in tried:
                found.append(number)
                num_sound += is_sound
                if num_sound == self.nearest.num_few:
                    break
        return found

    def on_trial(self, now: float) -> Sequence[int]:
        """Return those of the servers whose pause is over that may be asked although they have failed."""
        ready = [each for each in self.nearest.order if now >= self._servers[each].resumes_at]
        failing = [number for number in ready if self._servers[number].pause_seconds]
        if not self.has_other_help(now):
            return failing
        if now < self._trials_at or any(not self._is_ready(number) for number in self.nearest.order):
            return []
        return sorted(failing, key=lambda number: self._servers[number].resumes_at)[:1]

    def _is_ready(self, number: int) -> bool:
        server = self._servers[number]
        return not (server.pause_seconds and server.num_unanswered)

    def end(self, number: int) -> None:
        """Count a request as no longer open: it was answered, has failed, or was given up."""
        self._servers[number].num_unanswered -= 1

    def answered(self, number: int) -> bool:
        """Note that a server has answered as it should. Return whether it had failed before."""
        server = self._servers[number]
        had_failed = bool(server.pause_seconds)
        server.pause_seconds, server.resumes_at, server.problem = 0.0, -math.inf, ""
        return had_failed

    def failed(self, number: int, now: float, problem: str, *, seconds: float = 0.0) -> bool:
        """Note that a server has failed, after a wait of so long. Return whether it had answered before."""
        server = self._servers[number]
        had_failed = bool(server.pause_seconds)
        server.problem = problem
        charged = seconds if had_failed else min(seconds, _CHARGED_SECONDS)
        self._trials_at = max(self._trials_at, now + charged * (1 / _TRIAL_SHARE - 1))
        if now < server.resumes_at:
            return not had_failed  # an older request has failed too: the same failure
        server.pause_seconds = min(self._longest_seconds, max(SHORTEST_PAUSE_SECONDS, 2 * server.pause_seconds))
        server.resumes_at = now + server.pause_seconds * (1 + self._jitter() / 2)
        return not had_failed

    def busy(self, number: int, now: float, seconds: float) -> None:
        """Note that a server wants no requests for so long. That is no failure."""
        server = self._servers[number]
        server.problem = f"is busy, and asks to be left alone for {seconds:g} s"
        server.resumes_at = max(server.resumes_at, now + min(seconds, self._longest_seconds))

    def seconds_until_ready(self, now: float, *, only_sound: bool = False, without: Collection[int] = ()) -> float:
        """Return how long no server may be asked; 0 if one may be asked now, and infinity if there is none.

        Those of `without` do not count, nor do those that have failed with `only_sound`.
        """
        first = -math.inf if self._is_awaited else self._trials_at
        servers = [self._servers[number] for number in self.nearest.order if number not in without]
        resume = [each.resumes_at for each in servers if not each.pause_seconds]
        if not only_sound:
            resume += [max(first, each.resumes_at) for each in servers if each.pause_seconds]
        return max(0.0, min(resume, default=math.inf) - now)

    def has_other_help(self, now: float) -> bool:
        """Return whether there is anything else to do than to wait for servers that have failed."""
        servers = [self._servers[number] for number in self.nearest.order]
        return not self._is_awaited or any(not each.pause_seconds and now >= each.resumes_at for each in servers)

    def has_lost_time(self, now: float) -> bool:
        """Return whether so much time was spent on failing servers lately that none is tried at present."""
        return now < self._trials_at

    def pause_of(self, number: int) -> float:
        """Return how long a server was left out after its latest failure; 0 if it has answered since."""
        return self._servers[number].pause_seconds

    def problem_of(self, number: int) -> str:
        """Return what a server did last instead of answering; empty if nothing."""
        return self._servers[number].problem
