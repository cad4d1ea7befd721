"""The zygote: how workers are forked, what they inherit, and what happens when the work cannot be loaded."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mpload.errors import ArgumentError, MploadWarning, WorkerError
from mpload.transport.batches import BatchTask, PoolOptions
from mpload.transport.pool import WorkerPool
from mpload.transport.slots import Field, RaggedField, SlotLayout
from tests.support.programs import REPOSITORY, run_script
from tests.support.transport_works import (
    LAYOUT,
    Numbers,
    assert_right,
    children,
    is_alive,
    leaves_nothing,
    pid_of,
    tasks,
    wait_until,
)

pytestmark = pytest.mark.processes

FACTS = SlotLayout(num_samples=4, fields=(RaggedField(name="text", max_sample_bytes=10_000),))


class Facts:
    """Fills each sample with the result of calling a function in the worker."""

    def __init__(self, find: Any) -> None:
        self.find = find

    def open(self, worker: int) -> None:
        pass

    def fill(self, task: tuple[int, ...], arrays: Mapping[str, Any], first: int, last: int, report: Any) -> None:
        for sample in range(first, last):
            arrays["text"].put(sample, str(self.find()).encode())


def found_in_a_worker(find: Any, options: PoolOptions | None = None) -> str:
    with WorkerPool(Facts(find), FACTS, num_slots=1, num_workers=1, options=options) as pool:
        pool.submit(BatchTask(numbers=(), num_samples=1))
        batch = pool.next()
    assert not batch.failures, batch.failures
    text: bytes = batch.arrays["text"][0].tobytes()
    return text.decode()


def test_a_parent_that_closes_its_socket_with_unread_messages_ends_all_processes_silently() -> None:
    done = run_script("""
        import select
        from mpload.transport.pool import WorkerPool
        from tests.support.transport_works import LAYOUT, Numbers, tasks

        pool = WorkerPool(Numbers(), LAYOUT, num_slots=2, num_workers=1)
        list(pool.stream(tasks(2)))
        zygote = pool._zygote
        zygote.fork(1)
        assert select.select([zygote.control], [], [], 20)[0]
        zygote.abandon()
        assert zygote.end_cause() == "exit status 0"
    """)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_zygote_whose_parent_closes_its_socket_during_the_start_exits_silently() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        ours.close()
        command = [sys.executable, "-m", "mpload.transport.zygote", str(theirs.fileno()), "0", str(os.getpid()), "1"]
        done = subprocess.run(
            command, pass_fds=[theirs.fileno()], capture_output=True, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


@pytest.mark.parametrize("starts_fresh", [False, True])
def test_work_may_be_a_local_class_and_hold_lambdas(starts_fresh: bool) -> None:
    factor = 3

    class Local(Numbers):
        def sample(self, batch: int, sample: int) -> None:
            assert factor == 3

        def __init__(self) -> None:
            self.sleep_seconds = 0.0
            self.also = lambda x: x + factor

    options = PoolOptions(starts_fresh=starts_fresh)
    with WorkerPool(Local(), LAYOUT, num_slots=3, num_workers=2, options=options) as pool:
        for number, batch in enumerate(pool.stream(tasks(5))):
            assert_right(batch.arrays, number)


def test_work_that_cannot_be_pickled_is_refused_at_construction() -> None:
    work = Numbers()
    work.lock = threading.Lock()  # type: ignore[attr-defined]
    with leaves_nothing(), pytest.raises(ArgumentError, match=r"copy of Numbers: .*lock.*in the worker"):
        WorkerPool(work, LAYOUT, num_slots=2, num_workers=1)


def test_workers_import_modules_from_the_same_places_as_the_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "found_only_here.py").write_text("import os\ndef find():\n    return os.environ.get('PYTHONPATH')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    import found_only_here  # type: ignore[import-not-found]

    assert found_in_a_worker(found_only_here.find) == "/somewhere"  # and PYTHONPATH is the user's own


def test_the_error_for_work_that_does_not_load_shows_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loads_once.py").write_text(
        f"import os\nif os.getpid() != {os.getpid()}: raise OSError('no GPU here')\ndef find(): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import loads_once  # type: ignore[import-not-found]

    with leaves_nothing(), pytest.raises(WorkerError, match=r"(?s)does not load.*no GPU here"):
        found_in_a_worker(loads_once.find)


class DiesWhileLoading(Numbers):
    def __reduce__(self) -> Any:
        return os._exit, (3,)


class TakesLongToLoad(Numbers):
    def __reduce__(self) -> Any:
        import time

        return time.sleep, (3600,)


@pytest.mark.slow
def test_a_zygote_that_dies_or_hangs_while_loading_is_an_error() -> None:
    with leaves_nothing(), pytest.raises(WorkerError, match=r"died while it loaded the work .exit status 3"):
        WorkerPool(DiesWhileLoading(), LAYOUT, num_slots=2, num_workers=1)
    options = PoolOptions(start_timeout_seconds=0.5)
    with (
        leaves_nothing(),
        pytest.raises(WorkerError, match=r"has not loaded the work within 0\.5 s.*start_timeout_seconds"),
    ):
        WorkerPool(TakesLongToLoad(), LAYOUT, num_slots=2, num_workers=1, options=options)


class CannotOpen(Numbers):
    def open(self, worker: int) -> None:
        raise FileNotFoundError("train.lmdb")


@pytest.mark.slow
@pytest.mark.parametrize("starts_fresh", [False, True])
def test_a_worker_that_cannot_open_ends_the_job_with_its_traceback(starts_fresh: bool) -> None:
    options = PoolOptions(starts_fresh=starts_fresh)
    with leaves_nothing():
        pool = WorkerPool(CannotOpen(), LAYOUT, num_slots=2, num_workers=2, options=options)
        pool.submit(tasks(1)[0])
        for _ in range(2):  # the pool is closed then, for the same cause
            with pytest.raises(WorkerError, match=r"(?s)cannot prepare.*train\.lmdb.*in open"):
                pool.next()


def test_a_worker_has_a_name_a_single_thread_and_no_torch() -> None:
    def find() -> str:
        import os
        import sys
        from pathlib import Path

        name = Path("/proc/self/comm").read_text().strip()
        num_threads = len(list(Path("/proc/self/task").iterdir()))
        loaded = [module for module in ("cv2", "torch") if module in sys.modules]

        import cv2

        return f"{name} {os.environ['OMP_NUM_THREADS']} {num_threads} {loaded} {cv2.getNumThreads()}"

    assert found_in_a_worker(find) == "mpload-worker-0 1 1 [] 1"
    assert found_in_a_worker(find, PoolOptions(starts_fresh=True)) == "mpload-worker-0 1 1 [] 1"


@pytest.mark.slow
@pytest.mark.parametrize("starts_fresh", [False, True])
def test_workers_inherit_no_descriptor_of_the_user(starts_fresh: bool) -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)

    def find() -> str:
        from pathlib import Path

        links = []
        for entry in Path("/proc/self/fd").iterdir():
            try:
                links.append(str(entry.readlink()))
            except FileNotFoundError:  # the descriptor of the folder itself
                continue
        return " ".join(links)

    held = found_in_a_worker(find, PoolOptions(starts_fresh=starts_fresh)).split()
    assert str(Path(f"/proc/self/fd/{write}").readlink()) not in held
    assert not any("mpload-setup" in link for link in held)
    assert not any("pidfd" in link for link in held)
    os.close(read)
    os.close(write)


@pytest.mark.slow
@pytest.mark.parametrize("starts_fresh", [False, True])
def test_processes_that_workers_start_inherit_no_descriptor_of_the_pool(starts_fresh: bool) -> None:
    def find() -> str:
        import subprocess

        return subprocess.run(["ls", "-l", "/proc/self/fd"], close_fds=False, capture_output=True, text=True).stdout  # noqa: PLW1510

    found = found_in_a_worker(find, PoolOptions(starts_fresh=starts_fresh))
    assert "pipe:" in found  # its own output
    assert "mpload" not in found
    assert "socket:" not in found


def test_threads_that_imports_start_cause_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "starts_a_thread.py").write_text(
        "import os, threading\n"
        f"if os.getpid() != {os.getpid()}:\n"
        "    threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "def sample(batch, sample): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import starts_a_thread  # type: ignore[import-not-found]

    with WorkerPool(Numbers(starts_a_thread.sample), LAYOUT, num_slots=3, num_workers=2) as pool:
        with pytest.warns(MploadWarning, match=r"1 thread\(s\).*PoolOptions\(starts_fresh=True\)") as caught:
            assert len(list(pool.stream(tasks(20)))) == 20
        assert len(caught) == 1
        os.kill(pid_of(pool, "mpload-worker-0"), signal.SIGKILL)
        for number, batch in enumerate(pool.stream(tasks(20))):
            assert_right(batch.arrays, number)


def test_the_users_main_module_is_never_run_again(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
        print("main runs", flush=True)
        from mpload.transport.pool import WorkerPool
        from tests.support.transport_works import LAYOUT, Numbers, assert_right, tasks

        class Mine(Numbers):
            pass

        with WorkerPool(Mine(), LAYOUT, num_slots=2, num_workers=2) as pool:
            for number, batch in enumerate(pool.stream(tasks(4))):
                assert_right(batch.arrays, number)
        """)
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, env=environment, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "main runs\n", "")


