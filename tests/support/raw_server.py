"""A web server on the loopback interface whose answers are the bytes that a function sends, right or wrong."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

__all__ = ["Answer", "dropping", "head", "raw_server"]

Answer = Callable[[socket.socket, str], bool]
"""Answers a request for a path on a connection, and returns whether the connection stays open."""


@contextmanager
def raw_server(answer: Answer, *, host: str = "127.0.0.1") -> Iterator[str]:
    """Start a server, yield its URL, and stop it at the end."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family, backlog=1024) as listener:
        threading.Thread(target=_serve, args=(listener, answer), daemon=True).start()
        yield f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


@contextmanager
def dropping() -> Iterator[str]:
    """Yield the URL of a server that leaves connections without an answer, as a machine that is off does."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):  # the kernel drops what comes when the queue is full
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def head(status: str, *lines: str, length: int | None = None) -> bytes:
    """Return the head of an answer: `head("200 OK", length=3)`."""
    lengths = [] if length is None else [f"Content-Length: {length}"]
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, *lengths, "", ""]).encode("latin-1")


def _serve(listener: socket.socket, answer: Answer) -> None:
    with suppress(OSError):
        while True:
            threading.Thread(target=_converse, args=(listener.accept()[0], answer), daemon=True).start()


def _converse(connection: socket.socket, answer: Answer) -> None:
    with suppress(OSError), connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while request := connection.recv(65536):
            if not answer(connection, request.split(b" ", 2)[1].decode()):
                return
