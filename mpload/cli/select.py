"""`mpload select`: write an index of some of the samples of another."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from mpload.cli.loading import IndexArgument, opened
from mpload.cli.reports import AsJson, print_json
from mpload.cli.terminal import progress_bar
from mpload.errors import ArgumentError
from mpload.index.index import Index, header_of
from mpload.index.parts_index import PartsIndex
from mpload.plan.parts import Fold, Share
from mpload.units import format_count, format_counted

__all__ = ["select"]


def select(
    path: IndexArgument,
    *,
    out: Annotated[str, typer.Option("-o", "--out", help="The index to write.")],
    where: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITION",
            help="A condition on the columns: \"label == 3 and width >= 256\", \"label in ['cat', 'dog']\", "
            "\"'night' in image\". nbytes is the size of a sample, if --stat measured it.",
        ),
    ] = None,
    share: Annotated[float | None, typer.Option(help="A random share: 0.1 is a tenth.")] = None,
    folds: Annotated[int | None, typer.Option(min=2, help="Number of folds. --fold selects one of them.")] = None,
    fold: Annotated[int | None, typer.Option(min=0, help="The fold, counted from 0.")] = None,
    rest: Annotated[bool, typer.Option("--rest", help="Select all folds but this one.")] = False,
    stratify: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Take the share or fold of each value of this column.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of --share and --folds.")] = 0,
    keys: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="One text per line. A sample is selected if its cell is one of them."),
    ] = None,
    key_column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column of --keys.  [default: the first one]")
    ] = None,
    lines: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Line numbers of the index, one per line, as grep -n and errors show them."),
    ] = None,
    relative: Annotated[
        bool, typer.Option("--relative", help="Store the root relative to the index, so that both can be moved.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write an index of some samples of another index.

    Choose them by a condition, a share, folds or a list. All conditions must hold; a share or fold is then taken of
    the samples that fulfil them. The order, the root, the columns and the classes stay the same.
    """
    part = _part(share=share, folds=folds, fold=fold, rest=rest, stratify=stratify, seed=seed)
    if key_column is not None and keys is None:
        raise ArgumentError("--key-column names the column of --keys. Add --keys FILE")
    index = opened(path)
    with progress_bar("selecting", total=len(index)) as update:
        selected = index.select(
            out,
            where=where,
            keys=None if keys is None else _keys(keys),
            key_column=key_column,
            sample_ids=None if lines is None else _sample_ids(lines, index),
            part=part,
            relative=relative,
            progress=update,
        )
    if as_json:
        print_json({"path": selected.path, "num_samples": len(selected), "of": len(index), "root": selected.root})
    else:
        print(f"{selected.path}: {format_counted(len(selected), 'sample')} of {format_count(len(index))}")


def _part(
    *, share: float | None, folds: int | None, fold: int | None, rest: bool, stratify: str | None, seed: int
) -> Share | Fold | None:
    if (folds is None) != (fold is None):
        raise ArgumentError("--folds and --fold go together: --folds 5 --fold 0 selects the first of five folds")
    if share is not None and folds is not None:
        raise ArgumentError("--share and --folds exclude each other. Select twice, the second time from the result")
    if share is None and folds is None and stratify is not None:
        raise ArgumentError("--stratify is for --share and --folds. Add one of them")
    if rest and folds is None:
        raise ArgumentError("--rest is for --folds. Add --folds 5 --fold 0")
    if share is not None:
        return Share(share, seed=seed, stratify=stratify)
    if folds is not None and fold is not None:
        return Fold(fold, of=folds, rest=rest, seed=seed, stratify=stratify)
    return None


def _keys(path: Path) -> list[str]:
    lines = path.read_bytes().decode("utf-8", "surrogateescape").split("\n")
    return [line.removesuffix("\r") for line in lines if line.strip()]


def _sample_ids(path: Path, index: Index) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Return the samples at the line numbers that a file lists."""
    if isinstance(index, PartsIndex):
        raise ArgumentError(
            f"{index.path}: lists parts, which have lines of their own. Pass --lines of one part, or merge the parts "
            f"first: mpload merge {index.path} -o ALL.txt"
        )
    first = header_of(index).num_lines + 1
    stop = first + len(index)
    numbers = path.read_text(encoding="utf-8", errors="replace").split()
    for number in numbers:
        if not (number.isascii() and number.isdigit() and len(number) < 19 and first <= int(number) < stop):
            raise ArgumentError(
                f"{path}: {number[:80]!r} is not the number of a sample's line in {index.path}, which are {first} to "
                f"{stop - 1}. grep -n shows them"
            )
    return np.array(numbers, np.int64) - first
