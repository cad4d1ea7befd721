"""Measures what a callable costs: CPU time, and time spent waiting for anything but a core."""

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from mpload.judgement.facts import Cost
from mpload.memory.core_times import read_core_times

__all__ = ["Stopwatch"]

_WARM_UP_CALLS = 2  # the first calls of a decoder fill its tables


class Stopwatch:
    """Wraps a callable, and records the CPU time (of all threads of this process) and the waiting time of each call.

    Time in which the process could have run but had no core counts as neither.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__wrapped__ = function  # lets `inspect.signature` see the original
        self.cpu: list[float] = []
        self.wait: list[float] = []
        self.last_shape: tuple[int, ...] | None = None
        """The shape of the last result, if it is an array."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function, and record what it costs."""
        delayed = _delayed_seconds()
        started_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
        result = self.__wrapped__(*arguments, **named)
        cpu_ns, took_ns = time.process_time_ns() - cpu_ns, time.perf_counter_ns() - started_ns
        self.last_shape = getattr(result, "shape", None)
        self.cpu.append(cpu_ns * 1e-9)
        self.wait.append(max(0.0, (took_ns - cpu_ns) * 1e-9 - (_delayed_seconds() - delayed)))
        return result

    def cost(self, num_samples: int) -> Cost:
        """Return the mean cost of a sample. If there are enough calls, the first ones are warm-up and do not count."""
        per_sample = len(self.cpu) / max(1, num_samples)  # a sample may have several sources
        return self.cost_of_first(len(self.cpu)).times(per_sample)

    def cost_of_first(self, num_calls: int) -> Cost:
        """Return the mean cost of the first calls, less the warm-up."""
        skipped = _WARM_UP_CALLS if num_calls > 2 * _WARM_UP_CALLS else 0
        if not self.cpu[skipped:num_calls]:
            return Cost()
        return Cost(
            cpu_seconds=float(np.mean(self.cpu[skipped:num_calls])),
            wait_seconds=float(np.mean(self.wait[skipped:num_calls])),
        )


def _delayed_seconds() -> float:
    times = read_core_times(os.getpid())
    return 0.0 if times is None else times.delayed_seconds
