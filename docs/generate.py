"""Write the parts of the documentation that are generated from the code: the command line page and the tree of errors.

    python docs/generate.py [--check]

`--check` writes nothing, and fails if a page differs from the code.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.main import get_command

from mpload.cli.main import app
from mpload.errors import MploadError

DOCS = Path(__file__).parent
COMMAND_LINE = DOCS / "command-line.md"
TROUBLESHOOTING = DOCS / "troubleshooting.md"
TREE = re.compile(r"(<!-- errors -->\n).*?(<!-- end -->)", re.DOTALL)


def command_line() -> str:
    """Return the page of all commands and their options, as Typer writes it."""
    command = ["-m", "typer", "mpload.cli.main", "utils", "docs", "--name", "mpload", "--title", "Command line"]
    text = subprocess.run([sys.executable, *command], check=True, capture_output=True, text=True).stdout
    return with_links(text, get_command(app), "mpload")


def with_links(text: str, group: Any, anchor: str) -> str:
    """Return the page with links in its lists of commands, and with full sentences where Typer truncates them."""
    for name, command in group.commands.items():
        summary = " ".join(command.help.partition("\n\n")[0].split())
        place = f"{anchor}-{name}"
        text = text.replace(f"* `{name}`: {command.get_short_help_str()}\n", f"* [`{name}`](#{place}): {summary}\n")
        if hasattr(command, "commands"):
            text = with_links(text, command, place)
    return text


def tree(error: type[Exception] = MploadError, indent: str = "") -> list[str]:
    """Return the tree of the subclasses of `error`, each with the builtin it derives from and a summary."""
    lines = []
    public = (child for child in error.__subclasses__() if child.__module__ == MploadError.__module__)
    children = sorted(public, key=lambda child: child.__name__)
    for number, child in enumerate(children, start=1):
        is_last = number == len(children)
        builtin = next((base.__name__ for base in child.__bases__ if base.__module__ == "builtins"), "")
        name = f"{indent}{'└── ' if is_last else '├── '}{child.__name__}"
        summary = re.split(r"[.;:]\s|\.?$", child.__doc__ or "", maxsplit=1)[0]
        lines.append(f"{name:<26} {builtin:<18} {summary}")
        lines += tree(child, indent + ("    " if is_last else "│   "))
    return lines


def troubleshooting() -> str:
    """Return the page with its tree of errors regenerated."""
    drawn = "\n".join([MploadError.__name__, *tree()])
    text = TROUBLESHOOTING.read_text(encoding="utf-8")
    return TREE.sub(lambda place: f"{place[1]}\n```text\n{drawn}\n```\n\n{place[2]}", text)


def main() -> None:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page differs from the code")
    arguments = parser.parse_args()
    pages = {COMMAND_LINE: command_line(), TROUBLESHOOTING: troubleshooting()}
    stale = [page for page, text in pages.items() if not page.exists() or page.read_text(encoding="utf-8") != text]
    if not arguments.check:
        for page in stale:
            page.write_text(pages[page], encoding="utf-8")
    elif stale:
        names = ", ".join(page.name for page in stale)
        sys.exit(f"{names}: not what the code says. Run: python docs/generate.py")


if __name__ == "__main__":
    main()
