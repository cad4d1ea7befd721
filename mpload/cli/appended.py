"""Says what `mpload index --append` has found and done."""

from collections.abc import Sequence
from dataclasses import asdict

from mpload.cli.reports import print_json
from mpload.cli.summary import row_index_facts, row_index_text
from mpload.ingest.appending import Appended
from mpload.ingest.class_folders import names_of_some
from mpload.samples.row_index import RowIndex
from mpload.units import format_counted, format_seconds

__all__ = ["print_appended"]


def print_appended(found: Appended, rows: Sequence[RowIndex], *, seconds: float, as_json: bool) -> None:
    """Print it for people, or as JSON."""
    if as_json:
        facts = asdict(found) | {"seconds": round(seconds, 3)}
        for noted in rows:
            facts["row_index"] = row_index_facts(noted)
        print_json(facts)
        return
    total = format_counted(found.num_samples, "sample")
    if found.num_new:
        classes = ""
        if found.new_classes:
            classes = f" and {format_counted(len(found.new_classes), 'class')} ({names_of_some(found.new_classes)})"
        new = format_counted(found.num_new, "sample")
        print(f"{found.path}: appended {new}{classes}, now {total}, in {format_seconds(seconds)}")
    else:
        print(f"{found.path}: nothing new, {total}, in {format_seconds(seconds)}")
    if found.num_gone:
        print(
            f"kept: {format_counted(found.num_gone, 'line')} whose files the source no longer has, such as {found.gone}"
        )
    if found.num_changed:
        changed = format_counted(found.num_changed, "sample")
        print(f"left as they are: {changed} with other values in the source, such as {found.changed}")
    for noted in rows:
        print(f"{noted.path}: {row_index_text(noted)}")
