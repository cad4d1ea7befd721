"""The facts about an index, gathered in memory that does not grow with the number of samples."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.index.columns import format_columns
from mpload.index.index import Index, Record, header_of
from mpload.index.parts import file_sizes, sidecar_path
from mpload.index.parts_index import PartsIndex
from mpload.samples.row_index import RowIndex, find_row_index
from mpload.storage.urls import redacted
from mpload.units import format_bytes, format_count, format_counted, printable

__all__ = [
    "LabelCounts",
    "Sizes",
    "Summary",
    "count_labels",
    "measure_sizes",
    "row_index_facts",
    "row_index_text",
    "summarise",
]

_MAX_LABELS = 1 << 22  # 32 MiB of counts
_QUANTILE_SAMPLES = 1 << 20
_QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)
_MAX_SHOWN_LABELS = 12
_BAR_WIDTH = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelCounts:
    """The number of samples of each label."""

    lowest: int
    highest: int
    counts: NDArray[np.int64] | None
    """int64 [highest - lowest + 1]: one count for each label from `lowest` to `highest`, including labels without
    samples. None if the range of labels is too large to count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Statistics of the encoded size of a sample."""

    total_bytes: int
    smallest_bytes: int
    largest_bytes: int
    quantiles_bytes: dict[float, int]
    """Keyed by quantile, from 0 to 1. Beyond 2**20 samples they are taken from every n-th sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The facts about an index: as text for a person by `str()`, and as values for a script by `to_dict()`."""

    index: Index
    sidecar_was_fresh: bool
    """Of an index of parts, that of their list. Whether a sidecar that matches the index already existed."""
    text_bytes: int
    sidecar_bytes: int
    row_index: RowIndex | None
    labels: LabelCounts | None
    sizes: Sizes | None
    records: tuple[Record, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as values that JSON can hold."""
        index, labels, sizes = self.index, self.labels, self.sizes
        return {
            "path": str(index.path),
            "num_samples": len(index),
            "num_parts": index.num_parts if isinstance(index, PartsIndex) else None,
            "columns": format_columns(index.columns),
            "root": redacted(index.root),
            "fingerprint": index.fingerprint,
            "text_bytes": self.text_bytes,
            "sidecar": {
                "path": str(sidecar_path(index)),
                "was_fresh": self.sidecar_was_fresh,
                "num_bytes": self.sidecar_bytes,
            },
            "row_index": None if self.row_index is None else row_index_facts(self.row_index),
            "labels": None
            if labels is None
            else {
                "lowest": labels.lowest,
                "highest": labels.highest,
                "num_samples": None
                if labels.counts is None
                else {str(label): count for label, count in enumerate(labels.counts.tolist(), labels.lowest)},
            },
            "classes": list(index.classes),
            "sizes": None
            if sizes is None
            else {
                "total_bytes": sizes.total_bytes,
                "smallest_bytes": sizes.smallest_bytes,
                "largest_bytes": sizes.largest_bytes,
                "quantiles_bytes": {f"{part:g}": size for part, size in sizes.quantiles_bytes.items()},
            },
            "records": [
                {"sample_id": record.sample_id, "cells": [_plain(cell) for cell in record.cells]}
                for record in self.records
            ],
        }

    def __str__(self) -> str:
        index, num_samples = self.index, len(self.index)
        state = "up to date, reused" if self.sidecar_was_fresh else "built just now"
        lines = [
            f"{index.path}",
            f"samples      {format_count(num_samples)}",
            *([f"parts        {format_count(index.num_parts)}"] if isinstance(index, PartsIndex) else []),
            f"columns      {format_columns(index.columns)}",
            f"root         {redacted(index.root)}",
            f"fingerprint  {index.fingerprint}",
            f"text         {format_bytes(self.text_bytes)}, {self.text_bytes / num_samples:.1f} bytes per sample",
            f"sidecar      {format_bytes(self.sidecar_bytes)}, {self.sidecar_bytes / num_samples:.1f} bytes per sample",
            f"             {state}: {sidecar_path(index)}",
        ]
        if self.row_index is not None:
            lines += [f"row index    {row_index_text(self.row_index)}", f"             {self.row_index.path}"]
        if self.sizes is not None:
            lines += _sizes_text(self.sizes, num_samples)
        if self.labels is not None:
            lines += _labels_text(self.labels, index.classes)
        for number, record in enumerate(self.records):
            cells = "  ".join(str(_plain(cell)) for cell in record.cells)
            lines.append(f"{'' if number else 'records':11}  {record.sample_id}: {cells}")
        return "\n".join(map(printable, lines))


def summarise(index: Index, *, is_fresh: bool, num_records: int) -> Summary:
    """Gather the facts about an index.

    Args:
        index: An open index.
        is_fresh: Whether a sidecar that matches the index already existed.
        num_records: The number of records to show, from the first on.

    Memory: 8 bytes per class, and a few megabytes.
    """
    text_bytes, sidecar_bytes = file_sizes(index)
    return Summary(
        index=index,
        sidecar_was_fresh=is_fresh,
        text_bytes=text_bytes,
        sidecar_bytes=sidecar_bytes,
        row_index=find_row_index(index),
        labels=count_labels(index),
        sizes=measure_sizes(index),
        records=tuple(index[:num_records]),
    )


