"""One pass over an index text that collects the offset and label of each line, and a digest of all lines.

NumPy scans the text in blocks of lines. If a block contains anything that this fast scan cannot handle, such as a
quote, a long number or a broken line, the whole block goes through `line_parser` instead, which either parses it or
reports the fault. So the fast scan may give up, but it never interprets a line differently from the parser.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mpload.errors import IndexFormatError
from mpload.index.columns import ColumnType
from mpload.index.text import MAX_LINE_BYTES, Dialect, Header, check_label, line_parser
from mpload.units import MIB

__all__ = ["Scan", "ScanBlock"]

_BLOCK_BYTES = MIB  # fits in the second-level cache during the passes below
_TAB, _NEWLINE, _CR, _BLANK, _MINUS, _COMMA, _ZERO = b"\t\n\r -,0"
_MAX_FAST_DIGITS = 18  # every number with this many digits fits in int64
_MAX_ROW_GROUP_DIGITS = 9
_MAX_FLOAT_BYTES = 32  # Python writes at most 24
_EXACT_DIGITS = 15  # a float holds every integer of so many digits
_DIGITS = 2  # the state of the automaton of floats after digits alone


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanBlock:
    """Consecutive samples: the `offsets` of their lines, uint64 [n], and their `labels`, int64 [n] or None."""

    offsets: NDArray[np.uint64]
    labels: NDArray[np.int64] | None


@dataclass(slots=True, kw_only=True)
class Scan:
    """A pass over the text at `path`. Iterate over its blocks, then read the digest and the number of samples.

    Memory: constant, a few megabytes.
    """

    path: Path
    header: Header
    num_samples: int = field(default=0, init=False)
    num_bytes: int = field(default=0, init=False)
    """Number of bytes of the text read so far, including the directives."""
    _hash: hashlib.blake2b = field(default_factory=lambda: hashlib.blake2b(digest_size=32), init=False)
    _blank_line: int | None = field(default=None, init=False)
    """Line number of the first blank line. Only blank lines may follow it."""

    @property
    def digest(self) -> str:
        """BLAKE2b hash of all lines read so far, excluding the directives."""
        return self._hash.hexdigest()

    def __iter__(self) -> Iterator[ScanBlock]:
        """Yield the blocks.

        Raises:
            IndexFormatError: a line breaks the format. The message names the first such line.
        """
        buffer = bytearray(_BLOCK_BYTES + MAX_LINE_BYTES + 1)
        view = memoryview(buffer)
        kept = 0  # bytes of an incomplete line at the start of the buffer
        position = self.header.body_bytes
        with self.path.open("rb", buffering=0) as file:
            file.seek(position)
            self.num_bytes = position
            while count := file.readinto(view[kept : kept + _BLOCK_BYTES]):
                self._hash.update(view[kept : kept + count])
                self.num_bytes += count
                filled = kept + count
                end = buffer.rfind(b"\n", 0, filled) + 1
                if filled - end > MAX_LINE_BYTES:
                    raise self._error(self._line_number(buffer.count(b"\n", 0, end)), _TOO_LONG)
                if end:
                    yield from self._block(buffer, end, position)
                    position += end
                    kept = filled - end
                    buffer[:kept] = buffer[end:filled]
                else:
                    kept = filled
        if kept:
            buffer[kept] = _NEWLINE
            yield from self._block(buffer, kept + 1, position)
        if not self.num_samples:
            raise IndexFormatError(f"{self.path}: holds no samples. Make an index: mpload index FOLDER -o train.txt")

    def _block(self, buffer: bytearray, end: int, position: int) -> Iterator[ScanBlock]:
        """Scan the complete lines in `buffer[:end]`, which start at offset `position` of the text."""
        block = None
        if self._blank_line is None and buffer.find(b"\0", 0, end) < 0:
            block = _scan_fast(np.frombuffer(buffer, np.uint8, end), self.header, buffer)
        starts, labels = block or self._scan_slowly(bytes(buffer[:end]))
        if len(starts):
            self.num_samples += len(starts)
            yield ScanBlock(offsets=starts.astype(np.uint64) + np.uint64(position), labels=labels)

    def _scan_slowly(self, block: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
        starts: list[int] = []
        labels: list[int] = []
        label_column = self.header.label_column
        parse = line_parser(self.header)
        start = 0
        for number, line in enumerate(block[:-1].split(b"\n")):
            if self.header.dialect is not Dialect.NATIVE and not line.strip():
                self._blank_line = self._blank_line or self._line_number(number)
            elif self._blank_line is not None:
                raise self._error(self._blank_line, "is blank, but samples follow it. Delete the blank line")
            else:
                if len(line) > MAX_LINE_BYTES:
                    raise self._error(self._line_number(number), _TOO_LONG)
                try:
                    cells = parse(line)
                    check_label(self.header, cells)
                except ValueError as error:
                    raise self._error(self._line_number(number), str(error)) from error
                starts.append(start)
                if label_column is not None:
                    label = cells[label_column]
                    assert isinstance(label, int)
                    labels.append(label)
            start += len(line) + 1
        return np.array(starts, np.int64), None if label_column is None else np.array(labels, np.int64)

    def _line_number(self, number_in_block: int) -> int:
        return self.header.num_lines + self.num_samples + number_in_block + 1

    def _error(self, line_number: int, cause: str) -> IndexFormatError:
        return IndexFormatError(f"{self.path}:{line_number}: {cause}")


_TOO_LONG = f"is longer than {MAX_LINE_BYTES} bytes, the limit for a line. Is this file an index?"
_Scanned = tuple[NDArray[np.int64], NDArray[np.int64] | None] | None


def _scan_fast(text: NDArray[np.uint8], header: Header, buffer: bytearray) -> _Scanned:
    """Return the start and label of each line in `text`, or None if the block must be parsed line by line."""
    if header.dialect is Dialect.BLANKS:
        return _scan_blanks(text, header)
    separator = _COMMA if header.dialect is Dialect.COMMA else _TAB
    if separator == _COMMA and buffer.find(b'"', 0, len(text)) >= 0:
        return None
    if header.dialect is Dialect.NATIVE and buffer.find(b"\\", 0, len(text)) >= 0:
        return None
    num_columns = len(header.columns)
    separators = np.flatnonzero((text == _NEWLINE) | (text == separator))
    if separators.size % num_columns:
        return None
    ends = separators.reshape(-1, num_columns)
    if (text[ends[:, -1]] != _NEWLINE).any() or (text[ends[:, :-1]] == _NEWLINE).any():
        return None  # a line has too few or too many cells
    starts = _line_starts(ends[:, -1])
    returns = _carriage_returns(text, starts, ends[:, -1])
    if returns is not None:
        if header.dialect is Dialect.NATIVE:
            return None
        ends[:, -1] -= returns
    if (ends[:, -1] - starts).max() > MAX_LINE_BYTES:
        return None
    if header.dialect is not Dialect.NATIVE and (text[starts] <= _BLANK).any():
        return None  # perhaps a blank line
    labels = None
    for number, column in enumerate(header.columns):
        first = starts if number == 0 else ends[:, number - 1] + 1
        end = ends[:, number]
        match column.type:
            case ColumnType.PATH:
                is_valid = bool((first < end).all())
                if header.dialect is Dialect.COMMA:  # blanks around a cell are ignored
                    is_valid = is_valid and _have_non_blanks(text, first, end)
            case ColumnType.SPAN:
                is_valid = _are_spans(text, first, end)
            case ColumnType.INT:
                values = _parse_integers(text, first, end, exact=header.is_exact(column))
                is_valid = values is not None
                if number == header.label_column:
                    labels = values
            case ColumnType.FLOAT:
                is_valid = _are_floats(text, first, end, exact=header.is_exact(column))
            case ColumnType.LMDB:
                is_valid = _are_lmdb_values(text, first, end)
            case ColumnType.ROW:
                is_valid = _are_rows(text, first, end)
            case ColumnType.STR:
                is_valid = num_columns > 1 or bool((first < end).all())
        if not is_valid:
            return None
    if labels is not None and header.classes and labels.max() >= len(header.classes):
        return None
    return starts, labels


def _scan_blanks(text: NDArray[np.uint8], header: Header) -> _Scanned:
    ends = np.flatnonzero(text == _NEWLINE)
    starts = _line_starts(ends)
    returns = _carriage_returns(text, starts, ends)
    if returns is not None:
        ends = ends - returns
    if (starts >= ends).any() or (ends - starts).max() > MAX_LINE_BYTES:
        return None
    if (text[starts] <= _BLANK).any() or (text[ends - 1] <= _BLANK).any():
        return None
    if len(header.columns) == 1:
        return starts, None
    if header.label_column is None:
        return None  # a label that is a text
    blanks = np.flatnonzero((text == _BLANK) | (text == _TAB))
    last = np.searchsorted(blanks, ends) - 1
    if not blanks.size or (blanks[last] <= starts).any() or (last < 0).any():
        return None
    labels = _parse_integers(text, blanks[last] + 1, ends)
    return None if labels is None else (starts, labels)


def _line_starts(line_ends: NDArray[np.int64]) -> NDArray[np.int64]:
    starts = np.empty_like(line_ends)
    starts[0] = 0
    starts[1:] = line_ends[:-1] + 1
    return starts


def _carriage_returns(
    text: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.bool_] | None:
    """Return a mask of the lines that end with a carriage return, or None if no line does."""
    returns = (text[ends - 1] == _CR) & (ends > starts)
    return returns if returns.any() else None


def _parse_integers(
    text: NDArray[np.uint8],
    first: NDArray[np.int64],
    end: NDArray[np.int64],
    *,
    signed: bool = True,
    exact: bool = False,
) -> NDArray[np.int64] | None:
    """Return the integers in the cells `text[first:end]`, or None if a cell is not an integer or is too long.

    With `exact`, None too if a cell has leading zeros.
    """
    negative = text[first] == _MINUS if signed else np.zeros(len(first), np.bool_)
    first = first + negative
    lengths = end - first
    if lengths.min() < 1 or lengths.max() > _MAX_FAST_DIGITS:
        return None
    if exact and ((text[first] == _ZERO) & (lengths > 1)).any():
        return None
    values = np.zeros(len(first), np.int64)
    for place in range(int(lengths.max())):
        digits = text[np.maximum(end - 1 - place, first)] - np.uint8(ord("0"))
        if (digits > 9).any():
            return None
        values += np.where(lengths > place, digits, 0) * np.int64(10**place)
    return np.where(negative, -values, values)


def _have_non_blanks(text: NDArray[np.uint8], first: NDArray[np.int64], end: NDArray[np.int64]) -> bool:
    """Whether every cell contains a character other than a blank."""
    blank = text[first] <= _BLANK
    if not blank.any():
        return True
    others = np.append(np.flatnonzero(text > _BLANK), text.size)
    return bool((others[np.searchsorted(others, first[blank])] < end[blank]).all())


def _are_spans(text: NDArray[np.uint8], first: NDArray[np.int64], end: NDArray[np.int64]) -> bool:
    """Whether every cell `text[first:end]` is a span, written OFFSET+LENGTH@PATH."""
    plus = _next(text, b"+", first)
    at = _next(text, b"@", first)
    return bool(
        ((plus < at) & (at + 1 < end)).all()
        and _parse_integers(text, first, plus, signed=False) is not None
        and _parse_integers(text, plus + 1, at, signed=False) is not None
    )


def _are_lmdb_values(text: NDArray[np.uint8], first: NDArray[np.int64], end: NDArray[np.int64]) -> bool:
    """Whether every cell is KEY@PATH in a block of pure ASCII. Only the parser can check a key for valid UTF-8."""
    at = _next(text, b"@", first)
    return bool(((first < at) & (at + 1 < end)).all() and text.max() < 0x80)


def _are_rows(text: NDArray[np.uint8], first: NDArray[np.int64], end: NDArray[np.int64]) -> bool:
    """Whether every cell is ROWGROUP:ROW:COLUMN@PATH."""
    colon = _next(text, b":", first)
    second = _next(text, b":", np.minimum(colon + 1, end))
    at = _next(text, b"@", first)
    return bool(
        ((colon < second) & (second + 1 < at) & (at + 1 < end) & (colon - first <= _MAX_ROW_GROUP_DIGITS)).all()
        and _parse_integers(text, first, colon, signed=False) is not None
        and _parse_integers(text, colon + 1, second, signed=False) is not None
    )


def _next(text: NDArray[np.uint8], byte: bytes, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the position of the next `byte` at or after each of `positions`, or the size of `text` if none."""
    found = np.append(np.flatnonzero(text == ord(byte)), text.size)
    return found[np.searchsorted(found, positions)]


