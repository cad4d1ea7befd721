"""What a server says about an object before it is read."""

from dataclasses import dataclass
from typing import Protocol

__all__ = ["ObjectFacts", "Seen", "unseen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFacts:
    """The size and the version of an object at a URL."""

    num_bytes: int | None
    """Its size; None if the server does not say."""
    version: str
    """A text that differs once the object has changed: its ETag, or its time. Empty if the server says neither."""


class Seen(Protocol):
    """Called with the version of a shard at a URL. `FirstSeen.check_object` is one."""

    def __call__(self, url: str, *, etag: str, modified: str, num_bytes: int) -> None:
        """Note what an object is, or raise an error if it is another one than before."""
        ...


def unseen(url: str, *, etag: str, modified: str, num_bytes: int) -> None:
    """Note nothing."""
