"""Waits until the modification time of a file will show any further change.

A file system's clock stands still for some milliseconds, or for one or two seconds where it stores whole seconds. If a
text changes twice within such a tick, its modification time stays the same, and its size may, too. So what is derived
from a text is only made when the clock has left the text's modification time behind. git has the same problem with its
index, and calls it "racy".
"""

import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from mpload.index.sidecar_metadata import TextStamp

__all__ = ["settled_stamp"]

_MAX_SECONDS = 2.5
"""Longer than the ticks of file systems. A time that is further ahead than this is not the time of the last change."""
_OLD_SECONDS = 3600.0
"""A text that is older needs no look at the file system's clock, which may differ from this machine's."""
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.001, 0.05
_COARSE_TICK_NS, _FINE_TICK_NS = 2_000_000_000, 20_000_000
_SECOND_NS = 1_000_000_000


def settled_stamp(text: Path) -> TextStamp:
    """Return the stamp of a text that any later change will alter.

    This waits a few milliseconds if the text has just been changed, or up to 2.5 seconds if the file system stores
    whole seconds.

    Raises:
        OSError: there is no file.
    """
    deadline, wait_seconds = time.monotonic() + _MAX_SECONDS, _FIRST_WAIT_SECONDS
    while True:
        stamp = TextStamp.of(text)
        if time.time_ns() - stamp.mtime_ns > _OLD_SECONDS * _SECOND_NS:
            return stamp
        ahead_ns = stamp.mtime_ns - _clock_ns(text, stamp.mtime_ns)
        if ahead_ns < 0 or ahead_ns > _MAX_SECONDS * _SECOND_NS or time.monotonic() > deadline:
            return stamp
        time.sleep(wait_seconds)
        wait_seconds = min(2 * wait_seconds, _LONGEST_WAIT_SECONDS)


def _clock_ns(text: Path, mtime_ns: int) -> int:
    """Return the time that a change of the text would get now, or one before it."""
    folder = os.path.dirname(os.path.realpath(text))  # noqa: PTH120  `Path.resolve` raises other errors
    with suppress(OSError), tempfile.TemporaryFile(dir=folder) as probe:
        return os.fstat(probe.fileno()).st_mtime_ns
    is_coarse = mtime_ns % _SECOND_NS == 0
    return time.time_ns() - (_COARSE_TICK_NS if is_coarse else _FINE_TICK_NS)
