"""Threads of a worker share a few heaps of the C library, which keep what a sample frees, unless the user decides."""

import os
import platform
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the limit is glibc's"),
    pytest.mark.processes,
]

COUNT_HEAPS = """
import threading, time
from mpload.transport.kernel import set_up_heaps

set_up_heaps()
barrier = threading.Barrier(32)

def work():
    kept = bytes(50_000)
    barrier.wait(30)

threads = [threading.Thread(target=work) for _ in range(31)]
for thread in threads:
    thread.start()
while barrier.n_waiting < 31:
    time.sleep(0.001)
HEAP_BYTES = 64 << 20  # each is aligned to its largest size
lines = [line.split() for line in open("/proc/self/maps")]
unnamed = [line for line in lines if len(line) == 5 and line[1] == "rw-p"]  # a stack begins with a page of no access
found = [line for line in unnamed if int(line[0].partition("-")[0], 16) % HEAP_BYTES == 0]
print(len(found))
barrier.wait(30)
"""


COUNT_FAULTS = """
import resource
import numpy as np
from mpload.transport.kernel import set_up_heaps

set_up_heaps()
first = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(64):
    images = [np.ones(1 << 18, np.float32) for _ in range(3)]
    del images
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - first)
"""
MIB, MIB_PAGES = 1 << 20, 256


COUNT_FAULTS_OF_WORKER = """
import resource
import numpy as np
from mpload import MPLoader

class Images:
    def __len__(self):
        return 64

    def __getitem__(self, number):
        images = [np.ones(1 << 18, np.float32) for _ in range(3)]
        del images
        return np.array([resource.getrusage(resource.RUSAGE_SELF).ru_minflt])

if __name__ == "__main__":
    with MPLoader(Images(), batch_size=1, num_workers=1) as loader:
        faults = [int(batch) for batch in loader]
    print(faults[-1] - faults[8])
"""


COUNT_KEPT_BYTES = """
import numpy as np
import psutil
from mpload.transport.board import ParentBoard
from mpload.transport.kernel import set_up_heaps
from tests.support.boards import chunk, worker_of

set_up_heaps()
board = ParentBoard(num_plain_entries=4)
board.post(1, chunk(1))
worker = worker_of(board, 0)
worker.take()
before = psutil.Process().memory_full_info().uss
worker.wait_for_turn()
image = np.ones(4 << 20, np.float32)
del image
TURN_ENDS
print(psutil.Process().memory_full_info().uss - before)
"""


def run(script: str, variables: dict[str, str]) -> int:
    """Run a script that prints a number, with no options of the heap but `variables`; return the number."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    done = subprocess.run(
        [sys.executable, "-c", script], env=clean | variables, stdout=subprocess.PIPE, timeout=60, check=True
    )
    return int(done.stdout)


@pytest.mark.parametrize(
    ("variables", "least", "most"),
    [({}, 1, 4), ({"MALLOC_ARENA_MAX": "7"}, 5, 7), ({"GLIBC_TUNABLES": "glibc.malloc.arena_max=7"}, 5, 7)],
)
def test_threads_share_a_few_heaps(variables: dict[str, str], least: int, most: int) -> None:
    assert least <= run(COUNT_HEAPS, variables) <= most  # two threads at once may make one more than the limit


@pytest.mark.parametrize(
    ("variables", "are_kept"),
    [
        ({}, True),
        ({"MALLOC_ARENA_MAX": "7"}, True),
        ({"MALLOC_TRIM_THRESHOLD_": "131072"}, False),
        ({"MALLOC_TRIM_THRESHOLD": "131072"}, True),  # glibc knows no such variable
        ({"MALLOC_MMAP_THRESHOLD_": "131072"}, False),
        ({"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"}, False),
    ],
)
def test_pages_that_a_sample_frees_are_used_by_the_next_unless_the_user_decides(
    variables: dict[str, str], *, are_kept: bool
) -> None:
    assert (run(COUNT_FAULTS, variables) < 4 * MIB_PAGES) is are_kept


def test_the_pages_of_a_workers_samples_are_used_again() -> None:
    assert run(COUNT_FAULTS_OF_WORKER, {}) < 8 * MIB_PAGES  # one for each page would be 40,000


@pytest.mark.parametrize("ends_turn", [True, False])
def test_the_memory_of_a_huge_sample_is_given_back_when_its_turn_ends(*, ends_turn: bool) -> None:
    end = "worker.end_turn()" if ends_turn else ""
    assert (run(COUNT_KEPT_BYTES.replace("TURN_ENDS", end), {}) < 8 * MIB) is ends_turn  # the sample has 16 MiB
