"""`RayCluster`: runs jobs on the nodes of a Ray cluster, watches them, and kills them."""

import pickle
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import mpload
from mpload.errors import ArgumentError, StorageError
from mpload.ray.connecting import cause_of, connected
from mpload.ray.tasks import do_job, probe_in
from mpload.units import format_counted

__all__ = ["RayCluster"]

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")
_POLL_SECONDS = 1.0
_RESULT_SECONDS = 60.0
_KILL_SECONDS = 10.0
_MIN_TASKS = 8
_KEPT = "a pack keeps its finished shards, an index begins anew"


@dataclass(frozen=True, slots=True, kw_only=True)
class RayCluster:
    """A Ray cluster whose nodes do the work of `pack_index` and `build_index`: pass it as `on`.

    The nodes share a folder with this machine, at the same path, and have the same versions of mpload, Ray and Python.
    If a process or a node dies, its job is done again on another. The files are the same wherever a job runs.

    A cluster is used only if it refuses programs without its token (`RAY_AUTH_MODE=token`): an open one runs anyone's
    code on its nodes.

    Attributes:
        address: `"HOST:PORT"` of the head node. None means the address in `RAY_ADDRESS`, or else the cluster that this
            machine is a node of, or else a new one of this machine alone, with a token of its own, as `"local"` does.
        cpus_per_task: CPUs that Ray reserves for each job.
        max_retries: how often a job is done again after its process or its node died.
        patience_seconds: time limit for any sign of progress: a job that ends, or a file that grows.

    Raises:
        ArgumentError: a number is out of range.
    """

    address: str | None = None
    cpus_per_task: float = 1.0
    max_retries: int = 3
    patience_seconds: float = 600.0

    def __post_init__(self) -> None:
        for name in ("cpus_per_task", "patience_seconds"):
            if not getattr(self, name) > 0:
                raise ArgumentError(f"{name} must be positive, got {getattr(self, name)}")
        if self.max_retries < 0:
            raise ArgumentError(f"max_retries must not be negative, got {self.max_retries}")

    def run(self, work: Callable[[_Job], _Result], jobs: Sequence[_Job], *, shared: Path) -> Generator[_Result]:
        """Call `work` for each job on the nodes. Yield the results, in the order in which the jobs are done.

        If the iterator is closed or an error occurs, jobs that are still running are killed.

        Args:
            work: a function that can be pickled. It may be called twice for a job, also at the same time.
            jobs: its arguments.
            shared: a folder that all nodes share with this machine, where unfinished files end in `.tmp`.

        Raises:
            ArgumentError: Ray is not installed, or the cluster admits anyone, or has another version of mpload.
            OutageError: the cluster does not answer.
            StorageError: a node does not share the folder, a job was killed too often, or there is no progress.
            Exception: what `work` raises.

        Memory: constant: at most two jobs per CPU are submitted.
        """
        if not jobs:
            return
        try:
            with connected(self.address) as ray, probe_in(shared) as probe:
                options = {"num_cpus": self.cpus_per_task, "max_retries": self.max_retries}
                task = ray.remote(**options)(do_job)
                pickled_work = ray.put(pickle.dumps(work))
                tasks = _Tasks(ray, lambda job: task.remote(pickled_work, job, probe, mpload.__version__))
                try:
                    yield from tasks.results(jobs, _Patience(ray, shared, self.patience_seconds))
                except ray.exceptions.RayTaskError as error:
                    raise cause_of(error, ray) from error
                except ray.exceptions.RayError as error:
                    raise StorageError(
                        f"a job on the Ray cluster died {self.max_retries + 1} times, perhaps for lack of memory: "
                        f"{type(error).__name__}: {error} Run the same command again: {_KEPT}"
                    ) from error
        except BaseException:
            _wait_until_killed(shared)
            raise


@dataclass(slots=True)
class _Tasks:
    """The jobs that have been submitted."""

    ray: Any
    submit: Callable[[Any], Any]
    running: set[Any] = field(default_factory=set)

    def results(self, jobs: Sequence[_Job], patience: "_Patience") -> Iterator[Any]:
        todo = iter(jobs)
        num_left = len(jobs)
        while num_left:
            num_wanted = max(_MIN_TASKS, 2 * _num_cpus(self.ray))
            for job in islice(todo, max(0, num_wanted - len(self.running))):
                self.running.add(self.submit(job))
            done, _ = self.ray.wait(list(self.running), timeout=_POLL_SECONDS)
            if done:
                patience.restart()
            else:
                patience.check(len(self.running))
            for task in done:
                result = self.ray.get(task, timeout=_RESULT_SECONDS)
                self.running.remove(task)
                num_left -= 1
                yield result


class _Patience:
    """Ends the wait for jobs if nothing happens for too long."""

    def __init__(self, ray: Any, shared: Path, limit_seconds: float) -> None:
        self._ray = ray
        self._shared = shared
        self._limit_seconds = limit_seconds
        self._check_seconds = limit_seconds / 10
        self.restart()

    def restart(self) -> None:
        self._last = self._looked = time.monotonic()
        self._signs: Mapping[str, tuple[int, int]] = {}

    def check(self, num_running: int) -> None:
        """Raise `StorageError` if unfinished files have not changed for too long."""
        now = time.monotonic()
        if now < self._looked + self._check_seconds:
            return
        self._looked = now
        signs = _unfinished(self._shared)
        if signs != self._signs:
            self._signs, self._last = signs, now
        if now > self._last + self._limit_seconds:
            nodes = self._ray.nodes()
            alive = sum(node["Alive"] for node in nodes)
            raise StorageError(
                f"nothing has happened on the Ray cluster for {self._limit_seconds:.3g} s: "
                f"{format_counted(num_running, 'job')} running or waiting, {alive} of {len(nodes)} nodes alive, with "
                f"{_num_cpus(self._ray)} CPUs. Look at `ray status`. Then run the same command again: {_KEPT}"
            )


def _wait_until_killed(shared: Path) -> None:
    """Wait until no unfinished file grows any more, for a few seconds at most.

    When this process leaves the cluster, Ray kills the processes of its jobs. `ray.cancel` is of no use: it may race
    with a job that is about to start, and then Ray 2.60 aborts this process.
    """
    deadline = time.monotonic() + _KILL_SECONDS
    before = None
    while before != (now := _unfinished(shared)) and time.monotonic() < deadline:
        before = now
        time.sleep(_POLL_SECONDS)


def _unfinished(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the size and time of each unfinished file in a folder."""
    found = {}
    for path in folder.glob("*.tmp"):
        with suppress(OSError):  # it has just been finished
            status = path.stat()
            found[path.name] = (status.st_size, status.st_mtime_ns)
    return found


def _num_cpus(ray: Any) -> int:
    return int(ray.cluster_resources().get("CPU", 0))
