"""What a pool and its workers share: how it is made, and how it ends."""

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from mpload.errors import RefusedError
from mpload.transport.batches import PoolOptions
from mpload.transport.board import ParentBoard
from mpload.transport.chunks import MAX_CHUNKS
from mpload.transport.inbox import Inbox
from mpload.transport.launch import ZygoteProcess, pickle_work
from mpload.transport.limits import told_as_refused
from mpload.transport.ring import SlotRing
from mpload.transport.slots import SlotLayout
from mpload.transport.worker import Work, WorkerSetup

__all__ = ["CloseOnError", "PoolParts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolParts:
    """The slots, the board, the socket of answers, and the process that workers are forked from."""

    ring: SlotRing
    board: ParentBoard
    inbox: Inbox
    zygote: ZygoteProcess

    @classmethod
    def make(cls, work: Work, layout: SlotLayout, *, num_slots: int, options: PoolOptions) -> Self:
        """Make all of them, or none; the zygote is not started yet."""
        pickled = pickle_work(work)
        with ExitStack() as made, told_as_refused("workers cannot start"):
            ring = SlotRing(num_slots=num_slots, layout=layout, huge_pages=options.huge_pages)
            made.callback(ring.close)
            board = ParentBoard(num_plain_entries=num_slots * MAX_CHUNKS)
            made.callback(board.close)
            inbox = Inbox()
            made.callback(inbox.close)
            setup = WorkerSetup(
                ring_fd=ring.fd,
                answers_fd=inbox.fd,
                board=board.fds,
                num_slots=num_slots,
                layout=layout,
                huge_pages=options.huge_pages,
                work=pickled,
                sys_path=tuple(map(str, sys.path)),
                python_path=os.environ.get("PYTHONPATH"),
            )
            zygote = ZygoteProcess(
                setup, starts_fresh=options.starts_fresh, start_timeout_seconds=options.start_timeout_seconds
            )
            made.pop_all()
        return cls(ring=ring, board=board, inbox=inbox, zygote=zygote)

    def close(self, owner_pid: int) -> None:
        """Let go of all; in a process that was forked from the owner, of this process's copies only."""
        if os.getpid() == owner_pid:
            self.board.cancel()
            self.board.close()  # idle workers leave at once
            self.zygote.close()
        else:
            self.zygote.abandon()
            self.board.close()
        self.inbox.close()
        self.ring.close()


class CloseOnError:
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
