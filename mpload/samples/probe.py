"""What a worker does to find out what samples are made of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mpload.transport.worker import ChunkReport

__all__ = ["Probe"]


@dataclass(kw_only=True)
class Probe:
    """Calls the user's code in a process of its own, and hands on what that was found to make."""

    find: Callable[..., bytes]
    """Is called with the numbers of the task."""

    def open(self) -> None:
        """Nothing to prepare."""

    def fill(
        self, task: tuple[int, ...], arrays: Mapping[str, Any], first: int, last: int, report: ChunkReport
    ) -> None:
        """Find out what `task` asks for."""
        del last
        report.at(first)
        arrays["found"].put(first, self.find(*task))
