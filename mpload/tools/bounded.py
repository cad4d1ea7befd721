"""Reads whole files without decoding them, but none that training would refuse because of its size."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from mpload.images.jpeg_header import ImageBytes
from mpload.images.limits import Limits
from mpload.samples.reading import max_bytes_of

__all__ = ["LIMIT_ADVICE", "BoundedBytes"]

LIMIT_ADVICE = "Raise that limit, or remove the sample from the index"
"""How the message about a file that is too large ends. Not every tool lets a user raise the limit."""


@dataclass(frozen=True, slots=True)
class BoundedBytes:
    """A decoder that returns the bytes. A `Pipeline` with it does not read files that exceed the limits."""

    limits: Limits | None = Limits()
    """Which files are refused; None reads files of any size."""

    @classmethod
    def like(cls, decoders: Iterable[Callable[..., Any]]) -> "BoundedBytes":
        """Return a decoder that reads the files which these decoders of a dataset would get."""
        max_bytes = max_bytes_of(decoders)
        return cls(None if max_bytes is None else Limits(max_bytes=max_bytes))

    def __call__(self, data: ImageBytes) -> ImageBytes:
        """Return `data`."""
        return data
