"""The standard streams: of a process that was started without some of them, and their encoding."""

import os
import sys

__all__ = ["prepare_streams"]

_STREAMS = ("stdin", "stdout", "stderr")


def prepare_streams() -> None:
    """Let each standard stream that is closed (`>&-`) lead to /dev/null, and print file names that are not UTF-8.

    Python sets a stream that is closed to None, and the next file that is opened gets its descriptor: then what a child
    process prints would be written into that file.
    """
    for descriptor, name in enumerate(_STREAMS):
        if getattr(sys, name) is None:
            _occupy(descriptor)
            stream = open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8")  # noqa: PTH123, SIM115
            setattr(sys, name, stream)
    for output in (sys.stdout, sys.stderr):
        output.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # file names need not be UTF-8


def _occupy(descriptor: int) -> None:
    """Open /dev/null as this descriptor, unless it is open."""
    try:
        os.fstat(descriptor)
    except OSError:
        null = os.open(os.devnull, os.O_RDWR)
        if null != descriptor:
            os.dup2(null, descriptor)
            os.close(null)
        os.set_inheritable(descriptor, True)
