"""Threads of a worker share a few heaps of the C library, unless the user has set another number."""

import os
import platform
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the limit is glibc's"),
    pytest.mark.processes,
]

SCRIPT = """
import threading, time
from mpload.transport.kernel import limit_heaps

limit_heaps()
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


@pytest.mark.parametrize(
    ("variables", "least", "most"),
    [({}, 1, 3), ({"MALLOC_ARENA_MAX": "7"}, 4, 6), ({"GLIBC_TUNABLES": "glibc.malloc.arena_max=7"}, 4, 6)],
)
def test_threads_share_a_few_heaps(variables: dict[str, str], least: int, most: int) -> None:
    clean = {name: value for name, value in os.environ.items() if name not in {"MALLOC_ARENA_MAX", "GLIBC_TUNABLES"}}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=clean | variables, stdout=subprocess.PIPE, timeout=60, check=True
    )
    assert least <= int(done.stdout) <= most
