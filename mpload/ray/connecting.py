"""Connects to a Ray cluster that refuses strangers, or starts one on this machine."""

import logging
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum, auto
from importlib import import_module
from typing import Any

from mpload.errors import ArgumentError, OutageError, StorageError
from mpload.storage.urls import redacted

__all__ = ["cause_of", "connected", "ray_library"]

_ANSWER_SECONDS = 60.0
_TURN_ON = (
    "On its head node, run `ray get-auth-token --generate`, copy ~/.ray/auth_token to all nodes and to this machine, "
    "and start every node with RAY_AUTH_MODE=token"
)


class _Answer(Enum):
    """What a cluster answers to someone who asks for its status."""

    REFUSED = auto()
    OPEN = auto()
    NOT_FOUND = auto()
    NONE = auto()


def ray_library() -> Any:
    """Return the module `ray`.

    Raises:
        ArgumentError: it is not installed.
    """
    try:
        return import_module("ray")
    except ImportError as error:
        raise ArgumentError("running on Ray takes the package ray: pip install 'mpload[ray]'") from error


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Connect this process to a cluster, and yield the module `ray`.

    Args:
        address: HOST:PORT, or "local" for a new cluster of this machine alone. None means the address in `RAY_ADDRESS`,
            or the cluster that this machine is a node of, or else a new one of this machine alone.

    Raises:
        ArgumentError: Ray is not installed or already in use, or the cluster admits anyone.
        OutageError: no cluster answers, or it refuses this machine's token, or none can be started.
    """
    ray = _ray_with_token()
    wanted = address or os.environ.get("RAY_ADDRESS") or None
    if wanted is not None and "://" in wanted:
        raise ArgumentError(f"{redacted(wanted)}: must be HOST:PORT of the cluster's head node, such as 10.0.0.1:6379")
    with _own_cluster(ray) if _is_alone(wanted) else _existing_cluster(ray, wanted):
        yield ray


def _ray_with_token() -> Any:
    """Import `ray` so that this process uses a token, which Ray decides when it is imported."""
    if sys.modules.get("ray") is not None and os.environ.get("RAY_AUTH_MODE") != "token":
        raise ArgumentError("this program has imported ray without a token: start it with RAY_AUTH_MODE=token")
    os.environ["RAY_AUTH_MODE"] = "token"
    ray = ray_library()
    if ray.is_initialized():
        raise ArgumentError("this program is connected to a Ray cluster already. Call ray.shutdown() before")
    return ray


@contextmanager
def _existing_cluster(ray: Any, address: str | None) -> Iterator[None]:
    where = _where(address)
    if _answer(address, mode="token") is _Answer.REFUSED:
        raise OutageError(
            f"the Ray cluster {where} refuses this machine, which has no token or another one. Copy ~/.ray/auth_token "
            "from the head node, or name a file with the token in RAY_AUTH_TOKEN_PATH. RAY_ADDRESS=local starts a new "
            "cluster of this machine alone"
        )
    try:
        ray.init(address=address or "auto", log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:  # another version of Ray too
        raise OutageError(f"the Ray cluster {where} cannot be joined: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _own_cluster(ray: Any) -> Iterator[None]:
    """Start a cluster of this machine alone, with a token that no file contains, and stop it at the end."""
    with _environment({"RAY_AUTH_TOKEN": secrets.token_hex(32)}):
        try:
            ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise OutageError(f"a Ray cluster cannot be started on this machine: {error}") from error
        try:
            own_address = ray.get_runtime_context().gcs_address
            _check(_answer(own_address, mode="disabled"), own_address)
            yield
        finally:
            ray.shutdown()


def _is_alone(address: str | None) -> bool:
    """Return whether to start a new cluster. Raise if there is a cluster, but an unfit one."""
    if address == "local":
        return True
    answer = _answer(address, mode="disabled")
    if answer is _Answer.NOT_FOUND and address is None:
        return True
    _check(answer, address)
    return False


def _check(answer_to_stranger: _Answer, address: str | None) -> None:
    where = _where(address)
    if answer_to_stranger is _Answer.OPEN:
        raise ArgumentError(
            f"the Ray cluster {where} needs no token, so anyone who reaches its ports can run code on its nodes, with "
            f"your permissions and credentials. {_TURN_ON}"
        )
    if answer_to_stranger is not _Answer.REFUSED:
        raise OutageError(
            f"the Ray cluster {where} does not answer. Is it running, and is this its address? See `ray status`"
        )


def _where(address: str | None) -> str:
    return f"at {address}" if address else "on this machine"


def _answer(address: str | None, *, mode: str) -> _Answer:
    """Ask a cluster for its status, with or without a token, in a process of its own, since a process has one mode."""
    command = [sys.executable, "-P", "-m", "ray.scripts.scripts", "status"]  # no module of the current folder
    try:
        asked = subprocess.run(
            [*command, "--address", address] if address else command,
            env={**os.environ, "RAY_AUTH_MODE": mode},
            capture_output=True,
            text=True,
            check=False,
            timeout=_ANSWER_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return _Answer.NONE
    if asked.returncode == 0:
        return _Answer.OPEN
    if "AuthenticationError" in asked.stderr:
        return _Answer.REFUSED
    return _Answer.NOT_FOUND if "Could not find any running Ray" in asked.stdout + asked.stderr else _Answer.NONE


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables. Ray, and the processes that it starts, read the token from them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def cause_of(error: Any, ray: Any, *, what: str = "a job") -> Exception:
    """Return what a task raised, as it would be raised on this machine."""
    cause = error.cause
    if "ModuleNotFoundError" in str(error):
        missing = str(error).strip().splitlines()[-1]
        return ArgumentError(f"a node of the Ray cluster lacks a package: {missing}. Install mpload there")
    if isinstance(cause, Exception) and not isinstance(cause, ray.exceptions.RayError):
        return cause
    return StorageError(f"{what} on the Ray cluster failed: {error}")
