"""Orders with replacement that depend on the index: `Balanced` by a column, and `Weighted` by numbers.

Their tables are files beside the sidecar, or in the user's cache folder if that is read-only. One process of a machine
makes a table, and all others map it.
"""

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError, SidecarError
from mpload.index.blocks import Block, Values, blocks_of
from mpload.index.columns import ColumnType, format_columns
from mpload.index.derived import derived_paths, machine_lock
from mpload.index.draws import BLOCK_ROWS, DrawChoice, DrawTable, facts_of, write_table
from mpload.index.index import Index, is_shortened
from mpload.plan.order import OrderChoice

__all__ = ["Balanced", "IndexOrder", "Weighted"]

_VERSION = 1
_LOCK_SECONDS = 3600.0
_MAX_WEIGHT = 1e290  # the sum of 10^18 of them is finite
_NUMBERS = frozenset({ColumnType.INT, ColumnType.FLOAT})


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
    are the same on any number of ranks and workers, and a run resumes at any position. A sample that is drawn twice in
    an epoch is augmented in the same way both times.

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
        kind = _kind_of(index, self.column, what=f"Balanced({self.column!r})")
        if kind is ColumnType.FLOAT:
            raise ArgumentError(f"Balanced({self.column!r}): a column of floats has no classes. Use one of int or str")
        return _Table(index=index, name=f"balanced({self.column})", stamp={}).choice(
            lambda: _balanced(index, self.column), shown=repr(self)
        )


