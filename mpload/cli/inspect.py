"""`mpload inspect`: show the facts about an index, check its samples, and draw a contact sheet."""

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from mpload.cli.findings import Findings, write_findings
from mpload.cli.grid import Sheet, read_sheet
from mpload.cli.loading import IndexArgument
from mpload.cli.outputs import check_output, check_picture
from mpload.cli.reports import AsJson, print_json
from mpload.cli.summary import summarise
from mpload.cli.terminal import progress_bar
from mpload.errors import ArgumentError, IndexFormatError
from mpload.images.decoders import ImageDecoder
from mpload.index.copying import copy_of_url
from mpload.index.derived import derived_paths
from mpload.index.index import Index
from mpload.index.opening import open_index
from mpload.index.parts import sidecar_path
from mpload.index.parts_index import PartsIndex
from mpload.index.parts_text import is_part_list
from mpload.index.sidecar import find_sidecar
from mpload.index.text import read_header
from mpload.ingest.checking import check_index, check_lines
from mpload.samples.object_check import check_objects
from mpload.storage.urls import is_url
from mpload.units import printable

__all__ = ["inspect"]


def inspect(
    path: IndexArgument,
    *,
    records: Annotated[int, typer.Option(min=0, help="Number of records to show.")] = 3,
    check: Annotated[
        bool, typer.Option("--check", help="Check every line, file, image and box; exit 1 if any has a problem.")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            help="JSON lines file for the findings of --check.  [default: INDEX.findings.jsonl, in the working folder "
            "if that of INDEX is read-only]"
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Threads that read and decode for --check.")] = 8,
    grid: Annotated[
        Path | None, typer.Option(help="Draw random samples with their labels, masks and boxes, as .png or .html.")
    ] = None,
    tiles: Annotated[int, typer.Option(min=1, max=1000, help="Number of images that --grid draws.")] = 48,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random choice of samples for --grid.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show, check and preview an index."""
    if report is not None and not check:
        raise ArgumentError("--report names the file for the findings of --check. Add --check")
    is_copied = is_url(path)
    lines = copy_of_url(path)[0] if is_copied else Path(path)
    report = report or _default_report(Path(lines.name) if is_copied else lines)
    check_output(report if check else None, source=lines)
    check_picture(grid, suffixes=(".png", ".html"), source=lines)
    findings: Findings | None = None
    try:
        index, is_fresh = _open(path, lines)
    except IndexFormatError:
        if not check or is_part_list(lines):
            raise
        findings = write_findings(check_lines(lines), report)
        if not findings.num_findings:
            raise
        text = f"{path}: only its lines were checked. Correct them first; samples can be checked once the index opens"
        _show({"path": path}, text, findings, as_json=as_json)
    else:
        summary = summarise(index, is_fresh=is_fresh, num_records=records)
        if check:
            with progress_bar("checking", total=len(index)) as update:
                found = check_index(
                    index,
                    decode=ImageDecoder(),
                    check_objects=partial(check_objects, num_classes=len(index.classes)),
                    num_workers=workers,
                    progress=update,
                )
                findings = write_findings(found, report)
        facts, text = summary.to_dict(), str(summary)
        if grid is not None:
            sheet = read_sheet(index, num_tiles=tiles, seed=seed)
            sheet.write(grid)
            text += f"\n{_sheet_text(sheet, grid)}"
            facts["grid"] = {"path": str(grid), "unshown": sheet.unshown}
        _show(facts, text, findings, as_json=as_json)
    if findings is not None and findings.num_findings:
        raise typer.Exit(1)


def _default_report(path: Path) -> Path:
    """Return the report beside the index, or in the working folder if the folder of the index is read-only."""
    beside = Path(f"{path}.findings.jsonl")
    return beside if os.access(beside.parent, os.W_OK) else Path(beside.name)


def _open(path: str, lines: Path) -> tuple[Index, bool]:
    """Open the index, whose text is in the file `lines`, and say whether its sidecar was there and fitted."""
    is_fresh = not is_part_list(lines) and find_sidecar(lines, read_header(lines)) is not None
    paths = derived_paths(lines, suffix=".mpx", folder="sidecars")
    before = {each.stat().st_ino for each in paths if each.exists()}
    with progress_bar("building the sidecar") as tell:
        index = open_index(path, progress=tell)
    if isinstance(index, PartsIndex):
        is_fresh = sidecar_path(index).stat().st_ino in before
    return index, is_fresh


def _show(facts: dict[str, Any], text: str, findings: Findings | None, *, as_json: bool) -> None:
    if as_json:
        if findings is not None:
            facts["num_findings"] = findings.num_findings
            facts["report"] = findings.report
        print_json(facts)
        return
    print(text)
    if findings is not None:
        print(f"\n{findings}")


def _sheet_text(sheet: Sheet, path: Path) -> str:
    """Return the path of the contact sheet, and the names that it cannot show."""
    lines = [f"contact sheet {path}"]
    if path.suffix.lower() != ".html" and sheet.unshown:
        page = path.with_suffix(".html").name
        lines.append(f"Its font cannot draw these names, so it shows their numbers. `--grid {page}` shows all names:")
        lines += [f"{number:>11}  {printable(name)}" for number, name in sheet.unshown.items()]
    return "\n".join(lines)
