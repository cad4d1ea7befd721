"""A server of samples as an actor of Ray: what its node does. Nothing here imports torch before a server starts."""

import errno
import os
import pickle
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mpload.errors import ServerError
from mpload.ray.connecting import ray_library
from mpload.ray.tasks import check_version

__all__ = ["ServerActor", "ServerOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What a node needs to know to start a server."""

    pickled_dataset: bytes
    version: str
    """The version of mpload that pickled it."""
    token: str = field(repr=False)
    num_workers: int
    memory_budget: int | str
    folder: str
    """The current folder of the program, which relative paths begin at."""
    sys_path: Sequence[str]
    """Where the program finds modules."""


class ServerActor:
    """A server in a thread of an actor.

    Process: in one of its own, which is killed to end the server.
    """

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._url = ""
        self._error: Exception | None = None

    def start(self, options: ServerOptions, port: int, limit_seconds: float) -> tuple[str, str]:
        """Start the server, and return its URL and the id of its node. If the port is taken, it has another one.

        Raises:
            ArgumentError: this node has another version of mpload, or lacks a package.
            ServerError: the server is not ready in time.
            Exception: why it cannot be started.
        """
        check_version(options.version)
        with suppress(OSError):
            os.chdir(options.folder)
        sys.path += [path for path in options.sys_path if path not in sys.path]
        dataset = pickle.loads(options.pickled_dataset)  # noqa: S301  by the program that started this actor
        ray = ray_library()
        host = ray.util.get_node_ip_address()
        arguments = (dataset, options, host, port)
        threading.Thread(target=self._serve, args=arguments, name="mpload-server", daemon=True).start()
        if not self._ready.wait(limit_seconds):
            raise ServerError(f"the server on {host} is not ready after {limit_seconds:g} s")
        self.check()
        return self._url, ray.get_runtime_context().get_node_id()

    def check(self) -> None:
        """Return if the server runs.

        Raises:
            Exception: why it has ended.
        """
        if self._error is not None:
            raise self._error

    def _serve(self, dataset: Any, options: ServerOptions, host: str, port: int) -> None:
        try:
            from mpload.servers.serving import serve  # noqa: PLC0415  imports torch

            run = partial(
                serve,
                dataset,
                host=host,
                token=options.token,
                num_workers=options.num_workers,
                memory_budget=options.memory_budget,
                on_ready=self._on_ready,
            )
            try:
                run(port=port)
            except OSError as error:
                if not port or error.errno != errno.EADDRINUSE:
                    raise
                run(port=0)
            raise ServerError(f"the server on {host} has ended")
        except Exception as error:  # noqa: BLE001  passed on
            self._error = error
        finally:
            self._ready.set()

    def _on_ready(self, url: str) -> None:
        self._url = url
        self._ready.set()
