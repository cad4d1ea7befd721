"""Workers of a zygote that is a copy find what those of a new interpreter find."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mpload import MPDataset, MPLoader, Topology
from mpload.transport import launch
from tests.support.batches import numbers_index
from tests.support.decoders import number_in
from tests.support.zygote_template import IS_SUPPORTED, template_pid

_SIGNALS = ("SigBlk", "SigIgn", "SigCgt")
_OWN = (1 << 31) - 1
"""Without the signals of the C library, whose handlers are set when the first thread starts."""


class Facts:
    """Writes what a worker finds to the file that the environment names."""

    def __call__(self, data: bytes) -> Any:
        status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
        zygote = dict(line.split(":\t", 1) for line in Path(f"/proc/{os.getppid()}/status").read_text().splitlines())
        facts = {
            "environment": {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"},  # cv2 sets it
            "folder": str(Path.cwd()),
            "path": sys.path,
            "cores": [*os.sched_getaffinity(0)],
            "open files": sorted(_kind(link) for link in Path("/proc/self/fd").iterdir()),
            "names": [status["Name"], zygote["Name"]],
            "parent": zygote["PPid"],
            "signals": [int(process[name], 16) & _OWN for process in (status, zygote) for name in _SIGNALS],
        }
        Path(os.environ["FACTS"]).write_text(json.dumps(facts))
        return number_in(data)


def _kind(link: Path) -> str:
    try:
        return str(link.readlink()).rstrip("]0123456789")
    except OSError:  # the descriptor of the folder itself
        return ""


def found(folder: Path) -> Any:
    dataset = MPDataset(numbers_index(folder, 2), decode=Facts(), batch_size=2, topology=Topology())
    with MPLoader(dataset, num_workers=1) as loader:
        list(loader)
    return json.loads((folder / "facts.json").read_text())


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(not IS_SUPPORTED, reason="the template needs Linux")
def test_a_copy_has_the_environment_and_descriptors_of_a_new_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FACTS", str(tmp_path / "facts.json"))
    monkeypatch.chdir(tmp_path)
    copied = found(tmp_path)
    assert template_pid() is not None
    assert copied["parent"] == str(os.getpid())
    monkeypatch.setattr(launch, "subprocess", subprocess)
    assert found(tmp_path) == copied
