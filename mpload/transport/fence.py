"""Order between accesses to memory that processes share, on every processor."""

import threading

__all__ = ["Fence"]


class Fence:
    """Called between two accesses to shared memory, keeps all before it before all after it, as others see them.

    x86 lets no access overtake another, except a load an earlier store. ARM lets any access overtake any other. Python
    has no barrier but its locks: a release keeps all earlier accesses before it, an acquire all later ones behind it,
    and an acquire that follows a release stays behind that. ARMv8 promises the last for these instructions, of which
    CPython's locks are made; on x86 they are locked instructions, which nothing overtakes. So this lock is held, and a
    call releases and acquires it: some 60 nanoseconds, and no system call.

    Single cells need no more: an aligned integer of 8 bytes is copied by one instruction, in CPython's memoryview too,
    and never seen half written.

    Process: for one thread. May be forked.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def __call__(self) -> None:
        """Keep what comes before it before what comes after it."""
        self._lock.release()
        self._lock.acquire()
