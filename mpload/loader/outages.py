"""Warnings of outages, which the workers of a loader notice."""

import time

from mpload.errors import warn
from mpload.samples.index_work import notice_of
from mpload.transport.messages import Failure

__all__ = ["OutageWarnings"]


class OutageWarnings:
    """Warns once about each outage, and once when it is over, however many workers notice it."""

    def __init__(self) -> None:
        self._shown_at: dict[str, float] = {}  # when an outage of a server was shown, by the monotonic clock

    def __call__(self, message: Failure) -> None:
        """Show what a worker says, unless another one has said it."""
        notice = notice_of(message)
        if notice.is_outage:
            shown_at = self._shown_at.get(notice.place)
            # If the server answered in between, this is another outage: the workers that met the first one were killed.
            is_new = shown_at is None or notice.answered_at > shown_at
            if is_new:
                self._shown_at[notice.place] = time.monotonic()
        else:
            is_new = self._shown_at.pop(notice.place, None) is not None
        if is_new:
            warn(notice.text)