def _are_floats(
    text: NDArray[np.uint8], first: NDArray[np.int64], end: NDArray[np.int64], *, exact: bool = False
) -> bool:
    """Whether every cell is a short decimal number. A finite automaton runs over all cells at once.

    With `exact`, no cell may be an integer that is so long that a float might round it.
    """
    lengths = end - first
    if lengths.min() < 1 or lengths.max() > _MAX_FLOAT_BYTES:
        return False
    states = np.zeros(len(first), np.uint8)
    for place in range(int(lengths.max())):
        next_states = _FLOATS[states, text[np.minimum(first + place, end)]]
        states = np.where(lengths > place, next_states, states)
    if exact and ((states == _DIGITS) & (lengths > _EXACT_DIGITS)).any():
        return False
    return bool(_IS_FLOAT[states].all())


def _float_automaton() -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    r"""Return an automaton that accepts decimal numbers: its transition table [states, 256] and its accepting states.

    It accepts `[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?`.
    """
    start, sign, digits, dot, fraction, exponent, exponent_sign, exponent_digits, broken = range(9)
    table = np.full((9, 256), broken, np.uint8)
    transitions = [
        (start, b"+-", sign), (start, b"0123456789", digits), (start, b".", dot),
        (sign, b"0123456789", digits), (sign, b".", dot),
        (digits, b"0123456789", digits), (digits, b".", fraction), (digits, b"eE", exponent),
        (dot, b"0123456789", fraction),
        (fraction, b"0123456789", fraction), (fraction, b"eE", exponent),
        (exponent, b"+-", exponent_sign), (exponent, b"0123456789", exponent_digits),
        (exponent_sign, b"0123456789", exponent_digits),
        (exponent_digits, b"0123456789", exponent_digits),
    ]  # fmt: skip
    for state, characters, next_state in transitions:
        table[state, list(characters)] = next_state
    return table, np.isin(np.arange(9), (digits, fraction, exponent_digits))


_FLOATS, _IS_FLOAT = _float_automaton()
