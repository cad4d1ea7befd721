"""The resources that a pool shares with its workers: how they are made, and how they are released."""

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
from mpload.transport.limits import os_errors_as_refused
from mpload.transport.ring import SlotRing
from mpload.transport.slots import SlotLayout
from mpload.transport.worker import Work, WorkerSetup

__all__ = ["CloseOnError", "PoolParts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolParts:
    """The slots, the board, the socket for answers, and the zygote from which workers are forked."""

    ring: SlotRing
    board: ParentBoard
    inbox: Inbox
    zygote: ZygoteProcess

    @classmethod
    def make(cls, work: Work, layout: SlotLayout, *, num_slots: int, options: PoolOptions) -> Self:
        """Make all parts, or none if one fails. The zygote is not started yet."""
        pickled = pickle_work(work)
        with ExitStack() as made, os_errors_as_refused("workers cannot start"):
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
        """Release all parts. In a process forked from the owner, release only this process's copies."""
        if os.getpid() == owner_pid:
            self.board.cancel()
            self.board.close()  # idle workers exit at once
            self.zygote.close()
        else:
            self.zygote.abandon()
            self.board.close()
        self.inbox.close()
        self.ring.close()


class CloseOnError:
    """A context for a step that changes a pool: closes the pool if an error, or Ctrl-C, leaves the step half done.

    Waiting is not such a step, so Ctrl-C during a wait does no harm. A `RefusedError` does not close the pool either:
    a step asks the system for resources before it changes anything, and the next step asks again.
    """

    def __init__(self, close: Callable[[], object]) -> None:
        self._close = close

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not issubclass(kind, RefusedError):
            self._close()
