"""Decoders of text: plain text and JSON, from a file or from a cell of the index."""

import codecs
import json
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from mpload.errors import ArgumentError, DecodeError

__all__ = ["Json", "Text"]

_MAX_LEVELS = 256  # passing a value to another process takes recursion, and Python's limit counts the caller's frames


@dataclass(frozen=True, slots=True)
class Text:
    """Read text. A batch has a list of `str`.

    Attributes:
        encoding: The encoding of files, in any notation of Python. A byte order mark at the beginning of UTF-8 is left
            out. Cells are text already.

    Raises:
        ArgumentError: Python has no such encoding.
    """

    _: KW_ONLY
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        try:
            text = b"".decode(self.encoding)
        except (LookupError, TypeError) as error:
            raise ArgumentError(
                f"encoding must be a text encoding of Python, such as 'utf-8', got {self.encoding!r}"
            ) from error
        assert isinstance(text, str)

    def __call__(self, data: bytes | str) -> str:
        """Return the text.

        Args:
            data: The bytes of a file, or the text of a cell.

        Raises:
            DecodeError: The bytes are not text in this encoding.
        """
        if isinstance(data, str):
            return data
        try:
            text = bytes(data).decode(self.encoding)
        except UnicodeError as error:
            raise DecodeError(f"not text in {self.encoding}: {error}") from error
        return text.removeprefix("\ufeff") if codecs.lookup(self.encoding).name == "utf-8" else text


@dataclass(frozen=True, slots=True)
class Json:
    """Parse JSON. A batch has a list of the parsed values, which may all have different forms.

    Numbers and texts stay Python's. To stack them in a batch, take them out with a transform, or with a decoder of
    your own, such as `lambda data: json.loads(data)["score"]`.
    """

    is_whole: ClassVar[bool] = True

    def __call__(self, data: bytes | str) -> Any:
        """Return the parsed value.

        Args:
            data: The bytes of a file, or the text of a cell.

        Raises:
            DecodeError: It is not JSON, or nested more than 256 levels deep.
        """
        try:
            parsed = json.loads(data)
        except (ValueError, RecursionError) as error:  # ValueError: of Unicode too
            raise DecodeError(f"not JSON: {error}") from error
        num_opened = data.count("[") + data.count("{") if isinstance(data, str) else data.count(b"[") + data.count(b"{")
        if num_opened > _MAX_LEVELS:
            _check_levels(parsed)
        return parsed


def _check_levels(parsed: Any) -> None:
    """Raise `DecodeError` if lists and dicts are nested too deeply."""
    level = [parsed]
    for _ in range(_MAX_LEVELS):
        values = (inner for each in level for inner in (each.values() if isinstance(each, dict) else each))
        level = [value for value in values if isinstance(value, list | dict)]
        if not level:
            return
    raise DecodeError(f"the JSON is nested more than {_MAX_LEVELS} levels deep")
