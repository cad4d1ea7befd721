"""`mpload cache`: show, verify or delete the caches in a folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from mpload.cli.reports import AsJson, print_json
from mpload.cli.terminal import progress_bar
from mpload.errors import StorageError
from mpload.samples.cache.folder import CacheFolder, caches_in
from mpload.units import format_bytes, format_count, format_counted

__all__ = ["cache"]

cache = typer.Typer(no_args_is_help=True, help="Inspect, verify or delete PartialCache folders.")

_Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder given to PartialCache.")]


@cache.command()
def info(folder: _Folder, *, as_json: AsJson = False) -> None:
    """Show the caches in a folder, and how full they are."""
    found = [_facts(opened, about) for opened, about in _caches(folder)]
    _show(found, _line, folder=folder, as_json=as_json)


@cache.command()
def verify(folder: _Folder, *, as_json: AsJson = False) -> None:
    """Check the checksum of every entry.

    Exits with 1 if any entry is damaged, or if there is no cache. A loader treats a damaged entry as a miss, and reads
    the original file.
    """
    found = []
    for opened, about in _caches(folder):
        num_damaged = num_entries = 0
        with progress_bar("verifying", unit="entries") as update:
            for sample_id, place in opened.places():
                num_entries += 1
                num_damaged += opened.read(sample_id, place) is None
                update(num_entries)
        found.append({**_facts(opened, about), "num_damaged": num_damaged})
        opened.close()
    _show(
        found,
        lambda each: f"{_line(each)}, {format_count(each['num_damaged'])} damaged",
        folder=folder,
        as_json=as_json,
    )
    if not found or any(each["num_damaged"] for each in found):
        raise typer.Exit(1)


@cache.command()
def clear(folder: _Folder, *, as_json: AsJson = False) -> None:
    """Delete the caches in a folder.

    Other files stay. Running jobs continue without a cache.
    """
    removed = []
    for opened, about in _caches(folder):
        removed.append(_facts(opened, about))
        try:
            opened.remove()
        except OSError as error:
            raise StorageError(
                f"{opened.path}: the cache cannot be deleted: {error.strerror}. {_as_owner(opened.path)}"
            ) from error
        opened.close()
    _show(removed, lambda each: f"deleted {_line(each)}", folder=folder, as_json=as_json)


def _caches(folder: Path) -> list[tuple[CacheFolder, dict[str, Any]]]:
    opened = []
    try:
        found = caches_in(folder)
    except PermissionError as error:
        path = Path(error.filename)
        raise StorageError(f"{path}: cannot be read: {error.strerror}. {_as_owner(path)}") from error
    for each, about in found:
        try:
            each.open()
        except OSError as error:
            raise StorageError(
                f"{each.path}: {error.strerror}. Its table is missing or damaged. Delete the folder: "
                "a loader will build the cache again"
            ) from error
        opened.append((each, about))
    return opened


def _as_owner(path: Path) -> str:
    """Return who may do what this user may not, for a message."""
    try:
        return f"Run the command as its owner, user {path.stat().st_uid}"
    except OSError:
        return "Run the command as its owner"


def _facts(opened: CacheFolder, about: dict[str, Any]) -> dict[str, Any]:
    return {
        "folder": opened.path,
        "index": about.get("index"),
        "form": about["form"],
        "num_samples": opened.num_samples,
        "num_entries": sum(1 for _ in opened.places()),
        "used_bytes": opened.used_bytes(),
    }


def _line(facts: dict[str, Any]) -> str:
    return (
        f"{facts['folder']}: {format_count(facts['num_entries'])} of {format_counted(facts['num_samples'], 'sample')} "
        f"of {facts['index']} ({facts['form']}), {format_bytes(facts['used_bytes'])}"
    )


def _show(found: list[dict[str, Any]], line: Callable[[dict[str, Any]], str], *, folder: Path, as_json: bool) -> None:
    if as_json:
        print_json({"caches": found})
        return
    for each in found:
        print(line(each))
    if not found:
        print(f"{folder}: no caches here. Name the folder given to PartialCache")
