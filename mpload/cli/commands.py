"""The commands. Each has a module of its name, which is imported when the command runs: importing all takes long."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

__all__ = ["CommandGroup"]

_SUMMARIES = {
    "index": "Index a folder, a list, shards, or everything below a URL.",
    "inspect": "Show, check and preview an index.",
    "select": "Write an index of some samples of another index.",
    "merge": "Concatenate indexes that have the same columns.",
    "pack": "Write samples into tar shards, LMDB files or arrays.",
    "plan": "Compare what a job needs with what a machine offers.",
    "doctor": "Find out what limits the speed of a job.",
    "serve": "Make samples for the loaders of other machines.",
    "monitor": "Watch the memory of a command and its child processes.",
    "demo": "Try mpload on generated photos, or on a folder of images.",
    "top": "Show what the loaders of a running job are doing.",
    "cache": "Inspect, verify or delete PartialCache folders.",
    "bench": "Benchmark decoders and memory on this machine.",
}
"""By command, in the order of the help: the first sentence of its own help."""


class CommandGroup(TyperGroup):
    """The group of commands. To list them, it imports none."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "commands": _Commands()})

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands, in the order of the help."""
        del ctx
        return list(_SUMMARIES)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands in the help."""
        commands: dict[str, Any] = {name: TyperCommand(name, help=summary) for name, summary in _SUMMARIES.items()}
        TyperGroup(name=self.name, commands=commands).format_commands(ctx, formatter)


class _Commands(Mapping[str, Any]):
    """The commands by name. Getting one imports its module."""

    def __getitem__(self, name: str) -> Any:
        if name not in _SUMMARIES:
            raise KeyError(name)
        command = getattr(import_module(f"mpload.cli.{name}"), name)
        app = typer.Typer(rich_markup_mode=None)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
        return get_group(app).commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_SUMMARIES)

    def __len__(self) -> int:
        return len(_SUMMARIES)
