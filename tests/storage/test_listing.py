"""Listing a bucket in several threads: every key once, wherever ranges are split, with few extra requests."""

import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mpload import build_index
from mpload.errors import StorageError
from mpload.ingest.folder_options import FolderOptions
from mpload.storage import buckets
from mpload.storage.listing import Object, is_plain, list_in_parts, text_between
from mpload.storage.remote import list_objects
from tests.support.clusters import Backwards
from tests.support.s3 import PAGE_OBJECTS, S3


class Bucket:
    """Sorted keys, returned page by page. A page is returned once all threads have requested one, or after 50 ms."""

    def __init__(self, keys: Sequence[str], *, page_keys: int, num_threads: int = 1) -> None:
        self.objects = [(key, len(key) + 1) for key in sorted(keys)]
        self.page_keys = page_keys
        self.num_pages = 0
        self.num_at_once = self.most_at_once = 0
        self._lock = threading.Lock()
        self._together = threading.Barrier(num_threads) if num_threads > 1 else None

    def pages_after(self, last: str) -> Iterator[list[Object]]:
        behind = [found for found in self.objects if found[0] > last]
        for start in range(0, len(behind), self.page_keys):
            with self._lock:
                self.num_pages += 1
                self.num_at_once += 1
                self.most_at_once = max(self.most_at_once, self.num_at_once)
            if self._together is not None:
                try:
                    self._together.wait(0.05)
                except threading.BrokenBarrierError:
                    self._together.reset()
            with self._lock:
                self.num_at_once -= 1
            yield behind[start : start + self.page_keys]


KEYS = st.sets(st.text(st.sampled_from("ab09/.é#~"), min_size=1, max_size=6), max_size=120)


@settings(max_examples=150)
@given(keys=KEYS, page_keys=st.integers(1, 7), num_threads=st.integers(1, 4))
@example(keys={f"{n:06d}.jpg" for n in range(1000)}, page_keys=3, num_threads=8)
@example(keys={f"{n % 7}/{n:x}" for n in range(1000)}, page_keys=5, num_threads=3)
def test_every_key_is_listed_once(keys: set[str], page_keys: int, num_threads: int) -> None:
    bucket = Bucket(list(keys), page_keys=page_keys)
    assert sorted(list_in_parts(bucket.pages_after, num_threads=num_threads)) == bucket.objects


@settings(max_examples=150)
@given(
    keys=KEYS,
    markers=st.sets(st.sampled_from(["a", "a-", "b", "9/a", "~"])),
    bounds=st.sets(st.text("ab/-", min_size=1, max_size=3)),
)
@example(keys={"dog-b/1"}, markers={"dog"}, bounds={"dog-b/", "dog/"})
@example(keys={"dog/1"}, markers={"dog"}, bounds={"dog"})
def test_markers_of_folders_are_listed_wherever_ranges_begin(
    keys: set[str], markers: set[str], bounds: set[str]
) -> None:
    bucket = Bucket([*keys - {f"{name}/" for name in markers}, *(f"{name}/" for name in markers)], page_keys=3)

    def pages_after(last: str) -> Iterator[list[Object]]:
        for page in bucket.pages_after(last):
            yield [(key[:-1], 0) if key[:-1] in markers and key[-1] == "/" else (key, size) for key, size in page]

    places = ["", *sorted(bounds), None]
    found = [
        each
        for after, up_to in pairwise(places)
        for each in list_in_parts(pages_after, num_threads=1, after=after or "", up_to=up_to)
    ]
    assert sorted(each for each in found if each[1]) == [
        each for each in bucket.objects if each[0][:-1] not in markers or each[0][-1] != "/"
    ]
    assert {key for key, num_bytes in found if not num_bytes} == markers


@given(low=st.text(max_size=8), high=st.none() | st.text(max_size=8))
@example(low="a/000999.jpg", high=None)
@example(low="a/0", high="a/1")
def test_a_text_between_two_lies_between_them(low: str, high: str | None) -> None:
    middle = text_between(low, high)
    if middle is not None:
        assert low < middle
        assert high is None or middle < high
        assert is_plain(middle)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["{:09d}.jpg", "n{:05d}/x.jpg", "train/class/IMG_{:x}.png", "{:b}"])
def test_a_long_list_is_split_and_a_short_one_is_not(name: str) -> None:
    bucket = Bucket([name.format(n) for n in range(20_000)], page_keys=100, num_threads=8)
    assert len(list(list_in_parts(bucket.pages_after, num_threads=8))) == 20_000
    assert bucket.most_at_once >= 6
    assert bucket.num_pages < 2 * 200
    short = Bucket([name.format(n) for n in range(190)], page_keys=100, num_threads=8)
    assert len(list(list_in_parts(short.pages_after, num_threads=8))) == 190
    assert short.num_pages == 2


