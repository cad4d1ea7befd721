"""Shards at URLs that are replaced while they are in use: an error, instead of samples of another version."""

import os
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mpload.errors import IndexChangedError
from mpload.storage.first_seen import FirstSeen
from mpload.storage.parquet import ParquetStorage
from mpload.storage.ranges import ByteRange, RowValue, Span
from mpload.storage.remote import RemoteObjects, RemoteStorage
from tests.support.s3 import S3

pytestmark = pytest.mark.usefixtures("each_way")

LIMITS = RemoteStorage(request_timeout_seconds=5.0, retry_seconds=10.0)
FIRST, SECOND = b"abcdefgh", b"ABCDEFGH"


class Handler(BaseHTTPRequestHandler):
    """Sends spans of `data`, with an ETag and a time."""

    protocol_version = "HTTP/1.1"
    data = FIRST

    def do_GET(self) -> None:
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        start, end = (int(match[1]), int(match[2]) + 1) if match else (0, len(self.data))
        self.send_response(206 if match else 200)
        self.send_header("Content-Length", str(end - start))
        self.send_header("ETag", f'"{self.data.hex()}"')
        self.send_header("Last-Modified", f"Mon, 01 Jan 2024 00:00:{self.data[0] % 60:02} GMT")
        if match:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(self.data)}")
        self.end_headers()
        self.wfile.write(self.data[start:end])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Handler, "data", FIRST)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def check(root: str, replace: Callable[[], object]) -> None:
    objects = RemoteObjects(root, limits=LIMITS)
    assert objects.read([Span("shard.tar", 2, 3)]) == [b"cde"]
    assert objects.read([Span("shard.tar", 6, 2)]) == [b"gh"]
    replace()
    with pytest.raises(IndexChangedError, match=r"/shard\.tar: was replaced while it was in use"):
        objects.read([Span("shard.tar", 2, 3)])
    assert objects.read([ByteRange("shard.tar")]) == [SECOND], "whole files may change"
    assert RemoteObjects(root, limits=LIMITS).read([Span("shard.tar", 2, 3)]) == [b"CDE"]


@pytest.mark.processes
def test_a_shard_of_a_web_server_that_was_replaced_is_an_error(web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(web, lambda: monkeypatch.setattr(Handler, "data", SECOND))


@pytest.mark.processes
def test_a_shard_in_a_bucket_that_was_replaced_is_an_error(s3: S3) -> None:
    s3.put({"replaced/shard.tar": FIRST})
    check("s3://photos/replaced", lambda: s3.put({"replaced/shard.tar": SECOND}))


@pytest.mark.processes
def test_a_shard_that_a_forked_process_has_read_must_stay_the_same(web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = RemoteObjects(web, limits=LIMITS)
    objects.share_files()
    if (child := os.fork()) == 0:
        os._exit(objects.read([Span("shard.tar", 0, 1)]) != [b"a"])
    assert os.waitpid(child, 0)[1] == 0
    monkeypatch.setattr(Handler, "data", SECOND)
    with pytest.raises(IndexChangedError):
        objects.read([Span("shard.tar", 0, 1)])


@pytest.mark.processes
def test_a_parquet_file_at_a_url_that_was_replaced_is_an_error(s3: S3, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")

    def put(first: int) -> None:
        table = pa.table({"image": [bytes([first + n]) * 50 for n in range(8)]})
        pq.write_table(table, tmp_path / "rows.parquet", row_group_size=2, compression="none", use_dictionary=False)
        s3.put({"rows/rows.parquet": (tmp_path / "rows.parquet").read_bytes()})

    def value(group: int) -> RowValue:
        return RowValue(path="rows.parquet", row_group=group, column="image", row=1)

    storage = ParquetStorage(RemoteObjects("s3://photos/rows", limits=LIMITS))
    put(0)
    assert storage.read([value(0)]) == [bytes([1]) * 50]
    put(100)
    with pytest.raises(IndexChangedError):
        storage.read([value(2)])


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        (('"a"', "Mon", 5), ('"b"', "Mon", 5), True),  # two servers behind a load balancer
        (('"a"', "Mon", 5), ('"a"', "Tue", 5), True),
        (('"a"', "Mon", 5), ('"b"', "Tue", 5), False),
        (('"a"', "Mon", 5), ('"b"', "Mon", 6), False),
        (('"a"', "", 5), ('"b"', "", 5), False),
        (("", "Mon", 5), ("", "Mon", 5), True),
        (("", "Mon", 5), ("", "Tue", 5), False),
        (("", "Mon", 5), ("", "Mon", 6), False),
        (('"a"', "Mon", 5), ('"a"', "Mon", 6), False),
        (("", "", -1), ("", "", -1), True),
        (("", "", 5), ("", "", 6), False),
        (('"a"', "", 5), ('W/"a"', "", 5), True),  # compressed on its way
        (('"a"', "", 5), ("", "", 5), True),
        (("", "Mon", 5), ('"a"', "", -1), True),
    ],
)
def test_an_object_is_another_one_if_its_etag_differs_and_its_size_or_time(
    before: tuple[str, str, int], after: tuple[str, str, int], *, is_same: bool
) -> None:
    table = FirstSeen()
    for number, (etag, modified, num_bytes) in enumerate((before, after, before)):
        if number == 1 and not is_same:
            with pytest.raises(IndexChangedError):
                table.check_object("http://host/x", etag=etag, modified=modified, num_bytes=num_bytes)
        else:
            table.check_object("http://host/x", etag=etag, modified=modified, num_bytes=num_bytes)
