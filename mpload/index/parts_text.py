r"""A list of parts: a text that names the indexes that one index consists of.

```
#mpload 1
#parts
part-0.txt<TAB>1000000<TAB>8c35...
part-1.txt<TAB>1000000<TAB>0f17...
```

Each line has the path of a part, relative to the folder of the list, or its URL; then, unless they are left out, the
number of its samples and the digest of its lines. Cells are escaped as in an index.
"""

import hashlib
import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from mpload.errors import ArgumentError, IndexFormatError
from mpload.index.columns import parse_columns
from mpload.index.open_file import open_text
from mpload.index.text import FORMAT_VERSION, Header, format_line, parse_line
from mpload.storage.urls import check_url, is_url, redacted

__all__ = ["ListedPart", "PartList", "format_parts", "is_part_list", "read_parts"]

_HEAD = re.compile(rb"(?:\xef\xbb\xbf)?#mpload ([^\n]*)\n#parts *(?:\n|\Z)")
_MAX_HEAD_BYTES = 256
_NUM_HEAD_LINES = 2
_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPart:
    """One line of a list of parts."""

    name: str
    """The path or URL, as it is written in the list."""
    num_samples: int | None = None
    """None if the list does not say."""
    digest: str | None = None
    """Digest of the lines of these samples; None if the list does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartList:
    """A list of parts."""

    source: str
    """Its absolute path or URL. Parts are relative to it."""
    digest: str
    """Digest of the text."""
    parts: tuple[ListedPart, ...]

    def where(self, number: int) -> str:
        """Return the file and line number that list a part, and its name, for messages."""
        return f"{redacted(self.source)}:{number + _NUM_HEAD_LINES + 1}: part {redacted(self.parts[number].name)}"

    def source_of(self, number: int) -> str:
        """Return the absolute path or the URL of a part."""
        name = self.parts[number].name
        if is_url(name):
            check_url(name)
            return name
        if not is_url(self.source) or name.startswith("/"):
            return str(Path(self.source).parent / name)
        scheme, _, place = self.source.rpartition("/")[0].partition("://")
        server, _, folder = place.partition("/")
        below = quote(name) if scheme.startswith("http") else name
        return f"{scheme}://{server}{posixpath.normpath(posixpath.join('/', folder, below))}"


def is_part_list(path: Path) -> bool:
    """Return whether a text lists the parts of an index.

    Raises:
        IndexNotFoundError: there is no file at `path`.
        IndexFormatError: it is not a regular file.
        StorageError: the file cannot be opened.
    """
    with open_text(path) as file:
        return _HEAD.match(file.read(_MAX_HEAD_BYTES)) is not None


def read_parts(path: Path, *, source: str) -> PartList:
    """Read a list of parts.

    Raises:
        IndexFormatError: a line breaks the format, or there is none.
    """
    with open_text(path) as file:
        text = file.read()
    head = _HEAD.match(text)
    assert head is not None, "the caller has checked it"
    if head[1].strip() != str(FORMAT_VERSION).encode():
        raise IndexFormatError(
            f"{redacted(source)}: index format {head[1].decode('utf-8', 'replace')!r} is not {FORMAT_VERSION}, "
            "the one that this mpload reads. Update mpload"
        )
    lines = text[head.end() :].removesuffix(b"\n").split(b"\n")
    parts = []
    for number, line in enumerate(lines, _NUM_HEAD_LINES + 1):
        try:
            parts.append(_parsed(line))
        except ValueError as error:
            raise IndexFormatError(f"{redacted(source)}:{number}: {error}") from error
    return PartList(source=source, digest=hashlib.blake2b(text, digest_size=32).hexdigest(), parts=tuple(parts))


def format_parts(parts: Iterable[ListedPart]) -> bytes:
    """Return the text of a list of parts."""
    head = f"#mpload {FORMAT_VERSION}\n#parts\n".encode()
    return head + b"".join(format_line([part.name, str(part.num_samples), str(part.digest)]) for part in parts)


_PLAIN = Header(columns=parse_columns("part:path"))
_COUNTED = Header(columns=parse_columns("part:path samples:int digest:str"))


def _parsed(line: bytes) -> ListedPart:
    if not line:
        raise ArgumentError("is blank. List at least one part, and none without a path")
    if line.startswith(b"#"):
        raise ArgumentError(
            rf"'{line[:80].decode('utf-8', 'replace')}': a list of parts has no directives but #mpload and #parts. The "
            r"others are in the parts. A path that starts with '#' is written '\#...'"
        )
    if b"\t" not in line:
        return ListedPart(name=str(parse_line(_PLAIN, line)[0]))
    name, num_samples, digest = parse_line(_COUNTED, line)
    assert isinstance(num_samples, int)  # by its column
    if num_samples < 0 or not _DIGEST.fullmatch(str(digest)):
        raise ArgumentError(
            f"'{num_samples}' and {str(digest)[:80]!r} are not a number of samples and the digest of their lines. "
            "Write only the path, or let mpload write the list: mpload merge PART ... -o LIST --as-parts"
        )
    return ListedPart(name=str(name), num_samples=num_samples, digest=str(digest))
