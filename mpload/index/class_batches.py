"""`PKBatches`: batches of P classes with K samples each."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.index.blocks import Values, blocks_of
from mpload.index.class_order import ClassBatchChoice, ClassTable
from mpload.index.index import Index
from mpload.index.table_files import ENTRY_BYTES, HEAD_BYTES, write_head
from mpload.index.tables import Table
from mpload.index.weighting import check_classes, class_numbers
from mpload.plan.order import OrderChoice
from mpload.plan.ranges import check_range

__all__ = ["PKBatches"]

_MAX_IN_BATCH = 1 << 31


@dataclass(frozen=True, slots=True)
class PKBatches:
    """Batches of P classes with K samples each, for metric learning with triplet or contrastive losses.

    Every batch of every rank consists of `classes_per_batch` different classes, one after another, with
    `samples_per_class` samples each. So `batch_size` must be their product.

    - The classes take turns: each *lap* goes through all classes in a new random order. If their number is not a
      multiple of P, the last ones of a lap are left out, which are other ones in each lap, and so are the samples that
      would have come from them. With R ranks, the batches of a step are R consecutive ones, so they share no class
      within a lap.
    - Each class goes through its samples in a random order of its own, K at a time, and then in a new one. If their
      number is not a multiple of K, the last ones are left out, which are other ones each time. A batch holds no sample
      twice.
    - In a class with fewer than K samples, all of them come as evenly as possible: each one K / n times, rounded up or
      down. They are augmented differently. `min_samples` leaves such classes out.

    An epoch has as many whole batches as the samples of these classes fill. It continues where the one before has
    ended. **So an epoch does not visit every sample once**: samples of small classes come more often than others. All
    other promises hold: batches are the same on any number of ranks and workers, and a run resumes at any batch. With
    `on_error="substitute"`, a bad sample is replaced by one of any class.

    Attributes:
        column: a column of integers or texts. Samples with a negative integer, which marks samples to ignore, are left
            out.
        classes_per_batch: P, at least 1.
        samples_per_class: K, at least 1.
        min_samples: classes with fewer samples are left out.

    Raises:
        ArgumentError: a number is out of range.

    Memory: constant. The first use on a machine writes a table of 8 bytes per sample to a file beside the index.
    Processes map it, and the kernel may drop its pages.
    """

    column: str = "label"
    classes_per_batch: int = 8
    samples_per_class: int = 4
    min_samples: int = 1

    def __post_init__(self) -> None:
        for name in ("classes_per_batch", "samples_per_class", "min_samples"):
            check_range(name, getattr(self, name), 1, _MAX_IN_BATCH)

    def bind(self, index: Index) -> OrderChoice:
        """Return the order choice for one index; see `IndexOrder.bind`.

        Raises:
            ArgumentError: there is no such column, or it has too few classes.
            SidecarError: the table cannot be written anywhere.
        """
        check_classes(index, self.column, what=f"PKBatches({self.column!r})")
        made = Table(index=index, name=f"classes({self.column})")
        path, facts = made.find_or_make(lambda file, known: _write(file, index, self.column, known))
        table = ClassTable(
            path=path, num_samples=len(index), num_classes=int(facts["num_classes"]), digest=str(facts["digest"])
        )
        num_classes = table.num_classes_of(self.min_samples)
        if num_classes < self.classes_per_batch:
            which = f" with at least {self.min_samples} samples" if self.min_samples > 1 else ""
            raise ArgumentError(
                f"{index.path}: column {self.column} has {num_classes} classes{which}, but a batch needs "
                f"classes_per_batch={self.classes_per_batch}. Lower it{', or lower min_samples' if which else ''}"
            )
        batch_size = self.classes_per_batch * self.samples_per_class
        num_batches = max(1, int(table.first_row_of(num_classes)) // batch_size)
        return ClassBatchChoice(
            spec=f"pk({self.column},{self.classes_per_batch},{self.samples_per_class},{self.min_samples})",
            shown=repr(self),
            table=table,
            num_classes=num_classes,
            classes_per_batch=self.classes_per_batch,
            samples_per_class=self.samples_per_class,
            epoch_samples=num_batches * batch_size,
        )


def _write(file: BinaryIO, index: Index, column: str, facts: Mapping[str, Any]) -> None:
    """Write the table of the classes: where the rows of each class begin and the last ones end, and then all rows.

    Memory: a block of the index, and 16 bytes per class. The rows are written through a map of the file.
    """
    values, counts = Values(), np.zeros(0, np.int64)
    for block in blocks_of(index):
        found = np.bincount(class_numbers(block, column, values), minlength=len(values.known))
        found[: len(counts)] += counts
        counts = found
    for value, number in values.known.items():
        if isinstance(value, int) and value < 0:
            counts[number] = 0
    by_size = np.argsort(-counts, kind="stable")
    num_classes = int(np.count_nonzero(counts))
    ends = np.cumsum(counts[by_size])
    starts = np.concatenate([[0], ends[:num_classes]])
    num_entries = len(starts) + int(starts[-1])
    digest = hashlib.blake2b(f"{index.fingerprint} {column}".encode(), digest_size=16).hexdigest()
    write_head(file, {**facts, "num_entries": num_entries, "num_classes": num_classes, "digest": digest})
    _reserve(file, HEAD_BYTES + ENTRY_BYTES * num_entries)
    entries = np.memmap(file, np.int64, mode="r+", offset=HEAD_BYTES)
    entries[: len(starts)] = starts
    next_of = np.full(len(counts), -1)
    next_of[by_size[:num_classes]] = starts[:-1] + len(starts)
    for block in blocks_of(index):
        _place(entries, block.first_id, class_numbers(block, column, values), next_of)
    entries.flush()


def _reserve(file: BinaryIO, num_bytes: int) -> None:
    """Take the space of a file on the disk. If a map has no space to write to, the process is killed."""
    file.truncate(num_bytes)
    file.flush()
    if hasattr(os, "posix_fallocate"):  # not on macOS
        os.posix_fallocate(file.fileno(), 0, num_bytes)


def _place(entries: NDArray[np.int64], first_id: int, classes: NDArray[np.int64], next_of: NDArray[np.int64]) -> None:
    """Write the rows of a block to the places of their classes, the next of which are in `next_of`."""
    in_order = np.argsort(classes, kind="stable")
    in_order = in_order[next_of[classes[in_order]] >= 0]
    if not len(in_order):
        return
    found, firsts, counts = np.unique(classes[in_order], return_index=True, return_counts=True)
    ranks = np.arange(len(in_order)) - np.repeat(firsts, counts)
    entries[np.repeat(next_of[found], counts) + ranks] = in_order + first_id
    next_of[found] += counts
