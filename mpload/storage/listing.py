"""A list of keys that is only given page after page, asked for at several places at once.

Which keys there are is not known beforehand, nor how they are spread. So one thread begins at the first key; whoever
has nothing to do cuts what another still has before it in two, at a text halfway between the last key that it has seen
and its end, and goes on behind the cut. A list of two pages is never cut.
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
"""Key and bytes."""
_PagesAfter = Callable[[str], Iterator[Sequence[Object]]]
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PLAIN = re.compile(r"[\w .=+,-]*(/[\w .=+,-]+)*/?", re.ASCII)  # a key that every library sends as it is
_FIRST_CUT_PAGES = 2
_MAX_CUTS = 16  # that may find nothing behind them, one after another
_WAIT_SECONDS = 0.2


@dataclass(slots=True, kw_only=True, eq=False)
class _Part:
    """The keys behind `start`, up to `end` and with it; all those up to `last` are listed."""

    start: str = ""
    last: str = ""
    end: str | None = None
    num_pages: int = 0
    """Since it was cut."""
    is_being_cut: bool = False


def list_in_parts(pages_after: _PagesAfter, *, num_threads: int) -> Generator[Object]:
    """Yield all keys with their bytes, each once, in no order.

    Args:
        pages_after: starts a list of all keys behind a text, ascending by code points; asked by several threads.
        num_threads: lists that are under way at once.

    Memory: three pages a thread.
    """
    listing = _Listing(pages_after, num_threads)
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
    """What the threads share."""

    def __init__(self, pages_after: _PagesAfter, num_threads: int) -> None:
        self._pages_after = pages_after
        self._news = threading.Condition()
        self._todo: list[_Part] = [_Part()]
        self._parts: list[_Part] = []
        self._is_over = False
        self.found: queue.Queue[Sequence[Object] | BaseException | None] = queue.Queue(2 * num_threads)

    def work(self) -> None:
        """Be one of the threads."""
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
        except BaseException as error:  # noqa: BLE001  it is raised where the keys are asked for
            self._put(error)

    def stop(self) -> None:
        """Have all threads end after the page that they wait for."""
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
        """Return a part that nobody lists, and its pages; None where there is nothing left to do."""
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
                others = [part for part in self._parts if part.num_pages >= _FIRST_CUT_PAGES and not part.is_being_cut]
                if not others:
                    self._news.wait()
                    continue
                part = max(others, key=lambda part: part.num_pages)
                part.is_being_cut = True
            if (cut := self._cut(part)) is not None:
                return cut
        self.found.put(None)  # by one thread only
        return None

    def _cut(self, part: _Part) -> tuple[_Part, Iterator[Sequence[Object]]] | None:
        """Take the far half of a part, if there is anything in it."""
        try:
            for _ in range(_MAX_CUTS):
                end = part.end
                middle = text_between(part.last, end)
                if middle is None:
                    return None
                pages = self._pages_after(middle)
                page = next(pages, ())
                if page and page[0][0] <= middle:  # this provider begins where it likes
                    return None
                with self._news:
                    if part not in self._parts or part.last >= middle or self._is_over:
                        return None  # it was listed meanwhile
                    part.end = middle
                    if page and (end is None or page[0][0] <= end):
                        found = _Part(start=middle, last=middle, end=end)
                        self._parts.append(found)
                        return found, chain([page], pages)
            return None
        finally:
            with self._news:
                part.is_being_cut, part.num_pages = False, 0

    def _keep(self, part: _Part, page: Sequence[Object]) -> tuple[Sequence[Object], bool]:
        """Return what of a page is the part's, and whether more may follow."""
        keys = [
            key for key, num_bytes in page if num_bytes
        ]  # a folder's marker has none, nor the slash it is sorted by
        if keys != sorted(keys):
            raise StorageError("its objects are not listed in the order of their keys, as those of S3 are")
        with self._news:
            kept = [found for found in page if part.start < found[0] and (part.end is None or found[0] <= part.end)]
            goes_on = not page or part.end is None or page[-1][0] < part.end
            part.last = max([part.last, *keys]) if part.end is None else min(part.end, max([part.last, *keys]))
            part.num_pages += 1
            self._news.notify_all()
        return kept, goes_on and not self._is_over


def text_between(low: str, high: str | None) -> str | None:
    r"""Return a text behind `low` and before `high`, about halfway for keys of letters and digits; None: not found.

    It ends with a letter or digit, and begins as `low` does, of which only plain characters are taken. `high` of None
    is behind all plain texts.
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
    """Whether a text has only characters that every library and provider takes as they are."""
    return _PLAIN.fullmatch(text) is not None
