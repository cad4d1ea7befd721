"""Threads that run jobs: each job once and in order, by few threads, and none is left behind."""

import gc
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator

import pytest

from mpload.storage.read_threads import ReadThreads
from tests.support.transport_works import wait_until


@pytest.fixture
def threads() -> Iterator[ReadThreads]:
    made = ReadThreads(max_threads=32)
    yield made
    made.end()


def make_busy(pool: ReadThreads, num_threads: int) -> threading.Event:
    """Give so many threads a job that lasts until the event is set."""
    end = threading.Event()
    begun = threading.Semaphore(0)

    def job() -> None:
        begun.release()
        end.wait(30)

    for number in range(num_threads):
        pool.start(number + 1)
        pool.put(job)
    for _ in range(num_threads):
        assert begun.acquire(timeout=30)
    return end


def test_each_job_runs_once_while_threads_come_and_go(threads: ReadThreads) -> None:
    done: list[int] = []
    for number in range(3000):
        threads.start(1 + number % 16)
        threads.limit(1 + number % 3)
        threads.put(lambda number=number: done.append(number))  # type: ignore[misc]
        if not number % 100:
            time.sleep(0.001)  # so that threads become idle
    assert wait_until(lambda: len(done) == 3000, 30)
    assert sorted(done) == list(range(3000))
    assert not threads.num_waiting


def test_one_thread_runs_the_jobs_in_order_also_after_one_that_fails(threads: ReadThreads) -> None:
    done: list[int] = []
    threads.start(1)
    threads.put(lambda: 1 // 0)
    for number in range(100):
        threads.put(lambda number=number: done.append(number))  # type: ignore[misc]
    assert wait_until(lambda: len(done) == 100, 30)
    assert done == list(range(100))


def test_all_threads_but_one_end_when_they_have_had_no_job_for_a_time() -> None:
    threads = ReadThreads(max_threads=32, idle_seconds=0.2)
    for _ in range(2):  # new ones are started when they are needed again
        make_busy(threads, 32).set()
        assert threads.num_started == 32
        assert wait_until(lambda: threads.num_started == 1, 30)
    time.sleep(0.5)
    done = threading.Event()
    threads.put(done.set)  # without a look at how many threads there are
    assert done.wait(30)
    threads.end()


def test_threads_that_are_idle_for_a_moment_are_not_started_again() -> None:
    threads = ReadThreads(max_threads=32, idle_seconds=60)
    make_busy(threads, 32).set()
    before = set(threading.enumerate())
    for _ in range(20):
        time.sleep(0.01)
        threads.limit(2)
        make_busy(threads, 32).set()
    assert set(threading.enumerate()) <= before
    threads.end()


def test_no_more_threads_begin_jobs_than_the_limit_allows(threads: ReadThreads) -> None:
    make_busy(threads, 8).set()
    threads.limit(3)
    end, begun = threading.Event(), threading.Semaphore(0)

    def occupy() -> None:
        begun.release()
        end.wait(30)

    for _ in range(8):
        threads.put(occupy)
    for _ in range(3):
        assert begun.acquire(timeout=30)
    assert not begun.acquire(timeout=0.3)
    assert threads.num_waiting == 5
    threads.start(5)  # there are eight: idle ones go on
    for _ in range(2):
        assert begun.acquire(timeout=30)
    assert not begun.acquire(timeout=0.3)
    end.set()
    assert wait_until(lambda: not threads.num_waiting, 30)


def test_the_thread_that_became_idle_last_gets_the_next_job(threads: ReadThreads) -> None:
    make_busy(threads, 8).set()
    used = Counter[int]()
    for _ in range(200):
        done = threading.Event()
        threads.put(lambda done=done: (used.update([threading.get_ident()]), done.set()))  # type: ignore[misc]
        assert done.wait(30)
        time.sleep(0.001)  # the thread becomes idle
    assert sum(count for _, count in used.most_common(2)) > 100


def test_a_job_is_dropped_when_it_has_run(threads: ReadThreads) -> None:
    class Job:
        def __call__(self) -> None:
            pass

    job = Job()
    left = weakref.ref(job)
    threads.start(1)
    threads.put(job)
    del job
    assert wait_until(lambda: left() is None, 30)


def test_a_job_that_puts_another_when_it_is_dropped_does_not_hang(threads: ReadThreads) -> None:
    done = threading.Event()

    class Job:
        def __call__(self) -> None:
            pass

        def __del__(self) -> None:
            threads.put(done.set)

    threads.start(1)
    threads.put(Job())
    assert done.wait(30)


@pytest.mark.parametrize("by_garbage_collection", [False, True])
def test_idle_threads_end_with_their_owner(by_garbage_collection: bool) -> None:
    threads = ReadThreads(max_threads=8)
    before = set(threading.enumerate())
    make_busy(threads, 8).set()
    started = set(threading.enumerate()) - before
    if by_garbage_collection:
        del threads
        gc.collect()
    else:
        threads.end()
    assert wait_until(lambda: not any(thread.is_alive() for thread in started), 30)
