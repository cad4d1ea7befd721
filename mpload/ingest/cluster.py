"""`Cluster`: other machines that do work for this one."""

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

__all__ = ["Cluster"]

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


class Cluster(Protocol):
    """Other machines that do work for this one, such as `RayCluster`."""

    def run(self, work: Callable[[_Job], _Result], jobs: Sequence[_Job], *, shared: Path) -> Generator[_Result]:
        """Call `work` for each job on the machines. Yield the results, in the order in which the jobs are done.

        Args:
            work: a function that can be pickled. It may be called twice for a job, also at the same time.
            jobs: its arguments.
            shared: a folder that all machines share, where unfinished files end in `.tmp`.
        """
        ...
