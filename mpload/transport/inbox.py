"""The socket on which the answers of workers arrive. A parent polls it together with the socket of its zygote."""

import select
import socket

from mpload.transport.error_classes import cannot_open
from mpload.transport.messages import Answer

__all__ = ["Inbox"]

_MESSAGE_BYTES = 1 << 18


class Inbox:
    """Both ends of a socket pair: workers inherit one end and write to it, the parent reads from the other."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self._message = bytearray(_MESSAGE_BYTES)
        self._poll = select.poll()
        self._polled = -1  # the zygote's descriptor that `_poll` watches

    @property
    def fd(self) -> int:
        """The descriptor of the end to which workers write."""
        return self._theirs.fileno()

    @property
    def answers_fd(self) -> int:
        """The descriptor of the end that becomes readable when answers arrive."""
        return self._ours.fileno()

    def read(self) -> Answer | None:
        """Return the next answer, or None if none has arrived.

        Raises:
            WorkerError: `Work.open` failed in a worker. The error is also of the class of the one in the worker.
        """
        try:
            num_bytes = self._ours.recv_into(self._message)  # `recv` would map a buffer of this size each time
        except BlockingIOError:
            return None
        answer = Answer.decode(self._message[:num_bytes])
        if not answer.serial:
            raise cannot_open(answer)
        return answer

    def wait(self, zygote: socket.socket, wait_seconds: float) -> bool:
        """Wait up to `wait_seconds` for an answer or for the zygote; return whether the zygote has sent a message."""
        control = zygote.fileno()
        if control != self._polled:  # on the first call, and after a zygote was replaced
            self._poll, self._polled = select.poll(), control
            self._poll.register(self._ours, select.POLLIN)
            self._poll.register(control, select.POLLIN)
        return control in dict(self._poll.poll(wait_seconds * 1000))

    def close(self) -> None:
        """Close both ends. May be called again."""
        self._ours.close()
        self._theirs.close()
