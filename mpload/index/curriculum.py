"""`Curriculum`: samples in the order of a column, such as from easy to hard."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.index.index import Index
from mpload.index.sorted_order import CurriculumChoice
from mpload.index.sorted_rows import write_sorted_rows
from mpload.index.table_files import MappedTable
from mpload.index.tables import Numbers, Table, numbers_of
from mpload.plan.order import OrderChoice
from mpload.plan.ranges import check_range

__all__ = ["Curriculum"]

_MAX_WINDOW = 1 << 31


@dataclass(frozen=True, slots=True)
class Curriculum:
    """Samples in the order of a number, such as from easy to hard, shuffled within windows.

    Every epoch visits every sample once. The samples are sorted by their number; those with equal numbers stay in the
    order of the index. With `descending`, all of that is reversed. Then each window of consecutive samples is shuffled,
    differently in each epoch.

    As the order of a `Mixture`, it sorts each source by itself.

    Attributes:
        by: the name of a column of numbers; or the path of a `.npy` file of numbers [N], one for each sample, such as
            the losses of an earlier run.
        window_samples: number of samples in a window, in [1, 2**31). 1 keeps the sorted order.
        descending: whether the largest number comes first.

    Raises:
        ArgumentError: an argument is out of range.

    Memory: constant. The first use on a machine writes the sorted rows to a file beside the index, 8 bytes per sample.
    That takes about 100 MB of memory, and 16 more bytes per sample on the disk while it lasts. Processes map the file,
    and the kernel may drop its pages.
    """

    by: str | os.PathLike[str]
    _: KW_ONLY
    window_samples: int
    descending: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.by, str | os.PathLike):
            raise ArgumentError(
                f"Curriculum needs the name of a column or the path of a .npy file, got {type(self.by).__name__}. "
                'Write an array to a file: numpy.save("losses.npy", losses)'
            )
        check_range("window_samples", self.window_samples, 1, _MAX_WINDOW)

    def bind(self, index: Index) -> OrderChoice:
        """Return the order choice for one index; see `IndexOrder.bind`.

        Raises:
            ArgumentError: there is no such column or file, or a number is NaN.
            SidecarError: the table cannot be written anywhere.
        """
        numbers = numbers_of(index, self.by, what="numbers to sort by")
        made = Table(index=index, name=f"sorted({numbers.name})" if numbers.name else "sorted", stamp=numbers.stamp)

        def write(file: BinaryIO, facts: Mapping[str, Any]) -> None:
            write_sorted_rows(file, _checked(numbers), num_samples=len(index), facts=facts)

        path, facts = made.find_or_make(write)
        table = MappedTable(path=path, num_samples=len(index), digest=str(facts["digest"]))
        direction = ",descending" if self.descending else ""
        return CurriculumChoice(
            spec=f"curriculum({made.spec_of(table.digest)},window_samples={self.window_samples}{direction})",
            shown=repr(self),
            table=table,
            window_samples=self.window_samples,
            descending=self.descending,
        )

    def __repr__(self) -> str:
        direction = ", descending=True" if self.descending else ""
        return f"Curriculum({os.fspath(self.by)!r}, window_samples={self.window_samples}{direction})"


def _checked(numbers: Numbers) -> Iterator[NDArray[Any]]:
    """Yield the numbers as int64, uint64 or float64, which holds each of them; raise `ArgumentError` if one is NaN."""
    done = 0
    for block in numbers.blocks():
        found: NDArray[Any] = block.astype(f"{block.dtype.kind}8")
        if (wrong := np.flatnonzero(np.isnan(found))).size:
            raise ArgumentError(f"{numbers.where(done + int(wrong[0]))}: NaN has no place in an order. Correct it")
        yield found
        done += len(block)
