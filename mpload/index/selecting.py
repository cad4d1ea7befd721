"""Writes selected lines of an index to a new index: the work of `Index.select`.

One pass over the index counts how many samples there are to choose from, if a share or a fold is wanted. A second one
copies the lines. Neither holds more than a block of lines.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpload.errors import ArgumentError, IndexFormatError
from mpload.index.blocks import Block, Values, blocks_of
from mpload.index.columns import ColumnType, format_columns, path_of
from mpload.index.index import Index, header_of, sidecar_of
from mpload.index.lookup import SidecarFile, check_sample_ids
from mpload.index.opening import is_outside, open_index
from mpload.index.parts import parts_of
from mpload.index.publishing import check_local, check_out, declared_root, new_file
from mpload.index.sidecar import Progress, rewrite_sidecar
from mpload.index.text import Dialect, Header, format_header, format_line, line_parser
from mpload.index.where import Condition, parse_condition
from mpload.plan.order import round_keys
from mpload.plan.parts import Fold, Share
from mpload.plan.permutation import Permutation
from mpload.storage.urls import is_url
from mpload.units import format_counted, printable

__all__ = ["Choice", "choice_of", "write_selection"]

_SIZE_BYTES = 8


@dataclass(slots=True, kw_only=True)
class _Keys:
    """Texts. A sample is selected if its cell of a column is one of them."""

    column: str
    wanted: frozenset[bytes]
    missing: set[bytes]

    def mask(self, block: Block) -> NDArray[np.bool_]:
        texts = block.texts(self.column).to_pylist()
        self.missing.difference_update(texts)
        return np.fromiter(map(self.wanted.__contains__, texts), np.bool_, len(texts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which samples are selected. All conditions must hold, and then the part is taken of what is left."""

    condition: Condition | None
    keys: _Keys | None
    sample_ids: NDArray[np.int64] | None
    """Sorted and unique."""
    part: Share | Fold | None

    @property
    def has_conditions(self) -> bool:
        """Whether anything but the part limits which samples are selected."""
        return self.condition is not None or self.keys is not None or self.sample_ids is not None

    def mask(self, block: Block) -> NDArray[np.bool_]:
        """Return whether each sample of a block fulfils all conditions, bool [n]."""
        found = np.ones(len(block), np.bool_)
        if self.sample_ids is not None:
            low, high = np.searchsorted(self.sample_ids, [block.first_id, block.first_id + len(block)])
            found[:] = False
            found[self.sample_ids[low:high] - block.first_id] = True
        if self.condition is not None and found.any():
            found &= self.condition(block)
        if self.keys is not None:
            found &= self.keys.mask(block)
        return found


def choice_of(
    index: Index,
    *,
    where: str | None,
    keys: Iterable[str | PurePath] | None,
    key_column: str | None,
    sample_ids: ArrayLike | None,
    part: Share | Fold | None,
) -> Choice:
    """Return the choice that the arguments of `Index.select` describe."""
    chosen_ids = None
    if sample_ids is not None:
        chosen_ids = _unique_ids(sample_ids)
        check_sample_ids(chosen_ids, len(index))
    if not isinstance(part, Share | Fold | None):
        raise ArgumentError(
            f"part must be a Share or a Fold, got {part!r:.80} of type {type(part).__name__}. "
            "Write part=Share(0.1) for a tenth"
        )
    if part is not None and part.stratify is not None:
        _check_column(index, part.stratify, what="stratify", is_allowed=lambda kind: kind is not ColumnType.FLOAT)
    return Choice(
        condition=None if where is None else parse_condition(where, index),
        keys=None if keys is None else _keys(index, keys, key_column),
        sample_ids=chosen_ids,
        part=part,
    )


def _unique_ids(sample_ids: ArrayLike) -> NDArray[np.int64]:
    given = np.asarray(sample_ids)
    if given.size and given.dtype.kind not in "iu":
        raise ArgumentError(
            f"sample_ids must be integers, got {given.dtype}{list(given.shape)}. Write np.flatnonzero(mask) for a mask"
        )
    return np.unique(given.astype(np.int64))


