"""Lists the keys of a bucket in several threads, although the server returns them only page by page.

Neither the keys nor their distribution are known in advance. So one thread starts at the first key. An idle thread
splits the range of a busy one at a text halfway between the last key listed and the range's end, and lists the keys
after the split. A list of two pages is never split.
"""

import queue
import re
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from mpload.errors import StorageError

__all__ = ["Object", "is_plain", "list_in_parts", "text_between"]

Object = tuple[str, int]
"""A key, and the size of its object in bytes."""
_PagesAfter = Callable[[str], Iterator[Sequence[Object]]]
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PLAIN = re.compile(r"[\w .=+,-]*(/[\w .=+,-]+)*/?", re.ASCII)  # a key that every library sends unchanged
_MIN_PAGES = 2  # fewer are not worth splitting
_MAX_SPLITS = 16  # attempts at successive places while no keys follow the split
_WAIT_SECONDS = 0.2


@dataclass(slots=True, kw_only=True, eq=False)
class _Part:
    """The range of keys after `start`, up to and including `end`. The keys up to `last` have been listed."""

    start: str = ""
    last: str = ""
    end: str | None = None
    num_pages: int = 0
    """Pages listed since the range was last split."""
    is_being_split: bool = False

    def holds(self, key: str, num_bytes: int) -> bool:
        """Whether an object listed belongs to this range. A folder's marker at its end may belong to the next one too.

        The marker of `dog` is an empty object with the key `dog/`, which is listed as `dog`, even after `dog`.
        """
        is_marker = not num_bytes and key <= self.start < f"{key}/"
        return (self.start < key or is_marker) and (self.end is None or key <= self.end)


def list_in_parts(
    pages_after: _PagesAfter, *, num_threads: int, after: str = "", up_to: str | None = None
) -> Generator[Object]:
    """Yield each key once, with the size of its object in bytes, in no particular order.

    Args:
        pages_after: returns the pages of all keys after a text, sorted by code points. Several threads call it.
        num_threads: number of threads, and so of lists that are read at the same time.
        after: only keys after this text.
        up_to: only keys up to this text, which is included; None means all.

    Memory: three pages per thread.
    """
    listing = _Listing(pages_after, num_threads, _Part(start=after, last=after, end=up_to))
    threads = [
        threading.Thread(target=listing.work, name=f"mpload-list-{number}", daemon=True)
        for number in range(num_threads)
    ]
    for thread in threads:
        thread.start()
    try:
        while (page := listing.found.get()) is not None:
            if isinstance(page, BaseException):
                raise page
            yield from page
    finally:
        listing.stop()


class _Listing:
    """The state that the threads share."""

    def __init__(self, pages_after: _PagesAfter, num_threads: int, whole: _Part) -> None:
        self._pages_after = pages_after
        self._news = threading.Condition()
        self._todo = [whole]
        self._parts: list[_Part] = []
        self._is_over = False
        self.found: queue.Queue[Sequence[Object] | BaseException | None] = queue.Queue(2 * num_threads)

    def work(self) -> None:
        """List ranges until none is left: the body of each thread."""
        try:
            while (mine := self._next()) is not None:
                part, pages = mine
                for page in pages:
                    kept, goes_on = self._keep(part, page)
                    self._put(kept)
                    if not goes_on:
                        break
                with self._news:
                    self._parts.remove(part)
                    self._news.notify_all()
        except BaseException as error:  # noqa: BLE001  it is raised in the consumer's thread
            self._put(error)

    def stop(self) -> None:
        """Make all threads end after the page that they are waiting for."""
        with self._news:
            self._is_over = True
            self._news.notify_all()

    def _put(self, page: Sequence[Object] | BaseException | None) -> None:
        while not self._is_over:
            try:
                self.found.put(page, timeout=_WAIT_SECONDS)
            except queue.Full:
                continue
            return

    def _next(self) -> tuple[_Part, Iterator[Sequence[Object]]] | None:
        """Return a range that no thread is listing, and its pages; None if no work is left."""
        while True:
            with self._news:
                if self._is_over:
                    return None
                if self._todo:
                    part = self._todo.pop()
                    self._parts.append(part)
                    return part, self._pages_after(part.last)
                if not self._parts:
                    self._is_over = True
                    self._news.notify_all()
                    break
                others = [part for part in self._parts if part.num_pages >= _MIN_PAGES and not part.is_being_split]
                if not others:
                    self._news.wait()
                    continue
                part = max(others, key=lambda part: part.num_pages)
                part.is_being_split = True
            if (split := self._split(part)) is not None:
                return split
        self.found.put(None)  # only one thread gets here
        return None

    def _split(self, part: _Part) -> tuple[_Part, Iterator[Sequence[Object]]] | None:
        """Split a range; return its second half and the half's pages, or None if no keys follow the split."""
        try:
            for _ in range(_MAX_SPLITS):
                end = part.end
                middle = text_between(part.last, end)
                if middle is None:
                    return None
                pages = self._pages_after(middle)
                page = next(pages, ())
                if page and page[0][0] <= middle:  # the provider ignores the offset
                    return None
                with self._news:
                    if part not in self._parts or part.last >= middle or self._is_over:
                        return None  # the keys after `middle` have been listed in the meantime
                    part.end = middle
                    if page and (end is None or page[0][0] <= end):
                        found = _Part(start=middle, last=middle, end=end)
                        self._parts.append(found)
                        return found, chain([page], pages)
            return None
        finally:
            with self._news:
                part.is_being_split, part.num_pages = False, 0

    def _keep(self, part: _Part, page: Sequence[Object]) -> tuple[Sequence[Object], bool]:
        """Return the objects of a page that lie in the range, and whether more may follow."""
        # A folder's marker is an empty object, sorted by a key with a trailing slash that is missing here.
        keys = [key for key, num_bytes in page if num_bytes]
        if keys != sorted(keys):
            raise StorageError(
                "its objects are not listed in the order of their keys, as those of S3 are. List their paths in a text "
                "file, and index that with this URL as its root"
            )
        with self._news:
            kept = [found for found in page if part.holds(*found)]
            goes_on = not page or part.end is None or page[-1][0] < part.end
            part.last = max([part.last, *keys]) if part.end is None else min(part.end, max([part.last, *keys]))
            part.num_pages += 1
            self._news.notify_all()
        return kept, goes_on and not self._is_over


def text_between(low: str, high: str | None) -> str | None:
    r"""Return a text between `low` and `high`, about halfway if keys consist of letters and digits, or None.

    The text is a beginning of `low` that has only plain characters, followed by one letter or digit. A `high` of None
    stands for a text after all plain texts.
    """
    above = "\x7f" if high is None else high
    if low >= above:
        return None
    start = next((at for at, (a, b) in enumerate(zip(low, above, strict=False)) if a != b), len(low))
    for at in range(start, len(low) + 1):
        below = low[at : at + 1]
        limit = above[at] if at == start else "\x7f"
        letters = [letter for letter in _LETTERS if below < letter < limit]
        if letters and is_plain(low[:at]):
            return low[:at] + letters[len(letters) // 2]
    return None


def is_plain(text: str) -> bool:
    """Return whether every library and provider leaves all characters of a text unchanged."""
    return _PLAIN.fullmatch(text) is not None
