"""What `Asking` knows of a request, of its answer and of a server."""

from collections.abc import Callable
from dataclasses import dataclass, field

from mpload.client.connection import Connection
from mpload.client.probing import Probe
from mpload.client.protocol import AnswerHead
from mpload.storage.latencies import Latencies

__all__ = ["Answered", "KnownServer", "Piece", "Read", "Request"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Samples `first` to `last` (exclusive) of a batch, which one request asks for."""

    task: tuple[int, ...]
    first: int
    last: int
    turn: int = 0
    """Its place among the pieces of the epoch. Servers take turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """An answer that was received."""

    url: str
    """Which server has made the samples."""
    head: AnswerHead
    num_bytes: int
    connection: Connection
    """Over which it came."""


@dataclass(slots=True, kw_only=True)
class Request:
    """A request that was sent and not answered yet."""

    server: int
    connection: Connection
    piece: Piece
    body: bytes
    sent_at: float
    waits_since: float
    """Since when the worker has done nothing but wait for it."""
    latency_seconds: float = 0.0
    """From sending it until its answer began, or until the worker noticed that."""

    @property
    def num_samples(self) -> int:
        """Number of samples that it asks for."""
        return self.piece.last - self.piece.first

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the answer begins."""
        return self.connection.fileno()


@dataclass(slots=True, kw_only=True)
class KnownServer:
    """What this worker knows of a server, besides what `Choice` does."""

    url: str
    idle: list[Connection] = field(default_factory=list)
    latencies: Latencies = field(default_factory=Latencies)
    answered_at: float = float("-inf")
    probe: Probe | None = None
    """Of a server that has failed, before it is asked again."""


Read = Callable[[Connection, int], AnswerHead]
"""Receives the body of an answer, which has so many bytes."""