def _keys(index: Index, keys: Iterable[str | PurePath], column: str | None) -> _Keys:
    column = column or index.columns[0].name
    _check_column(index, column, what="key_column", is_allowed=lambda kind: kind not in _NUMBERS)
    if isinstance(keys, str):
        raise ArgumentError(f"keys must be a list of texts, got the text {keys!r:.80}. Write keys=[{keys!r:.80}]")
    wanted = frozenset(map(_key_bytes, keys))
    return _Keys(column=column, wanted=wanted, missing=set(wanted))


def _key_bytes(key: object) -> bytes:
    if not isinstance(key, str | PurePath):
        raise ArgumentError(
            f"keys must be texts or paths, got {key!r:.80} of type {type(key).__name__}. Write them as in the index"
        )
    return str(key).encode("utf-8", "surrogateescape")


_NUMBERS = frozenset({ColumnType.INT, ColumnType.FLOAT})


def _check_column(index: Index, name: str, *, what: str, is_allowed: Callable[[ColumnType], bool]) -> None:
    kinds = {column.name: column.type for column in index.columns}
    if name not in kinds or not is_allowed(kinds[name]):
        names = ", ".join(each for each, kind in kinds.items() if is_allowed(kind)) or "none"
        finding = f"its type is {kinds[name]}" if name in kinds else "there is no such column"
        raise ArgumentError(
            f"{what}={name!r}: {finding} in {index.path}, which has {format_columns(index.columns)}. "
            f"Possible columns: {names}"
        )


def write_selection(
    index: Index, out: str | os.PathLike[str], choice: Choice, *, relative: bool, progress: Progress | None
) -> Index:
    """Write the chosen lines of an index to `out`, with their sizes if they were measured, and open the new index."""
    check_local(out)
    target = Path(os.path.normpath(Path(out).expanduser().absolute()))
    check_out(target, [index.path, *(part.path for _, part in parts_of(index))])
    strata = _Strata.of(index, choice) if choice.part is not None else None
    header = header_of(index)
    is_relative = relative or (header.root is not None and not is_url(header.root) and not header.root.startswith("/"))
    with tempfile.TemporaryFile(dir=target.parent) as sizes:
        with new_file(target) as file:
            head = format_header(
                columns=header.columns,
                root=declared_root(index.root, target, relative=is_relative),
                classes=header.classes,
            )
            file.write(head)
            writer = _Writer(index=index, file=file, sizes=sizes)
            for block in blocks_of(index):
                mask = choice.mask(block)
                writer.write(block, mask if strata is None else strata.chosen(block, mask))
                if progress is not None:
                    progress(block.first_id + len(block))
            _check_found(index, choice, writer.num_lines)
        is_native = header.dialect is Dialect.NATIVE
        selected = open_index(target, allow_outside_root=index.allow_outside_root if is_native else None)
        if index.nbytes is None:
            return selected
        _add_sizes(selected, sizes)
    return open_index(target, allow_outside_root=selected.allow_outside_root)


def _check_found(index: Index, choice: Choice, num_lines: int) -> None:
    if choice.keys is not None and choice.keys.missing:
        key = printable(min(choice.keys.missing).decode("utf-8", "surrogateescape"))
        raise ArgumentError(
            f"{format_counted(len(choice.keys.missing), 'key')} of {len(choice.keys.wanted)} not found in column "
            f"{choice.keys.column} of {index.path}, such as {key!r}. Write keys as they are in the index: "
            f"mpload inspect {index.path}"
        )
    if not num_lines:
        raise ArgumentError(
            f"none of the {format_counted(len(index), 'sample')} of {index.path} is selected. Relax the conditions"
        )


@dataclass(slots=True, kw_only=True)
class _Writer:
    """Writes lines, and the sizes of their samples."""

    index: Index
    file: BinaryIO
    sizes: BinaryIO
    num_lines: int = 0

    def write(self, block: Block, mask: NDArray[np.bool_]) -> None:
        count = int(np.count_nonzero(mask))
        if not count:
            return
        header = header_of(self.index)
        if header.dialect is Dialect.NATIVE:
            data = _copied(block, mask)
            if not self.num_lines and data.startswith(b"#"):  # which is a directive at the top only
                data = b"\\" + data
        else:
            data = b"".join(self._converted(block, mask, header))
        self.file.write(data)
        self.num_lines += count
        if self.index.nbytes is not None:
            self.sizes.write(block.sizes()[mask].tobytes())

    def _converted(self, block: Block, mask: NDArray[np.bool_], header: Header) -> Iterator[bytes]:
        """Yield the lines of a plain list as lines of an index."""
        parse, data, bounds = line_parser(header), block.lines.data, block.lines.bounds
        sources = [number for number, column in enumerate(header.columns) if column.type.is_source]
        for place in np.flatnonzero(mask).tolist():
            cells = parse(data[bounds[place, 0] : bounds[place, 1]])
            for number in sources:
                if is_outside(path := path_of(cells[number]), self.index.root):
                    raise IndexFormatError(
                        f"{self.index.where(block.first_id + place)}: {printable(path)} leads outside the root "
                        f"{self.index.root}. Index the list with another root first: mpload index {self.index.path} "
                        "--root / -o NEW.txt"
                    )
            yield format_line(cells)