def test_output_of_workers_appears_in_the_parents_output() -> None:
    done = run_script("""
        from mpload.transport.pool import WorkerPool
        from tests.support.transport_works import LAYOUT, Numbers, tasks

        work = Numbers(lambda batch, sample: print("hello", sample))
        with WorkerPool(work, LAYOUT, num_slots=2, num_workers=1) as pool:
            print(len(list(pool.stream(tasks(2)))))
    """)
    assert done.stderr == ""
    assert done.stdout.count("hello") == 64


@pytest.mark.slow
@pytest.mark.parametrize("how", ["end", "sys.exit", "raise"])
def test_a_pool_that_is_not_closed_ends_with_its_process(how: str) -> None:
    done = run_script(f"""
        import sys
        from mpload.transport.pool import WorkerPool
        from tests.support.transport_works import LAYOUT, Numbers, children, tasks, wait_until

        pool = WorkerPool(Numbers(), LAYOUT, num_slots=2, num_workers=2)
        batch = next(pool.stream(tasks(3)))
        assert wait_until(lambda: len(children()) == 3)
        print(*children(), flush=True)
        if {how!r} == "sys.exit": sys.exit()
        if {how!r} == "raise": raise ValueError("enough")
    """)
    pids = {int(pid) for pid in done.stdout.split()}
    assert len(pids) == 3
    assert wait_until(lambda: not any(map(is_alive, pids)))
    assert "Traceback" not in done.stderr or how == "raise"


@pytest.mark.slow
def test_closing_a_pool_while_its_workers_start_leaks_nothing() -> None:
    with leaves_nothing():
        for starts_fresh in (False, True, False):
            options = PoolOptions(starts_fresh=starts_fresh)
            layout = SlotLayout(num_samples=2, fields=(Field(name="label", dtype="int8"),))
            with WorkerPool(Numbers(), layout, num_slots=1, num_workers=3, options=options):
                assert children()