def row_index_facts(rows: RowIndex) -> dict[str, Any]:
    """Return the facts about a row index as values that JSON can hold."""
    facts = {"num_photos": rows.num_photos, "num_entries": rows.num_entries(), "num_bytes": rows.used_bytes()}
    return {"path": str(rows.path), **facts}


def row_index_text(rows: RowIndex) -> str:
    """Return the facts about a row index as text."""
    num_entries, num_photos = format_count(rows.num_entries()), format_counted(rows.num_photos, "image")
    return f"{format_bytes(rows.used_bytes())}, knows the rows of {num_entries} of {num_photos}"


def count_labels(index: Index) -> LabelCounts | None:
    """Count the samples of each label, in two passes over the column. Return None if the index has no labels.

    Memory: 8 bytes per class, and a megabyte.
    """
    if header_of(index).label_column is None:
        return None
    bounds = [(int(block.min()), int(block.max())) for block in index.labels.blocks()]
    lowest, highest = min(low for low, _ in bounds), max(high for _, high in bounds)
    if index.classes and lowest >= 0:
        lowest, highest = 0, max(highest, len(index.classes) - 1)
    if highest - lowest >= _MAX_LABELS:
        return LabelCounts(lowest=lowest, highest=highest, counts=None)
    counts = np.zeros(highest - lowest + 1, np.int64)
    for block in index.labels.blocks():
        counts += np.bincount(block - lowest, minlength=len(counts))
    return LabelCounts(lowest=lowest, highest=highest, counts=counts)


def measure_sizes(index: Index) -> Sizes | None:
    """Summarise the column of sizes. Return None if the index has none.

    Memory: 16 MiB at most.
    """
    if index.nbytes is None:
        return None
    total, smallest, largest = 0, int(index.nbytes[0]), 0
    sampled = []
    step = -(-len(index) // _QUANTILE_SAMPLES)
    for block in index.nbytes.blocks():
        total += int(block.sum())
        smallest, largest = min(smallest, int(block.min())), max(largest, int(block.max()))
        sampled.append(block[::step].copy())
    quantiles = np.quantile(np.concatenate(sampled), _QUANTILES).round().astype(np.int64).tolist()
    return Sizes(
        total_bytes=total,
        smallest_bytes=smallest,
        largest_bytes=largest,
        quantiles_bytes=dict(zip(_QUANTILES, quantiles, strict=True)),
    )


def _plain(cell: object) -> str | int | float:
    return cell if isinstance(cell, int | float) else str(cell)


def _sizes_text(sizes: Sizes, num_samples: int) -> list[str]:
    quantiles = ", ".join(f"{100 * part:g} % {format_bytes(size)}" for part, size in sizes.quantiles_bytes.items())
    mean_bytes = sizes.total_bytes / num_samples
    bounds = f"from {format_bytes(sizes.smallest_bytes)} to {format_bytes(sizes.largest_bytes)}"
    return [
        f"sizes        {format_bytes(sizes.total_bytes)}, mean {format_bytes(mean_bytes)}, {bounds}",
        f"             quantiles {quantiles}",
    ]


def _labels_text(labels: LabelCounts, classes: tuple[str, ...]) -> list[str]:
    """Return a line about all labels and a bar for each label. Of many labels, show the most and the least frequent."""
    where = f"{labels.lowest} to {labels.highest}"
    if labels.counts is None:
        return [f"labels       {where}: too wide a range for a histogram"]
    counts, num_labels = labels.counts, len(labels.counts)
    num_used = int(np.count_nonzero(counts))
    lines = [f"labels       {where}, {'all' if num_used == num_labels else format_count(num_used)} in use"]
    half = _MAX_SHOWN_LABELS // 2
    by_count = np.argsort(-counts, kind="stable") if num_labels > _MAX_SHOWN_LABELS else None
    for places in (by_count[:half], by_count[-half:]) if by_count is not None else (range(num_labels),):
        if len(lines) > 1:
            lines.append(f"{'':13}...")
        lines += _bars([(_label_text(place + labels.lowest, classes), int(counts[place])) for place in places], counts)
    return lines


def _bars(rows: list[tuple[str, int]], counts: NDArray[np.int64]) -> list[str]:
    most = int(counts.max())
    width = len(format_count(most))
    return [
        f"{'':13}{name:24.24}  {format_count(count):>{width}}  {'#' * -(-_BAR_WIDTH * count // most)}".rstrip()
        for name, count in rows
    ]


def _label_text(label: int, classes: tuple[str, ...]) -> str:
    return f"{label} {classes[label]}" if 0 <= label < len(classes) else str(label)
