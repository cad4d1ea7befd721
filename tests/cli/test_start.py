"""What the command line imports before it does something, and what its list of commands says without importing them."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_group

from mpload.cli.main import app

COMMANDS = get_group(app).commands
HEAVY = {"cv2", "numpy", "psutil", "pyarrow", "rich.console", "torch"}
SHOW_MODULES = "import atexit, sys; atexit.register(lambda: print(*sys.modules)); from mpload.cli.main import main; "


def loaded_by(*arguments: object, path: Path | None = None) -> set[str]:
    """Return the modules that a command has imported when it ends; `path` is searched for modules first."""
    code = f"{SHOW_MODULES} sys.path.insert(0, {str(path)!r}); sys.argv[1:] = {[*map(str, arguments)]!r}; main()"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(ran.stdout.splitlines()[-1].split())


@pytest.mark.processes
@pytest.mark.parametrize("option", ["--help", "--version"])
def test_the_list_of_commands_and_the_version_import_nothing_heavy(option: str) -> None:
    loaded = loaded_by(option)
    assert loaded.isdisjoint(HEAVY)
    assert loaded.isdisjoint(f"mpload.cli.{name}" for name in COMMANDS)


@pytest.mark.processes
def test_a_command_imports_no_other_command() -> None:
    loaded = loaded_by("merge", "--help")
    assert {name for name in COMMANDS if f"mpload.cli.{name}" in loaded} == {"merge"}


@pytest.mark.processes
def test_pandas_is_not_imported_for_an_index(tmp_path: Path) -> None:
    (tmp_path / "pandas.py").write_text("__version__ = '2.0.0'\n")  # found if anything looks for pandas
    (tmp_path / "list.txt").write_text("a.jpg\t1\nb.jpg\t0\n")
    loaded = loaded_by("index", tmp_path / "list.txt", "-o", tmp_path / "all.txt", path=tmp_path)
    assert "pyarrow" in loaded
    assert "pandas" not in loaded


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_shows_the_first_sentence_of_each_commands_help(name: str) -> None:
    context = get_group(app).make_context("mpload", [name], resilient_parsing=True)
    formatter = context.make_formatter()
    get_group(app).format_commands(context, formatter)
    shown = dict(line.split(maxsplit=1) for line in formatter.getvalue().splitlines()[1:])
    assert shown[name] == COMMANDS[name].get_short_help_str(limit=80)
