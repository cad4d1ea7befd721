"""The process that places servers on the nodes of a Ray cluster, watches them, and replaces those that die.

    python -m mpload.ray.supervisor

It is a process of its own, since Ray ends processes that lose the head node: a program that trains must survive that.
On its standard input, it gets a pickled `Placing`; the end of the input ends it and the servers. It writes a pickled
None to its standard output when all servers have started, or the error. Nothing here imports torch.
"""

import os
import pickle
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, BinaryIO

from mpload.client.listing import write_urls
from mpload.errors import ArgumentError, MploadError, ServerError
from mpload.ray.connecting import cause_of, connected
from mpload.ray.server import ServerActor, ServerOptions
from mpload.units import format_counted

__all__ = ["Placing"]

_POLL_SECONDS = 0.25
_CHECK_SECONDS = 1.0
_GET_SECONDS = 10.0
_KILL_SECONDS = 10.0
_SHORTEST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
_WRITE_SECONDS = 5.0
"""How long after a failure the list is written again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """Which servers to place, and where."""

    options: ServerOptions
    address: str | None
    """Of the cluster, as for `RayCluster`."""
    num_servers: int | None
    """None means one on each node that has the resources."""
    resources: Mapping[str, float]
    start_seconds: float
    patience_seconds: float
    list_file: Path


class _Server:
    """One of the servers: an actor, or the next attempt to start one.

    A restarted server is placed on the same node, with the same port, if the node lives. No call here waits.
    """

    def __init__(self, ray: Any, placing: Placing, *, node: str | None) -> None:
        self._ray = ray
        self._placing = placing
        self._node = node
        self._port = 0
        self._actor: Any = None
        self._call: Any = None  # what the actor was asked last
        self._called_at = self._starts_at = float("-inf")
        self._pause_seconds = 0.0
        self.url: str | None = None
        """None if the server is not ready."""
        self.error: Exception | None = None
        """Why it has ended last, or could not be started."""

    def step(self, now: float) -> None:
        """Look at what the actor has answered, and do what is due."""
        if self._actor is None:
            if now >= self._starts_at:
                self._start(now)
            return
        answered, _ = self._ray.wait([self._call], timeout=0)
        limit_seconds = self._placing.patience_seconds if self.url else self._placing.start_seconds
        if answered:
            self._take_answer(now)
        elif now > self._called_at + limit_seconds:
            self._lose(ServerError(f"no answer for {limit_seconds:g} s"), now)

    def _start(self, now: float) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415  optional

        kinds = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
        resources = self._placing.resources
        known = {kinds[name]: amount for name, amount in resources.items() if name in kinds}
        others = {name: amount for name, amount in resources.items() if name not in kinds}
        strategy = "SPREAD" if self._node is None else NodeAffinitySchedulingStrategy(self._node, soft=True)
        self._actor = (
            self._ray.remote(ServerActor)
            .options(**known, resources=others, max_restarts=0, max_task_retries=0, scheduling_strategy=strategy)
            .remote()
        )
        self._call = self._actor.start.remote(self._placing.options, self._port, self._placing.start_seconds)
        self._called_at = now

    def _take_answer(self, now: float) -> None:
        try:
            answer = self._ray.get(self._call, timeout=_GET_SECONDS)
        except self._ray.exceptions.RayTaskError as error:
            self._lose(cause_of(error, self._ray, what="a server"), now)
            return
        except self._ray.exceptions.RayError as error:
            self._lose(ServerError(f"its process or node has died ({type(error).__name__})"), now)
            return
        if self.url is None:
            self.url, self._node = answer
            self._port = int(self.url.rpartition(":")[2])
        elif now < self._called_at + _CHECK_SECONDS:
            return
        else:
            self._pause_seconds = 0.0
        self._call, self._called_at = self._actor.check.remote(), now

    def _lose(self, error: Exception, now: float) -> None:
        if self.url is None:
            self._node = None  # which may have no room
        _tell(f"the server {self.url or 'to be started'} is lost: {error}")
        self.kill()
        self.error = error
        self._starts_at = now + self._pause_seconds
        self._pause_seconds = min(_LONGEST_PAUSE_SECONDS, max(_SHORTEST_PAUSE_SECONDS, 2 * self._pause_seconds))

    def kill(self) -> Any:
        """Kill the actor if there is one, and return what resolves when it is dead."""
        actor, self._actor, self.url = self._actor, None, None
        if actor is None:
            return None
        call = actor.check.remote()
        self._ray.kill(actor, no_restart=True)
        return call


class _List:
    """The list of servers, which is written when they change. If that fails, it is written later."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listed: Sequence[str] | None = None
        self._writes_at = float("-inf")

    def write(self, urls: Sequence[str], now: float) -> None:
        """Write the list if it has changed, unless that has failed shortly before."""
        if urls == self._listed or now < self._writes_at:
            return
        try:
            write_urls(self._path, urls)
        except OSError as error:
            if self._writes_at == float("-inf"):
                _tell(f"{self._path}, the list of servers, cannot be written: {error}. It is written later")
            self._writes_at = now + _WRITE_SECONDS
            return
        if self._writes_at > float("-inf"):
            _tell(f"{self._path}, the list of servers, is written again")
        self._listed, self._writes_at = urls, float("-inf")


