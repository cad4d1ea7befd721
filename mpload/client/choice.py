"""Which server a worker asks next. Pure: the caller passes the time."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

__all__ = ["LONGEST_PAUSE_SECONDS", "SHORTEST_PAUSE_SECONDS", "Choice"]

SHORTEST_PAUSE_SECONDS = 0.5
"""How long a server is left out after it has failed. Each further failure doubles the pause."""
LONGEST_PAUSE_SECONDS = 30.0


@dataclass(slots=True)
class _Server:
    num_unanswered: int = 0
    pause_seconds: float = 0.0
    """0 while the server answers."""
    resumes_at: float = -math.inf
    problem: str = ""
    """What it did last instead of answering."""


class Choice:
    """Chooses the server that owes this worker the fewest answers, in turn if several do.

    A server that fails is left out, for a pause that doubles with each failure. After it, one request at a time shows
    whether the server is back.

    Args:
        num_servers: number of servers.
        first: the server that comes first, so that the workers begin with different ones.
        jitter: returns a random number in [0, 1), so that the workers do not return to a server all at once.
        longest_pause_seconds: upper limit of a pause, without its jitter.
    """

    def __init__(
        self,
        num_servers: int,
        *,
        first: int,
        jitter: Callable[[], float],
        longest_pause_seconds: float = LONGEST_PAUSE_SECONDS,
    ) -> None:
        self._servers = [_Server() for _ in range(num_servers)]
        self._turn = first % num_servers
        self._jitter = jitter
        self._longest_seconds = longest_pause_seconds

    def pick(self, now: float, *, without: Collection[int] = ()) -> int | None:
        """Return the number of the server to ask, and count the request; None if none may be asked now."""
        ready = [
            number for number in range(len(self._servers)) if number not in without and self._is_ready(number, now)
        ]
        if not ready:
            return None
        chosen = min(ready, key=lambda number: (self._servers[number].num_unanswered, self._places_after_turn(number)))
        self._turn = (chosen + 1) % len(self._servers)
        self._servers[chosen].num_unanswered += 1
        return chosen

    def _is_ready(self, number: int, now: float) -> bool:
        server = self._servers[number]
        return now >= server.resumes_at and not (server.pause_seconds and server.num_unanswered)

    def _places_after_turn(self, number: int) -> int:
        return (number - self._turn) % len(self._servers)

    def end(self, number: int) -> None:
        """Count a request as no longer open: it was answered, has failed, or was given up."""
        self._servers[number].num_unanswered -= 1

    def answered(self, number: int) -> bool:
        """Note that a server has answered as it should. Return whether it had failed before."""
        server = self._servers[number]
        had_failed = bool(server.pause_seconds)
        server.pause_seconds, server.resumes_at, server.problem = 0.0, -math.inf, ""
        return had_failed

    def failed(self, number: int, now: float, problem: str) -> bool:
        """Note that a server has failed. Return whether it had answered before."""
        server = self._servers[number]
        had_failed = bool(server.pause_seconds)
        server.problem = problem
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

    def seconds_until_ready(self, now: float) -> float:
        """Return how long no server may be asked; 0 if one may be asked now."""
        return max(0.0, min(server.resumes_at for server in self._servers) - now)

    def pause_of(self, number: int) -> float:
        """Return how long a server was left out after its latest failure; 0 if it has answered since."""
        return self._servers[number].pause_seconds

    @property
    def problems(self) -> Sequence[str]:
        """What each server did last instead of answering; empty if nothing."""
        return [server.problem for server in self._servers]
