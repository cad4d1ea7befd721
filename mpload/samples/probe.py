"""Runs the user's code in a worker to learn the form of its samples: shapes and dtypes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mpload.transport.worker import ChunkReport

__all__ = ["Probe"]


@dataclass(kw_only=True)
class Probe:
    """Calls `find` in a worker and returns its result through the slot."""

    find: Callable[..., bytes]
    """Called with the numbers of the task."""

    def open(self, worker: int) -> None:
        """Do nothing: no preparation is needed."""
        del worker

    def fill(
        self, task: tuple[int, ...], arrays: Mapping[str, Any], first: int, last: int, report: ChunkReport
    ) -> None:
        """Call `find` with `task` and store its result."""
        del last
        report.at(first)
        arrays["found"].put(first, self.find(*task))
