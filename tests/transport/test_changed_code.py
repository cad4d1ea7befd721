"""Workers that are no forks import modules anew: a warning says if those have changed since the job imported them."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mpload import MPLoader
from mpload.errors import MploadWarning
from mpload.transport.changed_code import changed_files

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")

NAME = "module_that_is_edited"
CODE = """
class Numbers:
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return i + {}
"""
Write = Callable[[int], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write another version of a module, which can be imported."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / f"{NAME}.py"

    def write_version(number: int) -> None:
        path.write_text(CODE.format(number))
        os.utime(path, ns=(number, number))

    write_version(0)
    yield write_version
    sys.modules.pop(NAME, None)


def test_a_change_of_a_module_is_found_once(write: Write, tmp_path: Path) -> None:
    importlib.import_module(NAME)
    assert changed_files() == []
    assert changed_files() == []
    write(1)
    assert changed_files() == [str(tmp_path / f"{NAME}.py")]
    assert changed_files() == []
    (tmp_path / f"{NAME}.py").unlink()
    assert changed_files() == []


def test_a_change_after_a_reload_is_found(write: Write, tmp_path: Path) -> None:
    module = importlib.import_module(NAME)
    assert changed_files() == []
    for version in (1, 3):
        write(version)
        assert changed_files() == [str(tmp_path / f"{NAME}.py")]
        importlib.reload(module)
        assert changed_files() == []
        write(version + 1)
        importlib.reload(module)
        assert changed_files() == []


@pytest.mark.processes
@pytest.mark.filterwarnings("default::mpload.errors.MploadWarning")
def test_a_loader_warns_when_its_workers_start_again(write: Write) -> None:
    dataset: Any = importlib.import_module(NAME).Numbers()
    with MPLoader(dataset, batch_size=4, num_workers=1, multiprocessing_context="spawn") as loader:
        assert next(iter(loader)).tolist() == [0, 1, 2, 3]
        write(10)
        loader.release()
        with pytest.warns(
            MploadWarning, match=rf"{NAME}.py changed on disk while .* Workers that start now import the"
        ):
            list(loader)
