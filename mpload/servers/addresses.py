"""Where a server listens: at a TCP port, or at a Unix socket."""

import errno
import ipaddress
import os
import socket
import ssl
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from mpload.errors import ArgumentError

if TYPE_CHECKING:
    from aiohttp import web

__all__ = ["Address", "SocketFile", "TcpPort", "tcp_address"]

_ALL_ADDRESSES = frozenset({"0.0.0.0", "::"})  # noqa: S104  these mean all
_MAX_PATH_BYTES = 107
"""Of the path of a Unix socket, on Linux."""


class Address(Protocol):
    """Where a server listens."""

    async def start(self, runner: "web.AppRunner") -> str:
        """Begin to listen, and return the URL for loaders. Raises `OSError` if that is not possible."""
        ...

    def remove(self) -> None:
        """Remove what is left when the server has stopped."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpPort:
    """A TCP port, for loaders of all machines that reach it."""

    host: str
    port: int
    context: ssl.SSLContext | None

    async def start(self, runner: "web.AppRunner") -> str:
        """Begin to listen, and return the URL for loaders."""
        from aiohttp import web  # noqa: PLC0415  optional

        try:
            await web.TCPSite(runner, self.host, self.port, ssl_context=self.context).start()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                text = f"port {self.port} of {self.host} is in use. Choose another --port, or 0 for any"
                raise OSError(error.errno, text) from None
            # In newer Pythons, asyncio passes over addresses that are not there, and its error has no number.
            if isinstance(error, socket.gaierror) or error.errno in {errno.EADDRNOTAVAIL, None}:
                raise ArgumentError(
                    f"host must be a name or an address of this machine, got {self.host!r}: {error.strerror or error}. "
                    "Pass another --host, or leave it out"
                ) from None
            raise
        return self._url(runner.addresses[0][1])

    def _url(self, port: int) -> str:
        scheme = "http" if self.context is None else "https"
        host = socket.gethostname() if self.host in _ALL_ADDRESSES else self.host
        host = f"[{host}]" if ":" in host else host
        return f"{scheme}://{host}:{port}"

    def remove(self) -> None:
        """Do nothing: the system frees the port."""


@dataclass(slots=True, kw_only=True)
class SocketFile:
    """A Unix socket: a file that only this user may connect to."""

    path: Path
    _listening: socket.socket | None = None

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> Self:
        """Return the socket at a path.

        Raises:
            ArgumentError: the path cannot be that of a socket, or cannot be written in a URL.
        """
        absolute = Path(path).absolute()
        text = str(absolute)
        if len(os.fsencode(text)) > _MAX_PATH_BYTES:
            raise ArgumentError(f"the path of a socket may have {_MAX_PATH_BYTES} bytes, got {text!r}")
        if not text.isprintable() or set(text) & set(" ?#%"):
            raise ArgumentError(f"the path of a socket must be plain text without spaces and '?#%', got {text!r}")
        return cls(path=absolute)

    async def start(self, runner: "web.AppRunner") -> str:
        """Begin to listen, and return the URL for loaders."""
        from aiohttp import web  # noqa: PLC0415  optional

        self._remove_unused()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        mask = os.umask(0o177)  # before anybody can connect
        try:
            listening.bind(str(self.path))
        except OSError as error:
            listening.close()
            raise OSError(error.errno, error.strerror, str(self.path)) from None
        finally:
            os.umask(mask)
        self._listening = listening
        await web.SockSite(runner, listening).start()
        return f"unix://{self.path}"

    def _remove_unused(self) -> None:
        """Remove the file of a server that was killed."""
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(self.path.lstat().st_mode):
                raise FileExistsError(errno.EEXIST, "is there, and is no socket", str(self.path))
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
                if trial.connect_ex(str(self.path)) != errno.ECONNREFUSED:
                    raise OSError(errno.EADDRINUSE, "another server listens there", str(self.path))
            self.path.unlink()

    def remove(self) -> None:
        """Remove the file of the socket."""
        if self._listening is not None:
            self._listening.close()
            self.path.unlink(missing_ok=True)


def tcp_address(host: str | None, port: int, *, token: str | None, is_open: bool, cert: Any, key: Any) -> TcpPort:
    """Return the port that the arguments of `serve` name.

    Raises:
        ArgumentError: they contradict each other, the certificate is none or not that of the key, or others could reach
            the server without a token.
        OSError: the certificate or its key cannot be read.
    """
    if not 0 <= port < 1 << 16:
        raise ArgumentError(f"port must be in [0, 65536), got {port}")
    if host is None:
        host = "0.0.0.0" if token is not None or is_open else "127.0.0.1"  # noqa: S104  with a token, or as asked
    if token is None and not is_open and not _is_local(host):
        raise ArgumentError(
            f"without a token, everybody who reaches {host}:{port} could read the dataset. "
            "Set a token (MPLOAD_TOKEN, --token), or say --no-token"
        )
    if (cert is None) != (key is None):
        raise ArgumentError("TLS needs both a certificate and its key: --cert FILE --key FILE")
    context = None
    if cert is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        for path in (cert, key):
            with Path(path).open("rb"):  # says which of the two cannot be read
                pass
        try:
            context.load_cert_chain(cert, key)
        except ssl.SSLError as error:
            raise ArgumentError(
                f"cert={str(cert)!r} and key={str(key)!r} must be a certificate and its key, as PEM files: {error}. "
                "Pass those that belong together"
            ) from error
    return TcpPort(host=host, port=port, context=context)


def _is_local(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