def _copied(block: Block, mask: NDArray[np.bool_]) -> bytes:
    """Return the lines for which `mask` is true, each with its newline."""
    data = block.lines.data
    starts = block.starts - block.starts[0]
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))  # where runs of chosen lines begin and end
    view, cuts = memoryview(data), starts[edges].tolist()
    copied = b"".join([view[start:end] for start, end in zip(cuts[::2], cuts[1::2], strict=True)])
    return copied if copied.endswith(b"\n") else copied + b"\n"  # the text's last line may lack it


@dataclass(slots=True, kw_only=True)
class _Strata:
    """The strata of a part: the values of a column, or all samples as one."""

    part: Share | Fold
    values: Values = field(default_factory=Values)
    sizes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    seen: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """How many samples of each stratum came before."""
    places: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """The place of each stratum in a random order. In it, the part rounds its share of one stratum after another: in
    any order that is the same for all seeds, small strata would be rounded alike for all of them."""

    @classmethod
    def of(cls, index: Index, choice: Choice) -> "_Strata":
        """Count the samples that fulfil the conditions, by stratum."""
        assert choice.part is not None
        strata = cls(part=choice.part)
        if choice.part.stratify is None and not choice.has_conditions:
            strata.sizes = np.array([len(index)])
        else:
            for block in blocks_of(index):
                found = strata._strata_of(block, choice.mask(block))
                sizes = np.bincount(found, minlength=max(1, len(strata.values.known)))
                sizes[: len(strata.sizes)] += strata.sizes
                strata.sizes = sizes
        shuffle = Permutation(len(strata.sizes), round_keys("strata", choice.part.seed, 0))
        strata.places = shuffle(np.arange(len(strata.sizes), dtype=np.uint64)).view(np.int64)
        sizes = np.empty_like(strata.sizes)
        sizes[strata.places] = strata.sizes
        strata.sizes, strata.seen = sizes, np.zeros_like(sizes)
        return strata

    def chosen(self, block: Block, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return whether each sample of a block is chosen: those of `mask` that the part holds."""
        strata = self.places[self._strata_of(block, mask)]
        order = np.argsort(strata, kind="stable") if len(self.sizes) > 1 else np.arange(len(strata))
        counts = np.bincount(strata, minlength=len(self.sizes))
        ranks = np.empty_like(strata)
        ranks[order] = np.arange(len(strata)) - np.repeat(np.cumsum(counts) - counts, counts)
        ranks += self.seen[strata]
        self.seen += counts
        chosen = mask.copy()
        chosen[mask] = self.part.holds(self.sizes, strata, ranks)
        return chosen

    def _strata_of(self, block: Block, mask: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the stratum of each sample of a block for which `mask` is true."""
        if (column := self.part.stratify) is None:
            return np.zeros(np.count_nonzero(mask), np.int64)
        return self.values.numbers(block, column, mask)


def _add_sizes(index: Index, sizes: BinaryIO) -> None:
    """Rewrite the sidecar of a new index with the sizes of its samples, which `sizes` holds one after another."""
    columns = SidecarFile(sidecar_of(index)).columns

    def rows() -> Iterator[dict[str, NDArray[np.generic]]]:
        sizes.seek(0)
        for blocks in zip(*(column.blocks() for column in columns.values()), strict=True):
            known = dict(zip(columns, blocks, strict=True))
            count = len(known["offset"])
            yield known | {"nbytes": np.frombuffer(sizes.read(count * _SIZE_BYTES), np.int64)}

    rewrite_sidecar(index.path, header_of(index), rows, num_samples=len(index), digest=sidecar_of(index).digest)
