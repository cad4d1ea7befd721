"""How a pool ends: when it is closed, when a step is left half done, and in a forked child."""

import os
from collections.abc import Callable

from mpload.transport.board import ParentBoard
from mpload.transport.inbox import Inbox
from mpload.transport.launch import ZygoteProcess
from mpload.transport.limits import RefusedError
from mpload.transport.ring import SlotRing

__all__ = ["Whole", "shut"]


class Whole:
    """Closes a pool where an error, or Ctrl-C, leaves a step half done; while the pool waits, Ctrl-C does no harm.

    What the system refuses is asked for before anything else is done, and again in the next step.
    """

    def __init__(self, close: Callable[[], object]) -> None:
        self._close = close

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not issubclass(kind, RefusedError):
            self._close()


def shut(owner_pid: int, zygote: ZygoteProcess, board: ParentBoard, ring: SlotRing, inbox: Inbox) -> None:
    """Let go of all that a pool consists of; in a forked child only of that child's copies."""
    if os.getpid() == owner_pid:
        board.cancel()
        board.close()  # idle workers leave at once
        zygote.close()
    else:
        zygote.abandon()
        board.close()
    inbox.close()
    ring.close()
