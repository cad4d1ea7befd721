"""Worker processes, here or on other machines, that make the shards of a pack."""

import errno
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing import active_children, current_process, get_context
from multiprocessing.connection import Connection
from pathlib import Path

from mpload.errors import ArgumentError, RefusedError, StorageError
from mpload.ingest.cluster import Cluster
from mpload.transport.limits import refusal

__all__ = ["check_workers", "done_shards"]

_GUARD = (
    "workers cannot start: each one imports the calling script, which failed. Put the code of the script under "
    '`if __name__ == "__main__":`, or pass num_workers=1'
)
_ONE_PROCESS = "pack in one process: num_workers=1 (--workers 1)"
_NO_SEMAPHORES = {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOSPC, errno.ENOSYS}
_REFUSED = b"refused"
_LOOK_SECONDS = 5.0


def check_workers(num_workers: int, on: Cluster | None) -> None:
    """Raise `ArgumentError` if `num_workers` is out of range, or if this is a worker that imports the script."""
    if num_workers < 1:
        raise ArgumentError(f"num_workers must be at least 1, got {num_workers}")
    if num_workers > 1 and on is not None:
        raise ArgumentError(
            f"num_workers={num_workers} counts processes of this machine: leave it out if `on` is given"
        )
    if num_workers > 1 and getattr(current_process(), "_inheriting", False):  # this is a worker importing the script
        raise ArgumentError(_GUARD)


def done_shards(
    work: Callable[[int], int], shards: Sequence[int] | range, *, num_workers: int, on: Cluster | None, folder: Path
) -> Generator[int]:
    """Process the shards, with at most two per worker queued or running. Yield each one that is done."""
    if on is not None:
        yield from on.run(work, shards, shared=folder)
        return
    if num_workers == 1:
        yield from map(work, shards)
        return
    others, threads = set(active_children()), set(threading.enumerate())
    context = get_context("spawn")
    with _refusals():
        stop, keep_open = context.Pipe(duplex=False)  # workers exit when `keep_open` is closed, even by SIGKILL
        started, start_sender = context.Pipe(duplex=False)  # readable as soon as a worker has started
        pool = ProcessPoolExecutor(num_workers, context, initializer=_start_worker, initargs=(stop, start_sender))
    is_refused = False
    try:
        todo = iter(shards)
        with _ignoring_interrupts(), _refusals():
            running: set[Future[int]] = {pool.submit(work, shard) for shard in islice(todo, 2 * num_workers)}
        helpers = set(threading.enumerate()) - threads
        while running:
            done, running = wait(running, timeout=_LOOK_SECONDS, return_when=FIRST_COMPLETED)
            if not done and not any(thread.is_alive() for thread in helpers):  # it could not start another thread
                raise RefusedError(_refused(errno.EAGAIN))
            for future in done:
                yield future.result()
                with _refusals():
                    running |= {pool.submit(work, shard) for shard in [next(todo, None)] if shard is not None}
    except BrokenProcessPool as error:
        said = _received(started)
        if _REFUSED in said:
            raise RefusedError(_refused(errno.EAGAIN)) from error
        if not said:
            raise ArgumentError(_GUARD) from error
        raise StorageError(
            "a worker was killed, perhaps for lack of memory. Run the same command again: finished shards are kept"
        ) from error
    except BaseException as error:
        keep_open.close()
        if is_refused := isinstance(error, RefusedError):
            for worker in set(active_children()) - others:  # else each would fail with a traceback of its own
                worker.kill()
        raise
    finally:
        pool.shutdown(wait=not is_refused)  # it would join a thread that could not be started


@contextmanager
def _refusals() -> Iterator[None]:
    """Say what the system has refused: processes, threads or semaphores."""
    try:
        yield
    except OSError as error:
        raise RefusedError(_refused(error.errno or 0)) from error
    except RuntimeError as error:
        if isinstance(error, BrokenProcessPool) or "new thread" not in str(error):
            raise
        raise RefusedError(_refused(errno.EAGAIN)) from error


def _refused(error_number: int) -> str:
    if error_number in _NO_SEMAPHORES:
        return (
            f"worker processes need semaphores, which cannot be made in /dev/shm: {os.strerror(error_number)}. Make it "
            f"writable, or free some space there, or {_ONE_PROCESS}"
        )
    return f"worker processes cannot be started: {refusal(error_number)}, or {_ONE_PROCESS}"


def _received(started: Connection) -> list[bytes]:
    return [started.recv_bytes() for _ in iter(started.poll, False)]


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C inside the block. Processes started there ignore it permanently."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread can set signal handlers
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _start_worker(stop: Connection, start_sender: Connection) -> None:
    """Report that this worker has started, and exit as soon as the other end of `stop` is closed."""

    def watch() -> None:
        stop.poll(None)
        os._exit(1)

    try:
        threading.Thread(target=watch, daemon=True).start()
    except RuntimeError:
        start_sender.send_bytes(_REFUSED)
        os._exit(1)
    start_sender.send_bytes(b"started")
