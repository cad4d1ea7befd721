"""What other processes, and the quota of a container, take of the cores is seen in the kernel's counters."""

import json
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from mpload.memory.contention import contention_between, read_pressure, shares_of_span
from mpload.memory.core_times import CoreTimes, read_core_times_of
from mpload.memory.machine import num_allowed_cores
from tests.support.containers import cpu_container

pytestmark = [pytest.mark.processes, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

_SECONDS = 1.0
_QUOTA = 0.05  # little enough to be used up on a busy machine
_BURN = "while True: pass"
_WATCH = f"""
import json, sys, time
from pathlib import Path
from dataclasses import asdict
from mpload.memory.contention import contention_between, read_pressure
from mpload.memory.machine import usable_cores
Path(sys.argv[1]).write_text("0")
before = read_pressure(own_seconds=time.process_time())
ends = time.monotonic() + {_SECONDS}
while time.monotonic() < ends:
    pass
after = read_pressure(own_seconds=time.process_time())
print(json.dumps(asdict(contention_between(before, after, num_cores=usable_cores())) | {{"cores": usable_cores()}}))
"""


@pytest.mark.slow
def test_a_process_is_a_neighbour_unless_it_belongs_to_the_job() -> None:
    with subprocess.Popen([sys.executable, "-c", _BURN]) as burning:
        try:
            first = read_core_times_of([burning.pid]), read_pressure(own_seconds=0.0)
            time.sleep(_SECONDS)
            last = read_core_times_of([burning.pid]), read_pressure(own_seconds=0.0)
        finally:
            burning.kill()
    took = last[0][burning.pid].running_seconds - first[0][burning.pid].running_seconds
    seconds = last[1].at_seconds - first[1].at_seconds
    foreign = contention_between(first[1], last[1], num_cores=num_allowed_cores())
    assert foreign.neighbour_cores > 0.8 * took / seconds
    ours = contention_between(first[1], replace(last[1], own_seconds=took), num_cores=num_allowed_cores())
    assert ours.neighbour_cores == pytest.approx(foreign.neighbour_cores - took / seconds, abs=0.01)


def test_cores_that_the_job_may_not_use_anyway_are_not_taken_from_it() -> None:
    before = read_pressure(own_seconds=0.0)
    busy_seconds = before.machine_seconds + num_allowed_cores() - 0.5
    after = replace(before, at_seconds=before.at_seconds + 1, machine_seconds=busy_seconds)
    assert contention_between(before, after, num_cores=0.5).neighbour_cores == pytest.approx(0.0, abs=1e-6)
    everything = contention_between(before, after, num_cores=num_allowed_cores())
    assert everything.neighbour_cores == pytest.approx(num_allowed_cores() - 0.5)


def test_a_quota_that_is_used_up_is_seen() -> None:
    with cpu_container(_QUOTA) as container:
        if container is None:
            pytest.skip("no CPU containers here")
        ran = subprocess.run(
            [sys.executable, "-c", _WATCH, str(container.procs)],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    found = json.loads(ran.stdout)
    assert found["cores"] == _QUOTA
    assert found["throttled_share"] > 0.2


def test_a_worker_that_starts_in_a_span_counts_from_its_start() -> None:
    times = CoreTimes(at_seconds=12.0, running_seconds=1.0, delayed_seconds=0.5)
    shares = shares_of_span({}, {7: times}, begun_seconds=10.0)
    assert (shares[7].running, shares[7].delayed) == (0.5, 0.25)
