"""`Buckets`: groups of samples that are alike, such as images of similar aspect ratio, or texts of similar length.

The rows of each bucket are in a file beside the sidecar, or in the user's cache folder if that is read-only. One
process of a machine makes it, and all others map it.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.index.blocks import blocks_of
from mpload.index.bucket_table import BucketChoice, BucketTable, facts_of, write_table
from mpload.index.columns import ColumnType, format_columns
from mpload.index.derived import found_or_made
from mpload.index.edges import MAX_BUCKETS, aspect_shapes, is_number, least_padding_edges
from mpload.index.index import Index
from mpload.plan.bucket_plan import BucketSizes
from mpload.plan.ranges import MAX_NUM_SAMPLES, check_range

__all__ = ["BoundBuckets", "Buckets"]

_VERSION = 1
_ASPECT: Final = "aspect"
_WIDTH, _HEIGHT, _NUM_BYTES = "width", "height", "nbytes"
_NUM_BUCKETS = 64
_MAX_SAMPLED = 1 << 20
_NUMBERS = frozenset({ColumnType.INT, ColumnType.FLOAT})


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundBuckets:
    """The buckets of one index."""

    sizes: BucketSizes
    table: BucketTable
    spec: str
    """The choice as a stable text that checkpoints store."""
    shapes: tuple[tuple[int, int], ...] | None
    """Height and width of the images of each bucket; None if they are not resized."""
    shown: str

    def order(self, *, is_shuffled: bool) -> BucketChoice:
        """Return the order in which each bucket goes through its samples."""
        order = "shuffle" if is_shuffled else "sequential"
        shown = f"{order} within {self.shown}"
        return BucketChoice(spec=f"{order},{self.spec}", table=self.table, is_shuffled=is_shuffled, shown=shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """Makes batches of samples that are alike: images of a similar aspect ratio, or texts of a similar length.

    All ranks meet the same bucket in the same step. Every sample comes once per epoch, and each bucket is shuffled as a
    whole. At the end of an epoch, each bucket has one batch of the samples that do not fill one; `tail` says what
    happens to it. So with `tail="drop"`, a bucket of fewer samples than a global batch is left out.

    Attributes:
        by: a column of integers or floats, or `"nbytes"` for measured sizes. Or `"aspect"`: images are then decoded to
            the shape of their bucket, and the index needs the columns `width` and `height`, which
            `mpload index --image-sizes` adds.
        edges: the largest value of each bucket but the last, which has no limit. In ascending order.
        num_buckets: without `edges`, the number of buckets, up to 256; 64 by default. Their edges are chosen so that
            padding each sample to the largest of its bucket adds least. If there are few different values, there are
            fewer buckets.
        shapes: for `"aspect"`: height and width of the images of each bucket. An image goes to the bucket whose aspect
            ratio is nearest, on a logarithmic scale.
        area: for `"aspect"`, instead of `shapes`: all shapes whose sides are multiples of `step`, as large as `area`
            pixels allow, with a ratio of the sides of up to `max_ratio`. There may be up to 256.
        step: see `area`.
        max_ratio: see `area`.
        batch_size: number of samples in a batch of one rank; a list has one for each bucket. None takes that of the
            dataset.
        max_cost: chooses the batch size of each bucket: so many samples that their number times the largest value in
            the bucket (with `"aspect"`, the pixels of its shape) is at most this. A batch has at least one sample.

    Raises:
        ArgumentError: the arguments contradict each other, or a number is out of range.

    Memory: constant. The first use on a machine writes a table of 4 bytes per sample (8 for more than 2**32 samples) to
    a file beside the index, which takes two or three passes over the column. Processes map it, and the kernel may drop
    its pages.
    """

    by: str
    edges: Sequence[float] | None = None
    num_buckets: int | None = None
    shapes: Sequence[tuple[int, int]] | None = None
    area: int | None = None
    step: int = 64
    max_ratio: float = 2.0
    batch_size: int | Sequence[int] | None = None
    max_cost: float | None = None

    def __post_init__(self) -> None:
        for name in ("edges", "shapes", "batch_size"):  # NumPy's arrays and numbers too
            if isinstance(value := getattr(self, name), np.ndarray | np.generic):
                object.__setattr__(self, name, value.tolist())
        of_numbers, of_aspect = (self.edges, self.num_buckets), (self.shapes, self.area)
        if self.by == _ASPECT:
            if of_numbers != (None, None) or sum(each is not None for each in of_aspect) != 1:
                raise ArgumentError(
                    f'Buckets(by="{_ASPECT}") needs either shapes=[(height, width), ...] or area=, and neither edges= '
                    "nor num_buckets="
                )
        elif of_aspect != (None, None) or None not in of_numbers:
            raise ArgumentError(
                f'Buckets(by={self.by!r}) takes edges= or num_buckets=; shapes= and area= are for by="{_ASPECT}"'
            )
        if self.num_buckets is not None:
            check_range("num_buckets", self.num_buckets, 1, MAX_BUCKETS + 1)
        if self.edges is not None and not _ascend(self.edges):
            raise ArgumentError(f"edges must be 1 to {MAX_BUCKETS - 1} ascending numbers, got {self.edges!r:.200}")
        if self.batch_size is not None and self.max_cost is not None:
            raise ArgumentError("Buckets takes batch_size= or max_cost=, not both")
        if self.max_cost is not None and not (is_number(self.max_cost) and 0 < self.max_cost < MAX_NUM_SAMPLES):
            raise ArgumentError(f"max_cost must be a positive number, got {self.max_cost!r}")
        self._shapes()

    def _bind(self, index: Index, *, batch_size: int | None) -> BoundBuckets:
        """Return the buckets of one index, after preparing the table that they need.

        Args:
            index: the index.
            batch_size: the batch size of the dataset.

        Raises:
            ArgumentError: there is no such column, a value is no number, or there is no batch size.
            SidecarError: the table cannot be written anywhere.
        """
        if batch_size is not None and not (self.batch_size is None and self.max_cost is None):
            raise ArgumentError("give batch_size to the dataset, or batch_size or max_cost to its Buckets, not to both")
        if batch_size is None and self.batch_size is None and self.max_cost is None:
            raise ArgumentError(
                "Buckets makes whole batches: pass batch_size= to the dataset, or batch_size= or max_cost= to Buckets"
            )
        if not len(index):
            raise ArgumentError(f"{index.path}: has no samples, so it has no buckets")
        shapes = self._shapes()
        self._check_columns(index)
        table = self._table(index, shapes)
        batch_sizes = self._batch_sizes(table, shapes, batch_size)
        sizes = BucketSizes(counts=table.counts, batch_sizes=batch_sizes)
        parts = [self.by, table.facts["limits"], shapes, table.counts, sizes.relative]
        digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()
        shown = f"{len(sizes.counts)} buckets by {self.by}"
        spec = f"buckets(by={json.dumps(self.by)[:100]},{digest})"
        return BoundBuckets(sizes=sizes, table=table, spec=spec, shapes=shapes, shown=shown)

    def _shapes(self) -> tuple[tuple[int, int], ...] | None:
        if self.by != _ASPECT:
            return None
        if self.shapes is None:
            return aspect_shapes(area=self.area or 0, step=self.step, max_ratio=self.max_ratio)
        try:
            shapes = tuple((int(height), int(width)) for height, width in self.shapes)
        except (TypeError, ValueError, OverflowError) as error:
            raise ArgumentError(f"shapes must be pairs of height and width, got {self.shapes!r:.200}") from error
        ratios = {width / height if height > 0 else 0 for height, width in shapes}
        if not 0 < len(shapes) <= MAX_BUCKETS or len(ratios) < len(shapes) or min(map(min, shapes)) < 1:
            raise ArgumentError(
                f"shapes must be 1 to {MAX_BUCKETS} pairs of positive numbers with different ratios, got "
                f"{self.shapes!r:.200}"
            )
        return shapes

    def _check_columns(self, index: Index) -> None:
        kinds = {column.name: column.type for column in index.columns}
        if self.by == _ASPECT:
            if not {kinds.get(_WIDTH), kinds.get(_HEIGHT)} == {ColumnType.INT}:
                raise ArgumentError(
                    f'Buckets(by="{_ASPECT}"): {index.path} has no columns {_WIDTH}:int and {_HEIGHT}:int. Its columns '
                    f"are {format_columns(index.columns)}. Add them: mpload index SOURCE --image-sizes"
                )
        elif self.by == _NUM_BYTES and self.by not in kinds:
            if index.nbytes is None:
                raise ArgumentError(
                    f'Buckets(by="{_NUM_BYTES}"): the sizes of {index.path} are unknown. Measure them: '
                    "mpload index SOURCE --stat"
                )
        elif kinds.get(self.by) not in _NUMBERS:
            raise ArgumentError(
                f"Buckets(by={self.by!r}): {index.path} has no such column of type int or float. Its columns are "
                f"{format_columns(index.columns)}"
            )

    def _batch_sizes(
        self, table: BucketTable, shapes: tuple[tuple[int, int], ...] | None, batch_size: int | None
    ) -> tuple[int, ...]:
        num_buckets = len(table.counts)
        if self.max_cost is None:
            chosen = self.batch_size if batch_size is None else batch_size
            if not isinstance(chosen, Sequence):
                check_range("batch_size", chosen, 1, MAX_NUM_SAMPLES)
                return (int(chosen or 1),) * num_buckets
            if len(chosen) != num_buckets:
                raise ArgumentError(f"batch_size has {len(chosen)} numbers, but there are {num_buckets} buckets")
            return tuple(chosen)
        costs = [height * width for height, width in shapes] if shapes is not None else table.largest
        if min((cost for cost, count in zip(costs, table.counts, strict=True) if count), default=1) <= 0:
            raise ArgumentError(f"Buckets(by={self.by!r}): max_cost needs values above 0 in every bucket")
        return tuple(max(1, int(self.max_cost // cost)) if cost else 1 for cost in costs)

    def _table(self, index: Index, shapes: tuple[tuple[int, int], ...] | None) -> BucketTable:
        wanted = {
            "version": _VERSION,
            "fingerprint": index.fingerprint,
            "by": self.by,
            "edges": None if self.edges is None else [float(edge) for edge in self.edges],
            "num_buckets": self.num_buckets,
            "shapes": None if shapes is None else [list(shape) for shape in shapes],
        }
        identity = json.loads(json.dumps(wanted))

        def find(path: Path) -> BucketTable | None:
            facts = facts_of(path, num_samples=len(index))
            is_same = all(facts.get(name) == value for name, value in identity.items())
            return BucketTable(path=path, num_samples=len(index), facts=facts) if is_same else None

        def write(file: Any) -> None:
            limits = self._limits(index, shapes)
            write_table(
                file,
                lambda: self._numbered(index, limits, shapes),
                num_samples=len(index),
                num_buckets=len(limits) + 1,
                facts={**identity, "limits": limits},
            )

        code = hashlib.blake2b(json.dumps([self.by, wanted["edges"], wanted["num_buckets"], shapes]).encode())
        return found_or_made(
            index.path,
            suffix=f".{code.hexdigest()[:12]}.mpb",
            folder="buckets",
            find=find,
            write=write,
            what="the table of buckets",
            size="4 or 8 bytes per sample",
        )

    def _limits(self, index: Index, shapes: tuple[tuple[int, int], ...] | None) -> list[float]:
        """Return the largest value of each bucket but the last; of shapes, squares of ratios in ascending order."""
        if shapes is not None:
            ratios = sorted((width / height, height, width) for height, width in shapes)
            pairs = pairwise(ratios)
            return [(first[2] * second[2]) / (first[1] * second[1]) for first, second in pairs]
        if self.edges is not None:
            return [float(edge) for edge in self.edges]
        step = -(-len(index) // _MAX_SAMPLED)
        found, done, largest = [], 0, -np.inf
        for values in self._values(index):
            found.append(np.asarray(values[-done % step :: step], np.float64))
            largest = max(largest, float(values.max()))
            done += len(values)
        sampled = np.sort(np.append(np.concatenate(found), largest))
        return least_padding_edges(sampled, self.num_buckets or _NUM_BUCKETS)

    def _numbered(
        self, index: Index, limits: list[float], shapes: tuple[tuple[int, int], ...] | None
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        """Yield the bucket of each sample and its value, block by block."""
        if shapes is None:
            numbers = np.arange(len(limits) + 1)
        else:
            numbers = np.argsort([width / height for height, width in shapes], kind="stable")
        for values in self._values(index):
            yield numbers[np.searchsorted(limits, values, side="left")], values

    def _values(self, index: Index) -> Iterator[NDArray[Any]]:
        """Yield the values by which samples are divided, block by block; of images, the squares of their ratios."""
        for block in blocks_of(index):
            if self.by == _ASPECT:
                values: NDArray[Any]
                widths, heights = (block.numbers(name).astype(np.float64) for name in (_WIDTH, _HEIGHT))
                wrong, values = ~((widths > 0) & (heights > 0)), widths * widths / np.maximum(heights * heights, 1)
                rule = 'width and height must be positive. Leave such images out: mpload select --where "width > 0"'
            else:
                values = block.numbers(self.by)
                wrong, rule = ~np.isfinite(values), f"column {self.by} must be a finite number"
            if wrong.any():
                raise ArgumentError(f"{index.where(block.first_id + int(np.flatnonzero(wrong)[0]))}: {rule}")
            yield values


def _ascend(edges: Any) -> bool:
    is_list = isinstance(edges, Sequence) and 0 < len(edges) < MAX_BUCKETS and all(map(is_number, edges))
    return is_list and all(first < second for first, second in pairwise(edges))
