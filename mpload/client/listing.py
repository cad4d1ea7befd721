"""`ServerList`: the URLs of servers, which a file may list and change."""

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from mpload.errors import ArgumentError
from mpload.storage.server_urls import web_parts

__all__ = ["ServerList", "checked_urls", "urls_in", "write_urls"]

_LOOK_SECONDS = 1.0
"""How often a worker looks at the file at most."""
_MAX_BYTES = 1 << 20


def checked_urls(urls: Sequence[str]) -> tuple[str, ...]:
    """Return URLs of servers without slashes at their ends.

    Raises:
        ArgumentError: one is no URL of a server, or is there twice.
    """
    found = tuple(map(_checked, urls))
    if len(set(found)) < len(found):
        raise ArgumentError(f"servers must differ, got {list(found)}")
    return found


def _checked(url: str) -> str:
    if web_parts(url) is None and not _is_socket(url):
        raise ArgumentError(
            f"a server is given as 'http://HOST:PORT', 'https://HOST:PORT' or 'unix:///PATH', got {url!r:.200}"
        )
    return url.rstrip("/")


def _is_socket(url: object) -> bool:
    """Return whether a URL names a Unix socket."""
    if not isinstance(url, str) or not url.isprintable() or " " in url:
        return False
    parts = urlsplit(url) if url.startswith("unix:") else None
    return parts is not None and not (parts.netloc or parts.query or parts.fragment) and parts.path not in {"", "/"}


def urls_in(path: Path) -> tuple[str, ...]:
    """Return the URLs that a file lists, one a line.

    Raises:
        ArgumentError: it cannot be read, or lists something else.
    """
    try:
        with path.open("rb") as file:
            lines = file.read(_MAX_BYTES).decode().splitlines()
        return checked_urls([line.strip() for line in lines if line.strip()])
    except (OSError, UnicodeError, ArgumentError) as error:
        raise ArgumentError(f"{path} is no list of servers, with a URL on each line: {error}") from error


def write_urls(path: Path, urls: Sequence[str]) -> None:
    """Write a list of servers. Who reads it meanwhile gets the old list or the new one."""
    new = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        new.write_text("".join(f"{url}\n" for url in urls))
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


class ServerList:
    """The URLs of the servers of a loader.

    Args:
        urls: the URLs.
        list_file: a file that lists them instead; it is read again when it changes. None means that they never change.
    """

    def __init__(self, urls: Sequence[str], list_file: Path | None) -> None:
        self.urls = tuple(urls)
        """What was read last. Empty if the file is gone, or was not read yet."""
        self._file = list_file
        self._version: tuple[int, ...] = ()
        self._looks_at = float("-inf")

    def update(self, now: float) -> bool:
        """Read the file if it has changed and was not looked at shortly before. Return whether the URLs have changed.

        Raises:
            ArgumentError: it lists something else than servers. The URLs remain.
        """
        if self._file is None or now < self._looks_at:
            return False
        self._looks_at = now + _LOOK_SECONDS
        try:
            status = self._file.stat()
            version: tuple[int, ...] = (status.st_ino, status.st_size, status.st_mtime_ns)
        except OSError:
            version = ()
        if version == self._version and version:
            return False
        self._version, before = version, self.urls
        self.urls = urls_in(self._file) if version else ()
        return self.urls != before
