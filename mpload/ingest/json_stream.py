"""Reads a JSON file that is larger than memory: the items of the arrays in its topmost object, one by one."""

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Never

from mpload.errors import ArgumentError, StorageError
from mpload.units import MIB, printable

__all__ = ["read_members"]

_READ_BYTES = MIB
_MAX_ITEM_CHARACTERS = 64 * MIB
_BLANKS = " \t\n\r"
_ENDS = frozenset(f"{_BLANKS},:]}}")


def read_members(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the members of the topmost object: the name of an array with each of its items, and of any other value.

    An empty array is yielded as it is.

    Memory: a few MiB, or several times the size of the largest item.

    Raises:
        ArgumentError: the file is not JSON, its topmost value is not an object, or an item exceeds 64 MiB.
        StorageError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            yield from _Reader(path, file).members()
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{printable(str(path))}: cannot be read: {error.strerror or error}") from error


class _Reader:
    """A position in a text. Only a part of the text is in memory."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._text = ""
        self._at = 0
        self._num_past = 0  # characters that were read and dropped
        self._is_complete = False
        self._decode = codecs.getincrementaldecoder("utf-8-sig")()
        self._scan = json.JSONDecoder(parse_constant=self._refuse_constant).raw_decode

    def members(self) -> Iterator[tuple[str, Any]]:
        self._expect("{")
        if self._next() == "}":
            self._expect("}")
        else:
            separator = ","
            while separator == ",":
                if self._next() != '"':
                    self._fail('the name of a member must start with "')
                name = self._value()
                self._expect(":")
                if self._next() == "[":
                    is_empty = True
                    for item in self._items():
                        is_empty = False
                        yield name, item
                    if is_empty:
                        yield name, []
                else:
                    yield name, self._value()
                separator = self._expect(",}")
        if self._next():
            self._fail("something follows the end of the topmost object")

    def _items(self) -> Iterator[Any]:
        self._expect("[")
        if self._next() == "]":
            self._expect("]")
            return
        separator = ","
        while separator == ",":
            yield self._value()
            separator = self._expect(",]")

    def _next(self) -> str:
        """Return the next character that is not blank, without taking it; empty at the end of the file."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _BLANKS:
                    return self._text[self._at]
                self._at += 1
            if self._is_complete:
                return ""
            self._read_more()

    def _expect(self, characters: str) -> str:
        """Take the next character that is not blank, which must be one of `characters`."""
        if (found := self._next()) not in characters or not found:
            self._fail(f"expected {' or '.join(characters)}, found {found or 'the end of the file'!r}")
        self._at += 1
        return found

    def _value(self) -> Any:
        self._next()
        while True:
            try:
                value, end = self._scan(self._text, self._at)
            except RecursionError:
                self._fail("a value is nested too deeply")
            except ArgumentError:
                raise
            except ValueError as error:
                if self._is_complete:
                    self._fail(getattr(error, "msg", str(error)))
            else:
                # Otherwise this is the start of a number, such as the 1 of 1.5.
                if self._text[end : end + 1] in _ENDS or self._is_complete:
                    self._at = end
                    return value
            if len(self._text) - self._at > _MAX_ITEM_CHARACTERS:
                self._fail(f"a value is damaged, or longer than {_MAX_ITEM_CHARACTERS} characters")
            self._read_more()

    def _read_more(self) -> None:
        rest = self._text[self._at :]
        self._num_past += self._at
        data = self._file.read(max(_READ_BYTES, len(rest)))
        self._is_complete = not data
        self._at = 0
        try:
            self._text = rest + self._decode.decode(data, final=self._is_complete)
        except UnicodeDecodeError as error:
            self._fail(f"it is not UTF-8: {error.reason}")

    def _refuse_constant(self, name: str) -> Never:
        self._fail(f"{name} is not a number of JSON")

    def _fail(self, cause: str) -> Never:
        raise ArgumentError(
            f"{printable(str(self._path))}: is not valid JSON after character {self._num_past + self._at}: {cause}. "
            "Is it a complete copy?"
        )
