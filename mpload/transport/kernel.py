"""Linux system calls and files for processes: parent-death signal, process name, OOM score, heaps, list of threads."""

import contextlib
import ctypes
import os
import signal
from pathlib import Path

__all__ = ["die_with_parent", "prefer_for_oom_kill", "set_process_name", "set_up_heaps", "thread_names", "trim_heap"]

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_MAX_OOM_SCORE = 1000
_M_ARENA_MAX = -8
_M_MMAP_THRESHOLD = -3
_M_TRIM_THRESHOLD = -1
_MAX_HEAPS = 4
_MAX_HEAP_OBJECT_BYTES = 32 << 20  # older versions of glibc allow no more
_MAX_UNUSED_BYTES = 2 * _MAX_HEAP_OBJECT_BYTES  # as glibc itself chooses for objects of that size
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies; exit at once if the parent is already dead.

    The kernel kills it even while it is stopped. "Parent" means the thread that started this process, so that thread
    must live as long as its own process.
    """
    _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent_pid:
        os._exit(1)


def set_process_name(name: str) -> None:
    """Set the name (at most 15 bytes) that `ps`, `top` and kernel messages show for this process."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]))


def prefer_for_oom_kill() -> None:
    """Make this process the kernel's first choice when memory runs out, since a worker can be replaced.

    The score is raised by the maximum, so that even a training process that uses nearly all memory of its container is
    a later choice.
    """
    path = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError):  # optional: the kernel may not allow it
        path.write_text(str(min(_MAX_OOM_SCORE, int(path.read_text()) + _MAX_OOM_SCORE)))


def set_up_heaps() -> None:
    """Let the threads of this process share a few heaps, and let heaps keep what one sample frees for the next.

    glibc's own limit is 8 heaps for each core, and much memory would lie unused in each. With glibc's own thresholds, a
    heap may give the memory of each image back to the kernel, which clears it again, page by page, for the next image.
    Options are kept that the environment sets. (glibc itself reads them only when the user's process starts.)
    """
    if not hasattr(_libc, "mallopt"):  # musl has only one heap
        return
    if not _is_heap_option_set("arena_max", variable="MALLOC_ARENA_MAX"):
        _set_heap_option(_M_ARENA_MAX, _MAX_HEAPS)
    thresholds = ("mmap_threshold", "mmap_max", "trim_threshold", "top_pad")
    # Once one of these is set, glibc no longer adapts the others. So set both thresholds or none.
    if not any(_is_heap_option_set(name, variable=f"MALLOC_{name.upper()}_") for name in thresholds) and (
        _set_heap_option(_M_MMAP_THRESHOLD, _MAX_HEAP_OBJECT_BYTES)
    ):
        _set_heap_option(_M_TRIM_THRESHOLD, _MAX_UNUSED_BYTES)


def _is_heap_option_set(name: str, *, variable: str) -> bool:
    return variable in os.environ or f"glibc.malloc.{name}=" in os.environ.get("GLIBC_TUNABLES", "")


def _set_heap_option(option: int, value: int) -> bool:
    """Set an option of the heaps; return whether glibc accepts the value."""
    return bool(_libc.mallopt(ctypes.c_int(option), ctypes.c_int(value)))


def trim_heap() -> None:
    """Give memory of this process's heap that is not in use back to the kernel."""
    if hasattr(_libc, "malloc_trim"):  # glibc has it, musl does not
        _libc.malloc_trim(ctypes.c_size_t(0))


def thread_names() -> list[str]:
    """Return the names of this process's threads, except the main thread; none without /proc."""
    names, tasks = [], Path("/proc/self/task")
    for task in tasks.iterdir() if tasks.exists() else ():
        if task.name != str(os.getpid()):
            with contextlib.suppress(OSError):  # the thread has ended in the meantime
                names.append((task / "comm").read_text().strip())
    return names


def _prctl(option: int, argument: ctypes.c_ulong | ctypes.c_char_p) -> None:
    zero = ctypes.c_ulong(0)
    if _libc.prctl(ctypes.c_int(option), argument, zero, zero, zero):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
