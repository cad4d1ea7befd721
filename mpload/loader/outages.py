"""Warnings of outages, which the workers of a loader notice."""

import warnings

from mpload.errors import MploadWarning
from mpload.samples.index_work import notice_of
from mpload.transport.messages import Failure

__all__ = ["OutageWarnings"]


class OutageWarnings:
    """Warns once about each outage, and once when it is over, however many workers notice it."""

    def __init__(self) -> None:
        self._places: set[str] = set()  # servers of which the outage has been shown

    def __call__(self, message: Failure) -> None:
        """Show what a worker says, unless another one has said it."""
        notice = notice_of(message)
        if notice.is_outage != (notice.place in self._places):
            self._places.symmetric_difference_update({notice.place})
            warnings.warn(notice.text, MploadWarning, stacklevel=7)  # the line that takes a batch
