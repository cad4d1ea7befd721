"""A Ray cluster of two nodes on this machine, in its own processes.

    python -m tests.support.ray_cluster

Prints its address. A line `kill` on its standard input kills the second node, and `add` adds another one. The end of
the input stops it.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

__all__ = ["TOKEN", "TestCluster", "ray_cluster"]

TOKEN = "a-token-of-the-tests-" + "0" * 20
_STORE_BYTES = 80_000_000


class TestCluster:
    """A running cluster."""

    __test__ = False

    def __init__(self, program: "subprocess.Popen[str]") -> None:
        self._program = program
        self.address = self._answer()

    def kill_node(self) -> None:
        self._ask("kill")

    def add_node(self) -> None:
        self._ask("add")

    def task_processes(self) -> list[psutil.Process]:
        """Return the processes that are doing a job."""
        return self._processes("do_job")

    def server_processes(self) -> list[psutil.Process]:
        """Return the processes of servers, without their workers."""
        return self._processes("ServerActor")

    def _processes(self, title: str) -> list[psutil.Process]:
        found = []
        for process in psutil.Process(self._program.pid).children(recursive=True):
            try:
                if title in "".join(process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def _ask(self, what: str) -> None:
        assert self._program.stdin is not None
        self._program.stdin.write(f"{what}\n")
        self._program.stdin.flush()
        assert self._answer() == what

    def _answer(self) -> str:
        assert self._program.stdout is not None
        for line in self._program.stdout:
            if line.startswith("answer "):
                return line.removeprefix("answer ").strip()
        raise AssertionError("the cluster has ended")


@contextmanager
def ray_cluster(*, mode: str = "token") -> Iterator[TestCluster]:
    """Start a cluster, which takes seconds, and stop it at the end."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "RAY_AUTH_MODE": mode,
        "RAY_AUTH_TOKEN": TOKEN,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_health_check_period_ms": "500",
        "RAY_health_check_initial_delay_ms": "500",
    }
    environment.pop("RAY_ADDRESS", None)
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.ray_cluster"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as program:
        try:
            yield TestCluster(program)
        finally:
            assert program.stdin is not None
            program.stdin.close()
            program.wait(60)


def _main() -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "include_dashboard": False, "object_store_memory": _STORE_BYTES},
    )
    node = cluster.add_node(num_cpus=1, object_store_memory=_STORE_BYTES)
    print("answer", cluster.address, flush=True)
    for line in sys.stdin:
        if line.strip() == "kill":
            cluster.remove_node(node, allow_graceful=False)
        else:
            node = cluster.add_node(num_cpus=1, object_store_memory=_STORE_BYTES)
        print("answer", line.strip(), flush=True)
    cluster.shutdown()  # type: ignore[no-untyped-call,unused-ignore]


if __name__ == "__main__":
    _main()
