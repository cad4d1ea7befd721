"""The resources that a pool shares with its workers: how they are made, and how they are released."""

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, Self
from weakref import WeakSet

from mpload.errors import ArgumentError, RefusedError, WorkerError
from mpload.transport.batches import PoolOptions
from mpload.transport.board import ParentBoard
from mpload.transport.chunks import MAX_CHUNKS
from mpload.transport.error_classes import again
from mpload.transport.forking import Forks, why_not_fork
from mpload.transport.inbox import Inbox
from mpload.transport.interrupts import interrupts_held
from mpload.transport.launch import ZygoteProcess
from mpload.transport.limits import os_errors_as_refused
from mpload.transport.pickling import pickle_work
from mpload.transport.ring import SlotRing
from mpload.transport.settings import changed_settings
from mpload.transport.slots import SlotLayout
from mpload.transport.worker import Work, WorkerSetup

__all__ = ["CloseOnError", "PoolParts"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class PoolParts:
    """The slots, the board, the socket for answers, and the zygote from which workers are forked."""

    ring: SlotRing
    board: ParentBoard
    inbox: Inbox
    zygote: ZygoteProcess

    @classmethod
    def make(cls, work: Work, layout: SlotLayout, *, num_slots: int, options: PoolOptions, forks: Forks) -> Self:
        """Make all parts, or none if one fails. The zygote is not started yet."""
        forks = Forks.NEVER if options.starts_fresh else forks
        try:
            pickled, shared_fds = (b"", ()) if forks.applies() else pickle_work(work)
        except ArgumentError as error:
            if forks is Forks.NEVER:
                raise
            raise ArgumentError(
                f"{error}. Or make the loader where this process can be forked, which needs no copy: {why_not_fork()}"
            ) from error
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
                shared_fds=shared_fds,
                settings=changed_settings(),
                sys_path=tuple(map(str, sys.path)),
                python_path=os.environ.get("PYTHONPATH"),
                python_hash_seed=os.environ.get("PYTHONHASHSEED"),
            )
            zygote = ZygoteProcess(
                setup,
                starts_fresh=options.starts_fresh,
                start_timeout_seconds=options.start_timeout_seconds,
                work=work,
                forks=forks,
                release=partial(_release_all, os.getpid()),
            )
            made.pop_all()
        parts = cls(ring=ring, board=board, inbox=inbox, zygote=zygote)
        _OPEN.add(parts)
        return parts

    def close(self, owner_pid: int) -> None:
        """Release all parts. In a process forked from the owner, release only this process's copies.

        Ctrl-C waits until that is done. If a handler of another signal raises, the processes are ended all the same.
        """
        try:
            with interrupts_held():
                self._close(owner_pid)
        except BaseException:
            self._release(owner_pid)
            raise

    def _close(self, owner_pid: int) -> None:
        if os.getpid() == owner_pid:
            self.board.cancel()
        self._release(owner_pid)

    def _release(self, owner_pid: int) -> None:
        self.board.close()  # idle workers exit at once
        if os.getpid() == owner_pid:
            self.zygote.close()
        else:
            self.zygote.abandon()
        self.inbox.close()
        self.ring.close()


_OPEN: WeakSet[PoolParts] = WeakSet()
"""The parts of all pools of this process. A fork inherits them, and must close what it does not use."""


def _release_all(owner_pid: int) -> None:
    for parts in list(_OPEN):
        parts.close(owner_pid)


class CloseOnError:
    """A context for a step that changes a pool: closes the pool if an error, or Ctrl-C, leaves the step half done.

    Waiting is not such a step, so Ctrl-C during a wait does no harm. A `RefusedError` does not close the pool either:
    a step asks the system for resources before it changes anything, and the next step asks again.
    """

    def __init__(self, close: Callable[[], object]) -> None:
        self._close = close
        self._cause: WorkerError | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if kind is not None and not issubclass(kind, RefusedError):
            self._close()
            if isinstance(error, WorkerError) and self._cause is None:
                self._cause = again(error)

    def raise_cause(self) -> NoReturn:
        """Raise the error that closed the pool again, or one that says that something else did.

        Raises:
            WorkerError: always.
        """
        if self._cause is None:
            raise WorkerError("the pool was closed, perhaps by an interrupt. Iterate over the loader again")
        raise again(self._cause)