@dataclass(frozen=True, slots=True)
class Weighted:
    """Draws samples in proportion to their weights, as torch's `WeightedRandomSampler` with replacement.

    Each position of an epoch is an independent draw with replacement. An epoch has as many positions as the index has
    samples. **So an epoch does not visit every sample once**: samples with large weights come many times, and others
    may not come at all. All other promises hold: batches are the same on any number of ranks and workers, and a run
    resumes at any position. A sample that is drawn twice in an epoch is augmented in the same way both times.

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
        text = os.fspath(self.weights)
        if text.endswith(".npy"):
            return self._of_file(Path(text).expanduser().absolute(), index)
        if _kind_of(index, text, what=f"Weighted({text!r})") not in _NUMBERS:
            raise ArgumentError(f"Weighted({text!r}): the column holds no numbers. Use one of type int or float")
        return _Table(index=index, name=f"weighted({text})", stamp={}).choice(
            lambda: _checked(_column(index, text), index.where), shown=repr(self)
        )

    def _of_file(self, path: Path, index: Index) -> OrderChoice:
        try:
            array: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
            status = path.stat()
        except (OSError, ValueError, EOFError) as error:
            raise ArgumentError(f"{path}: the weights cannot be read: {error}. Write them by numpy.save") from error
        if is_shortened(index) and array.ndim == 1:
            array = array[: len(index)]  # the other weights are those of lines that were appended
        if array.shape != (len(index),) or array.dtype.kind not in "fiu":
            raise ArgumentError(
                f"{path}: the weights are {array.dtype}{list(array.shape)}, but {index.path} needs numbers "
                f"[{len(index)}], one for each sample"
            )
        stamp = {"path": str(path), "num_bytes": status.st_size, "mtime_ns": status.st_mtime_ns}
        return _Table(index=index, name="weighted", stamp=stamp).choice(
            lambda: _checked(_blocks(array), lambda sample_id: f"{path}: sample {sample_id}"), shown=repr(self)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """The table of one index and its weights, which is found or made."""

    index: Index
    name: str
    stamp: Mapping[str, Any]
    """What shows that a file of weights is unchanged; empty for columns, which the index's fingerprint covers."""

    def choice(self, weights: Callable[[], Iterator[NDArray[np.float64]]], *, shown: str) -> OrderChoice:
        """Return the order of draws by these weights."""
        if (table := self._find()) is None:
            name = self._paths()[1].stem
            busy = f"{self.index.path}: another process has made its weights for {_LOCK_SECONDS:.0f} s. Try later"
            with machine_lock(name, limit_seconds=_LOCK_SECONDS, busy=SidecarError(busy)):
                table = self._find() or self._make(weights)
        return DrawChoice(spec=f"{self.name}#{table.digest}" if self.stamp else self.name, table=table, shown=shown)

    def _paths(self) -> list[Path]:
        words = f"{self.name} {self.stamp.get('path')}"
        if is_shortened(self.index):  # the table of the whole index may be in use
            words += f" {self.index.fingerprint}"
        code = hashlib.blake2b(words.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()
        return derived_paths(self.index.path, suffix=f".{code}.mpw", folder="draws")

    def _find(self) -> DrawTable | None:
        for path in self._paths():
            with suppress(OSError, ValueError):
                facts = facts_of(path, num_samples=len(self.index))
                digest = str(facts.pop("digest", None))
                if facts == self._identity():
                    return DrawTable(path=path, num_samples=len(self.index), digest=digest)
        return None

    def _identity(self) -> dict[str, Any]:
        stamp = {key: ascii(value) if isinstance(value, str) else value for key, value in self.stamp.items()}
        return {"version": _VERSION, "fingerprint": self.index.fingerprint, "name": self.name, **stamp}

    def _make(self, weights: Callable[[], Iterator[NDArray[np.float64]]]) -> DrawTable:
        failures: list[OSError] = []
        for path in self._paths():
            unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with unfinished.open("xb") as file:
                    digest = write_table(file, weights(), num_samples=len(self.index), facts=self._identity())
                    file.flush()
                    os.fsync(file.fileno())  # before it gets its name: after a power failure it would hold zeros
                unfinished.replace(path)
            except OSError as error:
                failures.append(error)
            else:
                return DrawTable(path=path, num_samples=len(self.index), digest=digest)
            finally:
                unfinished.unlink(missing_ok=True)
        raise SidecarError(
            f"{self.index.path}: the table of weights cannot be written anywhere ({'; '.join(map(str, failures))}). It "
            "takes 8 bytes per sample. Free some space, or set XDG_CACHE_HOME to a writable folder"
        )


def _kind_of(index: Index, name: str, *, what: str) -> ColumnType:
    for column in index.columns:
        if column.name == name:
            return column.type
    raise ArgumentError(f"{what}: {index.path} has no such column. Its columns are {format_columns(index.columns)}")


def _balanced(index: Index, column: str) -> Iterator[NDArray[np.float64]]:
    values = Values()
    counts = np.zeros(0, np.int64)
    for block in blocks_of(index):
        found = np.bincount(_numbers_of(block, column, values), minlength=len(values.known))
        found[: len(counts)] += counts
        counts = found
    weights = 1 / np.maximum(counts, 1)
    for value, number in values.known.items():
        if isinstance(value, int) and value < 0:
            weights[number] = 0
    yield from _regrouped(weights[_numbers_of(block, column, values)] for block in blocks_of(index))


def _numbers_of(block: Block, column: str, values: Values) -> NDArray[np.int64]:
    return values.numbers(block, column, np.ones(len(block), np.bool_))


def _blocks(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    return (array[start : start + BLOCK_ROWS] for start in range(0, len(array), BLOCK_ROWS))


def _column(index: Index, name: str) -> Iterator[NDArray[Any]]:
    return _regrouped(block.numbers(name) for block in blocks_of(index))


def _checked(blocks: Iterator[NDArray[Any]], where: Callable[[int], str]) -> Iterator[NDArray[np.float64]]:
    """Yield weights as float64; raise `ArgumentError` if one is negative, too large or not a number."""
    done = 0
    for block in blocks:
        weights = block.astype(np.float64)
        wrong = np.flatnonzero(~((weights >= 0) & (weights <= _MAX_WEIGHT)))
        if len(wrong):
            place = int(wrong[0])
            raise ArgumentError(
                f"{where(done + place)}: has weight {weights[place]}, but weights are in [0, {_MAX_WEIGHT:g}]. Correct "
                "it"
            )
        yield weights
        done += len(weights)


def _regrouped(blocks: Iterator[NDArray[Any]]) -> Iterator[NDArray[Any]]:
    """Yield the rows in arrays of exactly `BLOCK_ROWS`; the last may be shorter."""
    kept: NDArray[Any] | None = None
    for block in blocks:
        rows = block if kept is None else np.concatenate([kept, block])
        end = len(rows) // BLOCK_ROWS * BLOCK_ROWS
        for start in range(0, end, BLOCK_ROWS):
            yield rows[start : start + BLOCK_ROWS]
        kept = rows[end:]
    if kept is not None and len(kept):
        yield kept
