"""`RayServers`: servers of samples on the nodes of a Ray cluster, for the loaders of a training job."""

import math
import os
import pickle
import pickletools
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import mpload
from mpload.client.listing import urls_in, write_urls
from mpload.errors import ArgumentError, ServerError
from mpload.loader.dataset import MPDataset
from mpload.ray.server import ServerOptions
from mpload.ray.supervisor import Placing

__all__ = ["RayServers"]

_CONNECT_SECONDS = 240.0
_CLOSE_SECONDS = 60.0


class RayServers:
    """Servers (as `mpload serve`) on the nodes of a Ray cluster: `MPLoader(dataset, servers=..., token=...)` asks them.

    Each is an actor. One that dies is started again: on its node, at its port, or on another node if that one is dead.
    The file `list_file` lists the URLs of those that run, and loaders read it again when it changes.

    A process of its own watches the servers: it and the servers end with this object, or with this process. If the
    head node of the cluster dies, the servers do too, and loaders make the samples themselves.

    A cluster is used only if it refuses programs without its token (`RAY_AUTH_MODE=token`), as for `RayCluster`. The
    program itself may be connected to Ray or not.

    Args:
        dataset: what to make samples of. The nodes can read its index and files at the same paths, and import its
            decoders and transforms, which are not defined in the program that is started (`__main__`).
        num_servers: number of servers; None means one on each node that has the resources.
        resources: what Ray reserves for each server, such as `{"CPU": 8, "decoders": 1}`. None means `{"CPU": 1}`.
        num_workers: worker processes of each server; None means one per CPU reserved.
        memory_budget: memory for samples and workers of each server, such as `"4GiB"`; `"auto"` is half of the free
            memory of its machine.
        address: of the cluster, as for `RayCluster`.
        list_file: where to list the URLs: a path that all machines of the training job share. None means a temporary
            file of this machine.
        start_seconds: time limit for the start of all servers.
        patience_seconds: a server that does not answer for so long is replaced.

    Attributes:
        token: the secret that loaders need, made for these servers.
        list_file: the file that lists the URLs.

    Raises:
        ArgumentError: Ray is not installed, or the cluster admits anyone, a number is out of range, the dataset cannot
            be sent to other machines, or no node has the resources.
        OutageError: the cluster does not answer.
        ServerError: the servers have not started in time, or cannot be started.
        MploadError: why a server cannot be started.

    Process: for the process that made it.
    """

    def __init__(
        self,
        dataset: MPDataset[Any],
        *,
        num_servers: int | None = None,
        resources: Mapping[str, float] | None = None,
        num_workers: int | None = None,
        memory_budget: int | str = "auto",
        address: str | None = None,
        list_file: str | os.PathLike[str] | None = None,
        start_seconds: float = 120.0,
        patience_seconds: float = 30.0,
    ) -> None:
        numbers = {"start_seconds": start_seconds, "patience_seconds": patience_seconds}
        counts = {"num_servers": num_servers, "num_workers": num_workers}
        numbers |= {name: count for name, count in counts.items() if count is not None}
        for name, number in numbers.items():
            if not 0 < number < math.inf:
                raise ArgumentError(f"{name} must be positive and finite, got {number}")
        resources = {"CPU": 1.0} if resources is None else dict(resources)
        for name, number in resources.items():
            if not 0 <= number < math.inf:
                raise ArgumentError(f"resources must not be negative, got {number} of {name!r}")
        self.token = secrets.token_hex(32)
        options = ServerOptions(
            pickled_dataset=_pickled(dataset),
            version=mpload.__version__,
            token=self.token,
            num_workers=num_workers or max(1, int(resources.get("CPU", 1))),
            memory_budget=memory_budget,
            folder=str(Path.cwd()),
            sys_path=[str(Path(path).absolute()) for path in sys.path],
        )
        with ExitStack() as stack:
            if list_file is None:
                list_file = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mpload-"))) / "servers.txt"
            self.list_file = Path(list_file).absolute()
            _begin_list(self.list_file)
            placing = Placing(
                options=options,
                address=address,
                num_servers=num_servers,
                resources=resources,
                start_seconds=start_seconds,
                patience_seconds=patience_seconds,
                list_file=self.list_file,
            )
            self._supervisor = stack.enter_context(_supervisor(self.list_file))
            _start(self._supervisor, placing)
            self._resources = stack.pop_all()

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs of the servers that run at present."""
        return urls_in(self.list_file) if self._supervisor.poll() is None else ()

    def close(self) -> None:
        """End the servers. May be called again."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _pickled(dataset: Any) -> bytes:
    """Return a dataset in a form that nodes can read."""
    try:
        pickled = pickle.dumps(dataset)
    except Exception as error:
        raise ArgumentError(f"the dataset cannot be sent to other machines: {error}") from error
    if any(value in {"__main__", "__mp_main__"} for _, value, _ in pickletools.genops(pickled)):
        raise ArgumentError(
            "the dataset has a function or class of the program that was started, which other machines cannot import. "
            "Move it to a module of its own"
        )
    return pickled


def _begin_list(path: Path) -> None:
    try:
        write_urls(path, [])
    except OSError as error:
        raise ArgumentError(
            f"list_file={str(path)!r} cannot be written: {error.strerror}. Name another file"
        ) from error


@contextmanager
def _supervisor(list_file: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Start the process that watches the servers, and at the end stop it."""
    command = [sys.executable, "-P", "-m", "mpload.ray.supervisor"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # a terminal's Ctrl-C is for this process, which then ends that one
    ) as process:
        assert process.stdin is not None
        try:
            yield process
        finally:
            with suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(_CLOSE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
            write_urls(list_file, [])  # in case that it has died


def _start(supervisor: "subprocess.Popen[bytes]", placing: Placing) -> None:
    """Have the servers started.

    Raises:
        ServerError: they are not.
        MploadError: what the other process says.
    """
    assert supervisor.stdin is not None
    assert supervisor.stdout is not None
    with suppress(BrokenPipeError):
        pickle.dump(placing, supervisor.stdin)
        supervisor.stdin.flush()
    limit_seconds = placing.start_seconds + _CONNECT_SECONDS
    if not wait([supervisor.stdout.fileno()], limit_seconds):
        raise ServerError(f"the Ray cluster has started no servers in {limit_seconds:g} s. Look at `ray status`")
    try:
        answer = pickle.load(supervisor.stdout)  # noqa: S301  of a process that was started here
    except EOFError:
        raise ServerError("the process that starts servers has died: see what Ray has printed") from None
    if answer is not None:
        raise answer
