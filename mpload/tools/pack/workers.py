"""Worker processes, here or on other machines, that make the shards of a pack."""

import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing import current_process, get_context
from multiprocessing.connection import Connection
from pathlib import Path

from mpload.errors import ArgumentError, StorageError
from mpload.ingest.cluster import Cluster

__all__ = ["check_workers", "done_shards"]

_GUARD = (
    "workers cannot start: each one imports the calling script, which failed. Put the code of the script under "
    '`if __name__ == "__main__":`, or pass num_workers=1'
)


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
    context = get_context("spawn")
    stop, keep_open = context.Pipe(duplex=False)  # workers exit when `keep_open` is closed, even by SIGKILL
    started, start_sender = context.Pipe(duplex=False)  # readable as soon as a worker has started
    with ProcessPoolExecutor(num_workers, context, initializer=_start_worker, initargs=(stop, start_sender)) as pool:
        todo = iter(shards)
        try:
            with _ignoring_interrupts():
                running: set[Future[int]] = {pool.submit(work, shard) for shard in islice(todo, 2 * num_workers)}
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
                    running |= {pool.submit(work, shard) for shard in [next(todo, None)] if shard is not None}
        except BrokenProcessPool as error:
            if not started.poll():
                raise ArgumentError(_GUARD) from error
            raise StorageError(
                "a worker was killed, perhaps for lack of memory. Run the same command again: finished shards are kept"
            ) from error
        except BaseException:
            keep_open.close()
            raise


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
    start_sender.send_bytes(b"started")

    def watch() -> None:
        stop.poll(None)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
