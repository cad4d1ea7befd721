"""Sources for the tests of mixtures: each sample's file and label say which one it is."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from mpload import Mixture, MPDataset, RawBytes

__all__ = ["mixed", "samples", "source"]


def source(folder: Path, name: str, num_samples: int, *, root: str = "", classes: str = "", columns: str = "") -> Path:
    """Make an index whose files lie below a root of their own, or below `root`, and return its path."""
    files = folder / (root or name)
    files.mkdir(exist_ok=True)
    for number in range(num_samples):
        (files / f"{name}{number}").write_bytes(f"{name}{number:>9}".encode())
    lines = [
        "#mpload 1",
        f"#root {files.name}",
        f"#columns image:path label:int {columns}".rstrip(),
        *([f"#classes {classes}"] if classes else []),
        *(f"{name}{number}\t{number % 2}{chr(9) + name if columns else ''}" for number in range(num_samples)),
    ]
    path = folder / f"{name}.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def mixed(mixture: Mixture, **options: Any) -> MPDataset:
    """Return a dataset that yields batches of a mixture of such sources, as dicts."""
    given = {"decode": RawBytes(), "batch_size": 10, "shuffle": True, "as_dict": True, **options}
    return MPDataset(mixture, **given)


def samples(batches: Iterable[Any]) -> list[tuple[str, int]]:
    """Return the file's content and the label of each sample."""
    return [
        (bytes(np.asarray(image)).decode(), int(label))
        for batch in batches
        for image, label in zip(batch["image"], batch["label"], strict=True)
    ]
