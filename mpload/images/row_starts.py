"""How the native decoder keeps where the rows of a JPEG begin, so that later crops of it are decoded faster."""

from typing import Protocol

__all__ = ["RowStarts"]


class RowStarts(Protocol):
    """Keeps the entry of one JPEG, in the format of `_rows.h`. A damaged or outdated entry changes no pixel."""

    def read(self) -> bytes | None:
        """Return the entry. If there is none: an empty one if it should be made, otherwise None."""
        ...

    def write(self, entry: bytes) -> None:
        """Keep the entry that the decoder has made."""
        ...
