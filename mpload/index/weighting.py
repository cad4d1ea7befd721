"""Orders with replacement that depend on the index: `Balanced` by a column, and `Weighted` by numbers."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.index.blocks import Block, Values, blocks_of
from mpload.index.columns import ColumnType
from mpload.index.draws import DrawChoice, DrawTable, write_table
from mpload.index.index import Index
from mpload.index.tables import Numbers, Table, kind_of, numbers_of, regrouped
from mpload.plan.order import OrderChoice

__all__ = ["Balanced", "IndexOrder", "Weighted", "check_classes", "class_numbers"]

_MAX_WEIGHT = 1e290  # the sum of 10^18 of them is finite


@runtime_checkable
class IndexOrder(Protocol):
    """A choice that users pass as `shuffle=`, and that becomes an `OrderChoice` when the index is known."""

    def bind(self, index: Index) -> OrderChoice:
        """Return the order choice for `index`, after preparing what it needs."""


@dataclass(frozen=True, slots=True)
class Balanced:
    """Draws every value of a column equally often, for classes of very different sizes.

    Each position of an epoch is an independent draw with replacement: first a value, then one of its samples, all
    equally likely. An epoch has as many positions as the index has samples. **So an epoch does not visit every sample
    once**: samples of rare values come many times, and others may not come at all. All other promises hold: batches
    are the same on any number of ranks and workers, and a run resumes at any position. A sample that is drawn again is
    augmented differently.

    As the order of a `Mixture`, it draws the samples of each source by that source's own column.

    Attributes:
        column: a column of integers or texts. Samples with a negative integer, which marks samples to ignore, are not
            drawn.

    Memory: constant. The first use on a machine writes a table of 8 bytes per sample to a file beside the index, which
    takes two passes over the column. Processes map it, and the kernel may drop its pages.
    """

    column: str = "label"

    def bind(self, index: Index) -> OrderChoice:
        """Return the order choice for one index; see `IndexOrder.bind`.

        Raises:
            ArgumentError: there is no such column, or all its values are negative.
            SidecarError: the table cannot be written anywhere.
        """
        check_classes(index, self.column, what=f"Balanced({self.column!r})")
        table = Table(index=index, name=f"balanced({self.column})")
        return _draws(table, lambda: _balanced(index, self.column), shown=repr(self))


@dataclass(frozen=True, slots=True)
class Weighted:
    """Draws samples in proportion to their weights, as torch's `WeightedRandomSampler` with replacement.

    Each position of an epoch is an independent draw with replacement. An epoch has as many positions as the index has
    samples. **So an epoch does not visit every sample once**: samples with large weights come many times, and others
    may not come at all. All other promises hold: batches are the same on any number of ranks and workers, and a run
    resumes at any position. A sample that is drawn again is augmented differently.

    As the order of a `Mixture`, it draws the samples of each source by that source's own column.

    Attributes:
        weights: the name of a column of numbers; or the path of a `.npy` file of numbers [N], one for each sample.
            Weights are in [0, 1e290]. They need not sum to 1.

    Raises:
        ArgumentError: `weights` is neither a name nor a path.

    Memory: constant. The first use on a machine writes a table of 8 bytes per sample to a file beside the index.
    Processes map it, and the kernel may drop its pages.
    """

    weights: str | os.PathLike[str]

    def __post_init__(self) -> None:
        if not isinstance(self.weights, str | os.PathLike):
            raise ArgumentError(
                f"Weighted needs the name of a column or the path of a .npy file, got {type(self.weights).__name__}. "
                'Write an array to a file: numpy.save("weights.npy", weights)'
            )

    def bind(self, index: Index) -> OrderChoice:
        """Return the order choice for one index; see `IndexOrder.bind`.

        Raises:
            ArgumentError: there is no such column or file, or a weight is out of range, or all are 0.
            SidecarError: the table cannot be written anywhere.
        """
        numbers = numbers_of(index, self.weights, what="weights")
        name = f"weighted({numbers.name})" if numbers.name else "weighted"
        table = Table(index=index, name=name, stamp=numbers.stamp)
        return _draws(table, lambda: _checked(numbers), shown=repr(self))


def check_classes(index: Index, column: str, *, what: str) -> None:
    """Raise `ArgumentError` unless an index has this column, and its type has values that can be classes."""
    if kind_of(index, column, what=what) is ColumnType.FLOAT:
        raise ArgumentError(f"{what}: a column of floats has no classes. Use one of int or str")


def class_numbers(block: Block, column: str, values: Values) -> NDArray[np.int64]:
    """Return the number of each sample's class, int64 [n]. Classes are numbered by `values`."""
    return values.numbers(block, column, np.ones(len(block), np.bool_))


def _draws(table: Table, weights: Callable[[], Iterator[NDArray[np.float64]]], *, shown: str) -> DrawChoice:
    """Return the order of draws by these weights."""
    num_samples = len(table.index)

    def write(file: BinaryIO, facts: Mapping[str, Any]) -> None:
        write_table(file, weights(), num_samples=num_samples, facts=facts, what=f"{table.index.path}: {shown}")

    path, facts = table.find_or_make(write)
    digest = str(facts["digest"])
    made = DrawTable(path=path, num_samples=num_samples, digest=digest)
    return DrawChoice(spec=table.spec_of(digest), table=made, shown=shown)


def _balanced(index: Index, column: str) -> Iterator[NDArray[np.float64]]:
    values = Values()
    counts = np.zeros(0, np.int64)
    for block in blocks_of(index):
        found = np.bincount(class_numbers(block, column, values), minlength=len(values.known))
        found[: len(counts)] += counts
        counts = found
    weights = 1 / np.maximum(counts, 1)
    for value, number in values.known.items():
        if isinstance(value, int) and value < 0:
            weights[number] = 0
    if not weights.any():
        raise ArgumentError(
            f"{index.path}: all values of column {column} are negative, so that no sample can be drawn. Name another "
            "column"
        )
    yield from regrouped(weights[class_numbers(block, column, values)] for block in blocks_of(index))


def _checked(numbers: Numbers) -> Iterator[NDArray[np.float64]]:
    """Yield weights as float64; raise `ArgumentError` if one is negative, too large or not a number."""
    done = 0
    for block in numbers.blocks():
        weights = block.astype(np.float64)
        wrong = np.flatnonzero(~((weights >= 0) & (weights <= _MAX_WEIGHT)))
        if len(wrong):
            place = int(wrong[0])
            raise ArgumentError(
                f"{numbers.where(done + place)}: has weight {weights[place]}, but weights are in [0, {_MAX_WEIGHT:g}]. "
                "Correct it"
            )
        yield weights
        done += len(weights)
