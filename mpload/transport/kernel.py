"""What Linux alone can do for a process: die with another, carry a name, count its threads."""

import contextlib
import ctypes
import os
import signal
from pathlib import Path

__all__ = ["be_killed_first", "die_with_parent", "set_process_name", "thread_names"]

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_MAX_OOM_SCORE = 1000
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies; exit at once where that has happened already.

    It is killed even while it is stopped. "Parent" is the thread that started this process: one that lives on as long
    as its process does must do that.
    """
    _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent_pid:
        os._exit(1)


def set_process_name(name: str) -> None:
    """Set the name (15 bytes) that `ps`, `top` and the kernel's own messages show."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]))


def be_killed_first() -> None:
    """Have the kernel, where memory runs out, rather kill this process than others: it can be replaced.

    Rather, that is, than one that takes all that its container may have: a training process often takes most of it.
    """
    path = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError):  # a wish
        path.write_text(str(min(_MAX_OOM_SCORE, int(path.read_text()) + _MAX_OOM_SCORE)))


def thread_names() -> list[str]:
    """Return the names of this process's threads but the main one."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        if task.name != str(os.getpid()):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                names.append((task / "comm").read_text().strip())
    return names


def _prctl(option: int, argument: ctypes.c_ulong | ctypes.c_char_p) -> None:
    zero = ctypes.c_ulong(0)
    if _libc.prctl(ctypes.c_int(option), argument, zero, zero, zero):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
