"""What a server says about an object before it is read."""

from dataclasses import dataclass

__all__ = ["ObjectFacts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFacts:
    """The size and the version of an object at a URL."""

    num_bytes: int | None
    """Its size; None if the server does not say."""
    version: str
    """A text that differs once the object has changed: its ETag, or its time. Empty if the server says neither."""
