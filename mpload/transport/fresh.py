"""A worker in a new process instead of a fork, for when forking is unsafe: `python -m mpload.transport.fresh`."""

import os
import socket
import sys
from collections.abc import Sequence

from mpload.transport.kernel import die_with_parent
from mpload.transport.worker import WorkerSetup, Workplace, report_cannot_open, run_worker

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Load the work and run a worker; return the exit status."""
    setup_fd, control_fd, number, parent_pid = map(int, arguments)
    die_with_parent(parent_pid)
    os.set_inheritable(control_fd, False)  # its end of file tells the parent that we are gone, so no child may keep it
    setup = WorkerSetup.read(setup_fd)
    os.close(setup_fd)
    try:
        place = Workplace.enter(setup)
    except BaseException as error:  # noqa: BLE001  importing the user's modules may raise anything
        report_cannot_open(number, socket.socket(fileno=setup.answers_fd), error)
        return 1
    with place.answers:
        return run_worker(number, place, parent_pid=parent_pid)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
