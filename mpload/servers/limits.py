"""`ServerLimits`: how long a server waits, and for how many."""

from dataclasses import dataclass

from mpload.errors import ArgumentError

__all__ = ["ServerLimits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """How long a server waits for a client, and how many requests may wait for it.

    Raises:
        ArgumentError: a limit is not positive.
    """

    client_seconds: float = 60.0
    """A client that takes longer to send a request, to read an answer, or between two requests, is cut off."""
    stop_seconds: float = 30.0
    """Time for the requests under way when the server is asked to stop."""
    max_waiting: int = 4096
    """Maximum number of requests that wait for workers. Further ones get the answer 503."""

    def __post_init__(self) -> None:
        for name in ("client_seconds", "stop_seconds", "max_waiting"):
            if not getattr(self, name) > 0:
                raise ArgumentError(f"{name} must be positive, got {getattr(self, name)}")
