"""A worker in a process of its own: `python -m mpload.transport.fresh`, for where forking is unsafe."""

import os
import socket
import sys
from collections.abc import Sequence

from mpload.transport.kernel import die_with_parent
from mpload.transport.worker import WorkerSetup, Workplace, run_worker, tell_cannot_open

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Load the work and be a worker; return the exit status."""
    setup_fd, control_fd, number, parent_pid = map(int, arguments)
    die_with_parent(parent_pid)
    os.set_inheritable(control_fd, False)  # open as long as this process lives, and no longer
    setup = WorkerSetup.read(setup_fd)
    os.close(setup_fd)
    try:
        place = Workplace.enter(setup)
    except BaseException as error:  # noqa: BLE001  the user's modules may do anything when imported
        tell_cannot_open(number, socket.socket(fileno=setup.answers_fd), error)
        return 1
    return run_worker(number, place, parent_pid=parent_pid)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