def test_threads_end_when_the_list_is_closed_early() -> None:
    bucket = Bucket([f"{n:06d}" for n in range(50_000)], page_keys=10)
    found = list_in_parts(bucket.pages_after, num_threads=4)
    next(found)
    found.close()
    for thread in threading.enumerate():
        if thread.name.startswith("mpload-list"):
            thread.join(10)
            assert not thread.is_alive()
    assert bucket.num_pages < 200


def test_a_provider_that_ignores_offsets_is_listed_from_start_to_end() -> None:
    bucket = Bucket([f"{n:06d}" for n in range(5_000)], page_keys=100)
    assert sorted(list_in_parts(lambda _: bucket.pages_after(""), num_threads=4)) == bucket.objects


def test_an_unsorted_list_is_an_error() -> None:
    pages = [[("b", 1), ("a", 1)]]
    with pytest.raises(StorageError, match="not listed in the order of their keys"):
        list(list_in_parts(lambda _: iter(pages), num_threads=2))


def test_an_error_in_any_thread_is_raised_in_the_consumer() -> None:
    bucket = Bucket([f"{n:06d}" for n in range(5_000)], page_keys=100)

    def pages_after(last: str) -> Iterator[list[Object]]:
        for page in bucket.pages_after(last):
            if page[0][0] > "003":
                raise ConnectionError("gone")
            yield page

    with pytest.raises(ConnectionError, match="gone"):
        list(list_in_parts(pages_after, num_threads=4))


# With a real server


FILES = [
    *(f"{name}/{n:03d}.jpg" for name in ("cat", "cat-b", "dog", "dog.c") for n in range(60)),
    *(f"cat/{inner}/{n}.png" for inner in ("a", "a b", "é#%") for n in range(5)),
    *(f"é#% [{n}]?/{n}.jpg" for n in range(3)),
    *("beside.jpg", "notes.txt", ".hidden/x.jpg", "dog/.y.jpg", "dog/readme.txt"),
]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("on", [None, Backwards()], ids=["here", "elsewhere"])
@pytest.mark.parametrize("columns", [None, "image:path"])
@pytest.mark.parametrize("hidden", [False, True])
def test_indexing_a_bucket_lists_it_once_and_gives_the_index_of_the_folder(
    s3: S3, tmp_path: Path, columns: str | None, hidden: bool, on: Backwards | None
) -> None:
    for name in FILES:
        (tmp_path / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "files" / name).write_bytes(b"x")
    if not any(True for _ in list_objects("s3://photos/one")):
        s3.put_folder(tmp_path / "files", "one")
        s3.put({"one/": b"", "one/dog/": b""})  # folder markers, as made by web consoles
    options: dict[str, Any] = {"columns": columns, "folder": FolderOptions(hidden=hidden)}
    with pytest.warns(match="left out"):
        local = build_index(tmp_path / "files", tmp_path / "local.txt", **options)
    before = s3.num_lists()
    with pytest.warns(match="left out"):
        far = build_index("s3://photos/one", tmp_path / "far.txt", **options, on=on)
    if on is None:
        assert s3.num_lists() - before <= 1.8 * len(FILES) / PAGE_OBJECTS + 3
    else:
        assert on.num_jobs == 1 + 7  # one from each folder that has a plain name, .hidden and cat/a included
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "far.txt", "far.txt.mpx", "files", "local.txt", "local.txt.mpx"
        ]  # fmt: skip
    assert isinstance(local, Path)
    assert isinstance(far, Path)
    assert far.read_text().replace("s3://photos/one", str(tmp_path / "files")) == local.read_text()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("on", [None, Backwards()], ids=["here", "elsewhere"])
@pytest.mark.parametrize("is_large", [False, True])
def test_indexing_a_bucket_without_class_folders_lists_it_once_too(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on: Backwards | None, is_large: bool
) -> None:
    monkeypatch.setattr(buckets, "_PAGE_OBJECTS", 100 if is_large else 1000)
    s3.put({f"flat/{n}.jpg": b"x" for n in range(150)})
    before = s3.num_lists()
    far = build_index("s3://photos/flat", tmp_path / "far.txt", on=on)
    if on is None:
        assert s3.num_lists() - before <= 1.8 * 150 / PAGE_OBJECTS + 3
    else:
        assert on.num_jobs == 1
    assert isinstance(far, Path)
    lines = [line for line in far.read_text().splitlines() if not line.startswith("#")]
    assert lines == sorted(f"{n}.jpg" for n in range(150))
