"""`Servers`: which servers make the samples of a loader, and what happens when they do not."""

import math
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from mpload.client.choice import LONGEST_PAUSE_SECONDS
from mpload.client.listing import checked_urls, urls_in
from mpload.errors import ArgumentError
from mpload.plan.ranges import check_range
from mpload.storage.server_urls import check_token
from mpload.transport.batches import PoolOptions
from mpload.transport.board import MAX_WORKERS

__all__ = ["Fallback", "Servers", "longest_pause_of", "servers_of"]

Fallback = Literal["local", "raise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Servers that make the samples of an `MPLoader`, and the limits for requests to them.

    Raises:
        ArgumentError: there is no server, a URL is not one of a server, the list or `ca_file` cannot be read, or a
            number is out of range.
    """

    urls: Sequence[str] = ()
    """Where they are, such as `"http://10.0.0.5:8500"`, or `"unix:///tmp/mpload.sock"` for a Unix socket of this
    machine. Stored as a tuple."""
    list_file: str | os.PathLike[str] | None = None
    """A text file that lists the URLs instead, one a line. Workers read it again when it changes. A list that is empty,
    or gone, means that there are no servers at the moment. Such servers have no statistics of their own. Stored as an
    absolute `Path`."""
    token: str | None = field(default=None, repr=False)
    """The secret that the servers want to see; None if they want none."""
    fallback: Fallback = "local"
    """What happens to samples that no server makes: `"local"` makes them in this loader's own workers, and `"raise"`
    waits for a server, and then raises a `ServerError`."""
    asking_workers: int | None = None
    """How many of the loader's workers ask the servers. The others make samples themselves meanwhile, with the cores
    that this machine can spare. None means that all workers ask."""
    request_timeout_seconds: float = 30.0
    """A server that has not answered a request after this time counts as failing. It is asked again later."""
    connect_timeout_seconds: float = 5.0
    """Time limit for making a connection."""
    retry_seconds: float = 120.0
    """With `fallback="raise"`: how long a worker waits for any server to answer."""
    servers_per_rank: int = 4
    """How many of the servers each rank asks, so that a server of a large job does not have connections of all its
    workers. A rank asks more if there are so many servers that each would have fewer than this many ranks; a single
    rank asks all. If a server fails, another one takes its place."""
    ca_file: str | None = None
    """The certificates that sign those of the servers, as a PEM file; None means the system's. For `https` only."""

    def __post_init__(self) -> None:
        if self.list_file is not None:
            if self.urls:
                raise ArgumentError("servers have urls= or list_file=, not both")
            object.__setattr__(self, "list_file", Path(self.list_file).absolute())
            urls_in(Path(self.list_file))
        elif isinstance(self.urls, str) or not self.urls:
            raise ArgumentError(f"servers must be a list of at least one URL, or the Path of one, got {self.urls!r}")
        object.__setattr__(self, "urls", checked_urls(self.urls))
        if self.fallback not in get_args(Fallback):
            raise ArgumentError(f"fallback must be 'local' or 'raise', got {self.fallback!r}")
        check_token(self.token)
        if self.asking_workers is not None:
            check_range("asking_workers", self.asking_workers, 1, MAX_WORKERS + 1)
        for name in ("request_timeout_seconds", "connect_timeout_seconds", "retry_seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise ArgumentError(f"{name} must be positive and finite, got {getattr(self, name)}")
        if self.servers_per_rank < 1:
            raise ArgumentError(f"servers_per_rank must be at least 1, got {self.servers_per_rank}")
        if self.ca_file is not None:
            _check_certificates(self.ca_file)

    @property
    def longest_seconds(self) -> float:
        """The longest time that a worker spends on a request without a sign of life."""
        return self.connect_timeout_seconds + self.request_timeout_seconds


def longest_pause_of(servers: Servers) -> float:
    """Return for how long a failing server is left out at most: a worker that waits for it asks it several times."""
    is_awaited = servers.fallback == "raise"
    return min(LONGEST_PAUSE_SECONDS, servers.retry_seconds / 4) if is_awaited else LONGEST_PAUSE_SECONDS


def servers_of(
    servers: Sequence[str] | os.PathLike[str] | Servers | None,
    token: str | None,
    fallback: Fallback,
    *,
    num_workers: int | str,
    options: PoolOptions,
) -> Servers | None:
    """Return the servers that the arguments of an `MPLoader` name; None if there are none.

    Raises:
        ArgumentError: the arguments contradict each other, or break a rule of `Servers`.
    """
    if servers is None:
        if token is not None or fallback != "local":
            raise ArgumentError("token= and fallback= belong to servers=, but there are none")
        return None
    if isinstance(servers, Servers):
        if token is not None or fallback not in {"local", servers.fallback}:
            raise ArgumentError("servers=Servers(...) has its own token and fallback: pass them to Servers")
        found = servers
    elif isinstance(servers, os.PathLike):
        found = Servers(list_file=servers, token=token, fallback=fallback)
    else:
        found = Servers(urls=servers, token=token, fallback=fallback)
    if num_workers == 0:
        raise ArgumentError("servers are asked by worker processes, but num_workers is 0. Pass num_workers=1 or more")
    if found.asking_workers is not None and not (isinstance(num_workers, int) and found.asking_workers <= num_workers):
        raise ArgumentError(
            f"asking_workers={found.asking_workers} takes a num_workers of at least that many, got {num_workers!r}"
        )
    if found.longest_seconds >= options.sample_timeout_seconds:
        raise ArgumentError(
            f"a request to a server may take {found.longest_seconds:g} s (connect_timeout_seconds + "
            f"request_timeout_seconds), but a worker is killed after {options.sample_timeout_seconds:g} s. Lower these "
            "in Servers(...), or raise sample_timeout_seconds in PoolOptions(...)"
        )
    return found


def _check_certificates(ca_file: str) -> None:
    try:
        ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # an `SSLError` is one
        why = error.strerror or str(error)
        raise ArgumentError(
            f"ca_file={ca_file!r} has no certificates: {why}. Pass a PEM file with those that sign the servers'"
        ) from error
