"""`Patience`: how long a worker waits for a server, and how it finds out that a failing one is back."""

import math
from collections.abc import Callable, Sequence

from mpload.client.choice import Choice
from mpload.client.options import Servers
from mpload.client.probing import Probe
from mpload.client.requests import KnownServer

__all__ = ["PATIENCE_SECONDS", "Patience"]

PATIENCE_SECONDS = 1.0
"""How long a worker does nothing but wait for a server, if it can make the samples itself."""
_TRIAL_SHARE = 1 / 4
"""How long a worker waits to see whether a server is back, as a fraction of the time for which it was left out."""
_TRIAL_CONNECT_SECONDS = 1.2
"""How long that worker tries to connect: a packet that was lost is sent again after a second."""
_SUSPECT_SHARE = 1 / 8
"""How much of the time limit a server gets that has not failed, shortly after others did not answer in time."""


class Patience:
    """Decides how long one worker waits.

    Args:
        servers: the limits.
        choice: which servers have failed.
        known: the servers, by number. It may grow.
        failed: is called with the number of a server, and why nothing accepts connections there.
    """

    def __init__(
        self, servers: Servers, choice: Choice, known: Sequence[KnownServer], *, failed: Callable[[int, str], None]
    ) -> None:
        self._servers = servers
        self._choice = choice
        self._known = known
        self._failed = failed

    def answer_seconds(self, server: int, now: float) -> float:
        """Return how long a server has to answer. It is short for one that has failed, if there is anything else to do.

        The limit grows with the pauses, in case that the server needs so long.
        """
        limit_seconds, pause_seconds = self._servers.request_timeout_seconds, self._choice.pause_of(server)
        if not self._is_suspect(server, now):
            return limit_seconds
        least_seconds = pause_seconds * _TRIAL_SHARE if pause_seconds else limit_seconds * _SUSPECT_SHARE
        usual_seconds = 2e-9 * self._known[server].latencies.any_late_ns
        return min(limit_seconds, max(PATIENCE_SECONDS, usual_seconds, least_seconds))

    def connect_seconds(self, server: int, now: float) -> float:
        """Return how long a worker waits for a connection; infinity if the limit of `Servers` is enough."""
        return _TRIAL_CONNECT_SECONDS if self._is_suspect(server, now) else math.inf

    def _is_suspect(self, server: int, now: float) -> bool:
        """Return whether a server gets less time, since it has failed, or others have cost much time just now."""
        is_awaited = self._servers.fallback == "raise"
        if is_awaited and len(self._choice.nearest.order) == 1:
            return False  # there is nothing else to do
        return bool(self._choice.pause_of(server)) or (not is_awaited and self._choice.has_lost_time(now))

    def _doubtful(self, now: float) -> Sequence[int]:
        if not self._choice.has_other_help(now):
            return ()
        new = [number for number in self._choice.nearest.order if self._known[number].answered_at == -math.inf]
        return (
            *self._choice.on_trial(now),
            *(number for number in new if not self._choice.pause_of(number) and self._is_suspect(number, now)),
        )

    def unreached(self, now: float) -> Sequence[int]:
        """Return the servers that could be asked, but which are not known to accept connections.

        Those are one whose pause is over, and those that were never asked, if others have cost much time just now.
        Nobody waits to find that out. If there is nothing else to do, none is returned.
        """
        found = list[int]()
        for number in self._doubtful(now):
            known = self._known[number]
            if known.probe is None:
                known.probe = Probe(known.url, until=now + self._servers.connect_timeout_seconds)
            is_done = known.probe.is_done(now)
            if is_done and known.probe.is_reached:
                continue
            found.append(number)
            if is_done:
                problem, known.probe = known.probe.problem, None
                self._failed(number, problem)
        return found
