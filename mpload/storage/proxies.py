"""The proxy that the environment names for a URL, as for curl."""

from collections.abc import Iterable
from contextlib import suppress
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

__all__ = ["proxy_of"]


def proxy_of(url: str) -> str | None:
    """Return the URL of the proxy for the server of a URL; None if it is reached directly."""
    server = urlsplit(url)
    proxies = getproxies_environment()
    proxy: str | None = proxies.get(server.scheme) or proxies.get("all")
    direct = proxies.get("no", "").replace(",", " ").split()  # curl lets blanks separate hosts too
    if proxy and (proxy_bypass_environment(server.netloc, {"no": ",".join(direct)}) or _is_in(server.hostname, direct)):
        return None
    return proxy or None


def _is_in(host: str | None, networks: Iterable[str]) -> bool:
    """Return whether a host is an address in one of the networks, such as `10.0.0.0/8` or `::1`, as for curl."""
    with suppress(ValueError):
        address = ip_address(host or "")
        for each in networks:
            with suppress(ValueError):
                if address in ip_network(each, strict=False):
                    return True
    return False
