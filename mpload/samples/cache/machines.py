"""The machines whose caches keep different samples: which of them keeps a sample, and which one this is."""

import ipaddress
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from urllib.parse import urlsplit

import psutil
from xxhash import xxh3_64_intdigest

from mpload.errors import ArgumentError
from mpload.storage.server_urls import check_token, web_parts

__all__ = ["Machines", "check_machines", "machines_of"]

_OWNER_KEY = 0x51C6_E2F3_7B0A_9D84  # used for nothing else: a sample's machine must not depend on its share
_MASK = (1 << 64) - 1
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """The machines that share a cache, in the order that all of them use."""

    urls: tuple[str, ...]
    """Where the server of each machine is."""
    own: int
    """The place of this machine."""
    token: str | None = field(repr=False)
    """The secret that the servers want to see; None if they want none."""

    def owner_of(self, sample_id: int) -> int:
        """Return the place of the machine that keeps a sample.

        Another machine at the end of the list takes its share from all others, which keep the rest. (Jump consistent
        hash, by Lamping and Veach, arXiv:1406.2294.)
        """
        key = xxh3_64_intdigest(sample_id.to_bytes(8, "little"), seed=_OWNER_KEY)
        owner, following = 0, 0
        while following < len(self.urls):
            owner = following
            key = (key * 2862933555777941757 + 1) & _MASK
            following = int((owner + 1) * ((1 << 31) / ((key >> 33) + 1)))
        return owner


def check_machines(urls: Sequence[str], machine: int | None, token: str | None) -> tuple[str, ...]:
    """Return the URLs in one form. Raise `ArgumentError` unless these arguments of a `PartialCache` name machines."""
    if not isinstance(urls, list | tuple):
        raise ArgumentError(f"machines must be a list of URLs, got {urls!r}")
    if not urls and (machine is not None or token is not None):
        raise ArgumentError("machine= and token= belong to machines=, but there are none")
    checked = tuple(_checked(url) for url in urls)
    if len(set(checked)) < len(checked):
        raise ArgumentError(f"machines must be different URLs, got {', '.join(checked)}")
    check_token(token)
    if machine is not None and not (type(machine) is int and 0 <= machine < len(checked)):
        raise ArgumentError(
            f"machine must be the place of this machine in machines, 0 to {len(checked) - 1}, got {machine!r}"
        )
    return checked


def machines_of(urls: Sequence[str], machine: int | None, token: str | None) -> Machines | None:
    """Return the machines that the arguments of a `PartialCache` name; None if there are none.

    Raises:
        ArgumentError: see `check_machines`; or a package is missing; or `machine` is None, and not exactly one of the
            URLs has an address of this machine.
    """
    checked = check_machines(urls, machine, token)
    if checked and find_spec("urllib3") is None:  # found out here: a sample that cannot be read might be skipped
        raise ArgumentError("a cache of several machines takes urllib3: pip install 'mpload[servers]'")
    own = _own_place(checked) if checked and machine is None else machine
    return None if own is None else Machines(urls=checked, own=own, token=token)


def _checked(url: object) -> str:
    parts = web_parts(url)
    if parts is None or parts.hostname is None or parts.path not in {"", "/"}:
        raise ArgumentError(f"machines are URLs of servers, such as http://node1:8000, got {url!r:.100}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or _PORTS[parts.scheme]}"


def _own_place(urls: Sequence[str]) -> int:
    """Return the place of the only URL whose host has an address of this machine."""
    own = {each.address.partition("%")[0] for found in psutil.net_if_addrs().values() for each in found}
    places = [place for place, url in enumerate(urls) if any(_is_own(each, own) for each in _addresses(url))]
    if len(places) == 1:
        return places[0]
    named = ", ".join(urls[place] for place in places) or "none of them"
    raise ArgumentError(
        f"which of the machines is this one? The addresses of this machine fit {named}. Pass machine=, its place in "
        f"machines, 0 to {len(urls) - 1}"
    )


def _is_own(address: str, own: Collection[str]) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(found, "ipv4_mapped", None)
    found = found if mapped is None else mapped
    return found.is_loopback or str(found) in own  # Debian gives its host's name an address of its own, 127.0.1.1


def _addresses(url: str) -> set[str]:
    try:
        return {
            str(found[4][0]) for found in socket.getaddrinfo(urlsplit(url).hostname, None, proto=socket.IPPROTO_TCP)
        }
    except (OSError, UnicodeError):  # one whose name is not known here is another machine
        return set()
