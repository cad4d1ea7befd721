"""Where the answers of workers arrive, and how a parent waits for them and for its zygote at once."""

import select
import socket

from mpload.transport.messages import Answer

__all__ = ["Inbox"]

_MESSAGE_BYTES = 1 << 18


class Inbox:
    """Both ends of a socket: workers inherit one, the parent reads the other."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self._message = bytearray(_MESSAGE_BYTES)
        self._poll = select.poll()
        self._polled = -1  # the zygote's descriptor in it

    @property
    def fd(self) -> int:
        """The end that workers write to."""
        return self._theirs.fileno()

    def read(self) -> Answer | None:
        """Return the next answer, None where there is none yet."""
        try:
            num_bytes = self._ours.recv_into(self._message)  # `recv` would map, and unmap, as much memory each time
        except BlockingIOError:
            return None
        return Answer.decode(self._message[:num_bytes])

    def wait(self, zygote: socket.socket, wait_seconds: float) -> bool:
        """Wait at most this long for an answer or news from the zygote; return whether the zygote has any."""
        control = zygote.fileno()
        if control != self._polled:  # at first, and after the zygote's death
            self._poll, self._polled = select.poll(), control
            self._poll.register(self._ours, select.POLLIN)
            self._poll.register(control, select.POLLIN)
        return control in dict(self._poll.poll(wait_seconds * 1000))

    def close(self) -> None:
        """Close both ends. May be called again."""
        self._ours.close()
        self._theirs.close()