def _tell(text: str) -> None:
    with suppress(OSError):  # the parent may have died
        print(f"mpload: {text}", file=sys.__stderr__, flush=True)


def _supervise(ray: Any, placing: Placing, orders: BinaryIO, answers: BinaryIO) -> None:
    """Start the servers, say so, and replace those that die until `orders` ends.

    Raises:
        ArgumentError: no node has the resources.
        MploadError: why a server cannot be started. After the start, errors are printed to standard error.
    """
    servers = [_Server(ray, placing, node=node) for node in _nodes(ray, placing)]
    deadline = time.monotonic() + placing.start_seconds
    is_started, listed = False, _List(placing.list_file)
    try:
        while not wait([orders.fileno()], _POLL_SECONDS):
            now = time.monotonic()
            for server in servers:
                server.step(now)
            urls = [server.url for server in servers if server.url]
            listed.write(urls, now)
            if is_started:
                continue
            if len(urls) == len(servers):
                is_started = True
                _send(answers, None)
            else:
                _check_start(servers, placing, is_late=now > deadline)
    except Exception as error:
        if not is_started:
            raise
        _tell(f"the servers on the Ray cluster end, since their supervisor has failed: {error!r}")
    finally:
        with suppress(Exception):  # the cluster may be gone, and the servers with it
            _kill(ray, servers)
        _List(placing.list_file).write([], time.monotonic())


def _nodes(ray: Any, placing: Placing) -> Sequence[str | None]:
    """Return for each server on which node to start it; None leaves that to Ray."""
    if placing.num_servers is not None:
        return [None] * placing.num_servers
    fit = [
        str(node["NodeID"])
        for node in ray.nodes()
        if node["Alive"] and all(node["Resources"].get(name, 0) >= amount for name, amount in placing.resources.items())
    ]
    if not fit:
        raise ArgumentError(f"no node of the Ray cluster has the resources {dict(placing.resources)}. See `ray status`")
    return fit


def _check_start(servers: Sequence[_Server], placing: Placing, *, is_late: bool) -> None:
    for server in servers:
        if isinstance(server.error, MploadError):
            raise server.error
        if server.error is not None:
            raise ServerError(f"a server cannot be started: {type(server.error).__name__}: {server.error}")
    if is_late:
        num_ready = sum(server.url is not None for server in servers)
        raise ServerError(
            f"{num_ready} of {format_counted(len(servers), 'server')} have started in {placing.start_seconds:g} s. Has "
            f"the Ray cluster nodes with free resources {dict(placing.resources)}? See `ray status`. Ask for less, or "
            "raise start_seconds"
        )


def _kill(ray: Any, servers: Sequence[_Server]) -> None:
    calls = [call for server in servers if (call := server.kill()) is not None]
    if calls:
        ray.wait(calls, num_returns=len(calls), timeout=_KILL_SECONDS)


def _send(answers: BinaryIO, answer: Exception | None) -> None:
    pickle.dump(answer, answers)
    answers.flush()


def _main() -> None:
    with ExitStack() as stack:
        orders = stack.enter_context(os.fdopen(0, "rb", closefd=False))
        answers = stack.enter_context(os.fdopen(os.dup(1), "wb"))
        os.dup2(2, 1)  # what Ray prints is no answer
        nowhere = stack.enter_context(Path(os.devnull).open("w"))
        stack.enter_context(redirect_stdout(nowhere))
        stack.enter_context(redirect_stderr(nowhere))  # Ray prints a page about each node that dies
        placing: Placing = pickle.load(orders)  # noqa: S301  of the parent
        try:
            with connected(placing.address) as ray:
                _supervise(ray, placing, orders, answers)
        except BrokenPipeError:
            pass  # the parent has died
        except MploadError as error:
            _send(answers, error)
        except Exception as error:  # noqa: BLE001  raised in the parent, where it can be seen
            _send(answers, ServerError(f"servers cannot be placed on the Ray cluster: {error!r}"))


if __name__ == "__main__":
    _main()
