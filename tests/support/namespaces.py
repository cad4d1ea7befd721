"""Network namespaces, which stand for machines. A virtual cable connects each of them to this one."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

__all__ = ["Machine", "can_make_machines", "machine"]

_NUMBERS = count()


@dataclass(frozen=True, slots=True)
class Machine:
    """A namespace."""

    name: str
    address: str

    @property
    def runs(self) -> list[str]:
        """What to write before a command that it is to run."""
        return ["ip", "netns", "exec", self.name]

    def unplug(self) -> None:
        """Pull its cable: nothing arrives any more, and nobody is told."""
        _ip("-n", self.name, "link", "set", "cable", "down")

    def plug(self) -> None:
        """Plug its cable in again."""
        _ip("-n", self.name, "link", "set", "cable", "up")


def can_make_machines() -> bool:
    """Return whether this process may make namespaces."""
    if not shutil.which("ip"):
        return False
    try:
        with machine():
            return True
    except subprocess.CalledProcessError:
        return False


@contextmanager
def machine() -> Iterator[Machine]:
    """Make a namespace that this one can reach, and remove it at the end."""
    number = next(_NUMBERS)
    name, cable = f"mpload-{os.getpid()}-{number}", f"mp{os.getpid()}-{number}"
    network = f"10.{200 + number % 50}.{os.getpid() % 250}"
    _ip("netns", "add", name)
    try:
        _ip("link", "add", cable, "type", "veth", "peer", "name", "cable", "netns", name)
        _ip("address", "add", f"{network}.1/24", "dev", cable)
        _ip("link", "set", cable, "up")
        _ip("-n", name, "address", "add", f"{network}.2/24", "dev", "cable")
        for device in ("lo", "cable"):
            _ip("-n", name, "link", "set", device, "up")
        yield Machine(name, f"{network}.2")
    finally:
        _ip("netns", "delete", name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=60)
