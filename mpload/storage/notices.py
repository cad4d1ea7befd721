"""What is said about servers while requests to them are repeated, before that leads to an error."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mpload.errors import MploadWarning, OutageError, warn

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Notice", "Notices"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """An outage has lasted for a while, or has ended."""

    place: str
    """The URL of the server or bucket, without a path."""
    is_outage: bool
    """Whether the outage goes on."""
    text: str
    answered_at: float = float("-inf")
    """When the server last answered the process that sends this, by the monotonic clock."""


def _warn(notice: Notice) -> None:
    try:
        warn(notice.text)
    except MploadWarning as warning:  # a filter of the user's makes errors of warnings
        if notice.is_outage:
            raise OutageError(str(warning)) from None  # of which no sample is the cause


class Notices:
    """Passes notices on: by default, they become warnings of this process.

    Process: each has its own.
    """

    def __init__(self) -> None:
        self.send: Callable[[Notice], None] = _warn
        """Called in any thread."""

    def turn_off(self) -> None:
        """Discard all notices, since another process says the same."""
        self.send = _discard


def _discard(notice: Notice) -> None:
    del notice
