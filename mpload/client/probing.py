"""`Probe`: finds out whether a server accepts connections, while the worker does something else."""

import os
import select
import socket
from urllib.parse import urlsplit

__all__ = ["Probe"]

_PORTS = {"http": 80, "https": 443}


class Probe:
    """An attempt to connect for which nobody waits. A machine that is off, or a firewall, leaves it without an answer.

    Args:
        url: the server. One with a Unix socket counts as reached: connecting to it does not wait.
        until: when the attempt ends, by the clock.

    Process: waits only for the name of a machine to be looked up.
    """

    def __init__(self, url: str, *, until: float) -> None:
        self._until = until
        self._connecting: list[socket.socket] = []
        self.is_reached = url.startswith("unix:")
        self.problem = "does not answer within the time limit"
        """Why the server was not reached."""
        if not self.is_reached:
            self._connect(url)

    def _connect(self, url: str) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port or _PORTS[parts.scheme]
            for family, kind, protocol, _, address in socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM):
                self._connecting.append(socket.socket(family, kind, protocol))
                self._connecting[-1].setblocking(False)
                self._connecting[-1].connect_ex(address)  # an error is read from the socket
        except (OSError, UnicodeError) as error:
            self.problem = f"{type(error).__name__}: {error}"

    def is_done(self, now: float) -> bool:
        """Look whether the attempt has ended. `is_reached` then says how."""
        poll = select.poll()
        for each in self._connecting:
            poll.register(each, select.POLLOUT)
        done = {number for number, _ in poll.poll(0)}
        for each in [each for each in self._connecting if each.fileno() in done]:
            code = each.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self.is_reached = self.is_reached or not code
            self.problem = f"{type(OSError(code, '')).__name__}: {os.strerror(code)}"
            self._connecting.remove(each)
            each.close()
        if self.is_reached or not self._connecting or now >= self._until:
            self.close()
            return True
        return False

    def close(self) -> None:
        """End the attempt. May be called again."""
        while self._connecting:
            self._connecting.pop().close()
