"""Errors name the resource that the system refuses, and its limit. Once it is available again, the pool continues."""

import errno
import os
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

from mpload.errors import RefusedError
from mpload.transport.limits import os_errors_as_refused
from tests.support.programs import Ran, run_script

pytestmark = pytest.mark.processes

NOBODY = 65534
START = "workers cannot start"

PREAMBLE = """
import os, resource, signal
from mpload.errors import MploadError, WorkerError
from mpload.transport.batches import PoolOptions
from mpload.transport.pool import WorkerPool
from tests.support.programs import Ran, run_script
from tests.support.transport_works import (
    LAYOUT,
    Numbers,
    assert_right,
    children,
    is_alive,
    open_files,
    pid_of,
    tasks,
    wait_until,
)

def make(num_workers=2, **options):
    return WorkerPool(Numbers(), LAYOUT, num_slots=3, num_workers=num_workers, options=PoolOptions(**options))

def check(pool):
    for number, batch in enumerate(pool.stream(tasks(20))):
        assert_right(batch.arrays, number)

def use_up_descriptors():
    held = []
    try:
        while True: held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        return held
"""


def run(text: str, *prefix: str) -> Ran:
    # One thread only: threads count as processes.
    return run_script(PREAMBLE + textwrap.dedent(text), prefix=prefix, OPENBLAS_NUM_THREADS="1")


def test_a_zygote_that_cannot_start_without_descriptors_starts_once_some_are_free() -> None:
    done = run("""
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        with make() as pool:
            check(pool)
            killed = pool.pids
            os.kill(killed["mpload-zygote"], signal.SIGKILL)
            assert wait_until(lambda: not any(map(is_alive, killed.values())))
            held = use_up_descriptors()
            for _ in range(3):
                try:
                    check(pool)
                except WorkerError as error:
                    print(error)
            for fd in held: os.close(fd)
            check(pool)
            print(pool.num_deaths)
    """)
    message = (
        "workers cannot start: Too many open files. RLIMIT_NOFILE allows 64 open files. "
        "Close files, or raise it: ulimit -n\n"
    )
    assert (done.stdout, done.stderr) == (3 * message + "1\n", "")


def test_an_iteration_that_runs_out_of_descriptors_loses_and_repeats_no_batch() -> None:
    done = run("""
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        with make() as pool:
            check(pool)
            stream = pool.stream(tasks(20))
            assert_right(next(stream).arrays, 0)
            killed = pool.pids
            os.kill(killed["mpload-zygote"], signal.SIGKILL)
            assert wait_until(lambda: not any(map(is_alive, killed.values())))
            held, num_seen, num_errors = use_up_descriptors(), 1, 0
            while num_errors < 3:
                try:
                    assert_right(next(stream).arrays, num_seen)
                    num_seen += 1
                except WorkerError:
                    num_errors += 1
            for fd in held: os.close(fd)
            for number, batch in enumerate(stream, num_seen):
                assert_right(batch.arrays, number)
            print(number)
    """)
    assert (done.stdout, done.stderr) == ("19\n", "")


@pytest.mark.slow
def test_a_pool_that_runs_out_of_descriptors_at_any_point_of_its_start_leaves_none_open() -> None:
    done = run("""
        make().close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        held = use_up_descriptors()
        messages = set()
        for num_free in range(1, 30):
            os.close(held.pop())
            num_free_before = 64 - len(os.listdir("/proc/self/fd"))
            try:
                make().close()
            except WorkerError as error:
                messages.add(str(error).partition(". ")[2])
            assert 64 - len(os.listdir("/proc/self/fd")) == num_free_before
        print(messages)
    """)
    assert done.stderr == ""
    assert done.stdout == "{'RLIMIT_NOFILE allows 64 open files. Close files, or raise it: ulimit -n'}\n"


@pytest.mark.slow
def test_a_loader_whose_pool_was_closed_by_an_error_starts_another(tmp_path: Path) -> None:
    (tmp_path / "index.txt").write_text("".join(f"{number}.bin\t{number}\n" for number in range(60)))
    for number in range(60):
        (tmp_path / f"{number}.bin").write_bytes(bytes([number]))
    done = run(f"""
        from mpload import MPDataset, MPLoader, RawBytes

        dataset = MPDataset({str(tmp_path / "index.txt")!r}, decode=RawBytes(), batch_size=4)
        with MPLoader(dataset, num_workers=1, options=PoolOptions(max_restarts=0)) as loader:
            assert len(list(loader)) == 15
            os.kill(pid_of(loader._pool, "mpload-worker-0"), signal.SIGKILL)
            assert wait_until(lambda: not is_alive(loader.pids["mpload-worker-0"]))
            try:
                while True: list(loader)
            except WorkerError as error:
                print(error)
            assert [label for _, labels in loader for label in labels.tolist()] == list(range(60))
    """)
    assert done.stderr == ""
    assert "max_restarts=0" in done.stdout


def test_an_error_names_the_limit_on_file_size() -> None:
    done = run("""
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, resource.RLIM_INFINITY))
        before = open_files()
        try:
            make()
        except WorkerError as error:
            print(error)
        assert open_files() == before
    """)
    assert done.stderr == ""
    assert done.stdout.startswith("cannot allocate ")
    assert done.stdout.endswith("File too large. RLIMIT_FSIZE allows 1,000 bytes in a file. Raise it: ulimit -f\n")


needs_root = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None, reason="only root may become a user without processes"
)


def limited(num_processes: int, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a user without other processes, who may have `num_processes` processes and may read all files."""
    return run(
        f"resource.setrlimit(resource.RLIMIT_NPROC, ({num_processes}, {num_processes}))\n{textwrap.dedent(script)}",
        *("setpriv", f"--reuid={NOBODY}", "--clear-groups", "--inh-caps=+dac_override", "--ambient-caps=+dac_override"),
    )


@pytest.mark.slow
@needs_root
@pytest.mark.parametrize("starts_fresh", [False, True])
@pytest.mark.parametrize("num_processes", [1, 2])  # too few for the zygote, and enough for the zygote alone
def test_an_error_names_the_limit_on_processes(num_processes: int, starts_fresh: bool) -> None:
    done = limited(
        num_processes,
        f"""
        try:
            with make(starts_fresh={starts_fresh}) as pool: check(pool)
        except WorkerError as error:
            print(error)
        """,
    )
    assert done.stderr == ""
    assert f"RLIMIT_NPROC allows {num_processes} processes of this user. Use fewer workers" in done.stdout


@needs_root
def test_a_pool_continues_with_as_many_workers_as_the_system_allows() -> None:
    done = limited(
        4,
        """
        import warnings
        with warnings.catch_warnings(record=True) as caught, make(num_workers=6) as pool:
            warnings.simplefilter("always")
            while not caught: check(pool)
            check(pool)
            print(*[warning.message for warning in caught], pool.num_workers, len(children()), sep="\\n")
        """,
    )
    assert done.stderr == ""
    assert done.stdout.startswith("cannot start a worker: Resource temporarily unavailable. RLIMIT_NPROC allows 4 ")
    assert done.stdout.count("cannot start") == 1
    assert done.stdout.endswith("Continuing with 2 of 6\n2\n3\n")


def test_an_error_of_the_users_own_is_not_taken_for_one_of_the_system() -> None:
    with (
        pytest.raises(RefusedError, match="workers cannot start: No space left on device"),
        os_errors_as_refused(START),
    ):
        raise OSError(errno.ENOSPC, "full")
    with pytest.raises(TimeoutError, match="my own limit"), os_errors_as_refused(START):
        raise TimeoutError("my own limit")  # as a signal handler may
