"""What a run of many tests costs in CPU time, which depends on other programs less than elapsed time does."""

import os
from collections.abc import Generator

import pytest

__all__ = ["CpuReport"]

_MANY = 500
_NUM_SHOWN = 10
_SHARE = 0.01
_KEY = "cpu_seconds"


class CpuReport:
    """Hooks that add up the CPU seconds of tests and their child processes, and show the most expensive ones.

    The limit is a share of the total, so that it holds on machines of any speed. A process counts for the test in which
    it ends, so a server that several tests share is charged to the last one.
    """

    def __init__(self) -> None:
        self._start_seconds = 0.0
        self._seconds: dict[str, float] = {}

    def pytest_runtest_logstart(self) -> None:
        """Note the beginning of a test."""
        self._start_seconds = _cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the CPU seconds to the last report of a test, which xdist sends to the main process."""
        report = yield
        if call.when == "teardown":
            report.user_properties.append((_KEY, _cpu_seconds() - self._start_seconds))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the CPU seconds."""
        for key, value in report.user_properties:
            if key == _KEY:
                self._seconds[report.nodeid] = float(str(value))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the most expensive tests of a long run."""
        if len(self._seconds) < _MANY:
            return
        total = sum(self._seconds.values())
        terminalreporter.section(f"{total:.0f} CPU seconds; the most expensive tests")
        by_cost = sorted(self._seconds.items(), key=lambda item: -item[1])
        for name, seconds in by_cost[:_NUM_SHOWN]:
            advice = f"  more than {_SHARE:.0%} of all: make it cheaper, or mark it slow" * (seconds > _SHARE * total)
            terminalreporter.line(f"{seconds:6.1f} s  {name}{advice}")


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
