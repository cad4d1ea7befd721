"""A TCP proxy whose link is slow or breaks: `python -m tests.support.fault_proxy URL FAULT` prints its own URL.

`slow` sends 4 kB every 5 ms. `resets` resets every connection after a megabyte. `stalls` sends nothing more after that.
"""

import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from urllib.parse import urlsplit

_LIMIT_BYTES = 1 << 20


def main() -> None:
    parts, fault = urlsplit(sys.argv[1]), sys.argv[2]
    assert parts.port is not None
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    while True:
        client = listener.accept()[0]
        server = socket.create_connection((parts.hostname, parts.port))
        threading.Thread(target=_pass, args=(client, server, ""), daemon=True).start()
        threading.Thread(target=_pass, args=(server, client, fault), daemon=True).start()


def _pass(source: socket.socket, target: socket.socket, fault: str) -> None:
    num_bytes = 0
    with suppress(OSError):
        while data := source.recv(4096 if fault == "slow" else 1 << 16):
            if fault == "slow":
                time.sleep(0.005)
            target.sendall(data)
            num_bytes += len(data)
            if fault == "resets" and num_bytes > _LIMIT_BYTES:
                target.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                break
            if fault == "stalls" and num_bytes > _LIMIT_BYTES:
                time.sleep(3600)
    for each in (target, source):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
            each.close()


if __name__ == "__main__":
    main()
