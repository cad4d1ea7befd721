"""No secret of a URL (a password, a token, a signature) appears in an error, a warning, a log or a report."""

import logging
import socket
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from mpload import MPDataset, RawBytes, Topology, build_index, merge_indexes, open_index
from mpload.errors import MploadError
from mpload.storage.ranges import ByteRange
from mpload.storage.remote import RemoteObjects, RemoteStorage
from tests.support.raw_server import head, raw_server

pytestmark = pytest.mark.usefixtures("each_way")

SECRET = "Zq7x9secretZq7x9"
LIMITS = RemoteStorage(request_timeout_seconds=0.02, retry_seconds=0.04)
HOST = "127.0.0.1:9"  # where no server listens

_schemes = st.sampled_from(["http", "https", "HTTPS", "s3", "gs", "az", "ftp", " https", ""])
_users = st.sampled_from(
    [
        "",
        f"me:{SECRET}@",
        f"{SECRET}@",
        f"me:{SECRET}/x@",
        f"me:{SECRET}@@",
        f"a@b:{SECRET}@",
        f":{SECRET}@",
        f"{SECRET}%40@",
    ]
)
_hosts = st.sampled_from([HOST, "[::1]:9", "[::1", "no-such-host.invalid", "", f"{HOST}x", "a\uff20b"])
_paths = st.sampled_from(["", "/", "/a.jpg", "/train/index.txt", "/a b/é.jpg", "/../x.jpg", "/%2e%2e/x", "//x.jpg"])
_queries = st.sampled_from(
    [
        "",
        f"?X-Amz-Signature={SECRET}",
        f"?sig={SECRET}&x=1",
        f"?a?{SECRET}",
        f"?X={SECRET}#x",
        f"#?{SECRET}",
    ]
)


@st.composite
def urls(draw: Callable[[Any], str]) -> str:
    """URLs of which most contain a secret that could be used: in the password or the query of a web server's URL."""
    scheme, user, host, path, query = (draw(each) for each in (_schemes, _users, _hosts, _paths, _queries))
    if scheme in {"s3", "gs", "az"}:
        query = ""  # a part of the key
    return f"{scheme}://{user}{host}{path}{query}"


def uses(url: str, folder: Path) -> Iterator[Callable[[], object]]:
    """Yield all that a user may do with a URL."""
    listed, index, rooted, out = (folder / f"{name}.txt" for name in ("listed", "index", "rooted", "out"))
    listed.write_text(f"{url}\t0\n")
    index.write_text(f"#mpload 1\n#root https://{HOST}\n#columns image:path label:int\n{url}\t0\n")
    rooted.write_text(f"#mpload 1\n#root {url}\n#columns image:path label:int\na.jpg\t0\n")

    def read(path: Path, on_error: Any) -> None:
        list(MPDataset(path, decode=RawBytes(), batch_size=1, on_error=on_error, storage=LIMITS, topology=Topology()))

    yield lambda: RemoteObjects(url, limits=LIMITS).read([ByteRange("a.jpg")])
    yield lambda: RemoteObjects(f"https://{HOST}", limits=LIMITS).read([ByteRange(url)])
    yield lambda: RemoteObjects("https://x", limits=LIMITS, allow_outside_root=True).look_up(url)
    yield lambda: merge_indexes([rooted, index], out)
    yield lambda: merge_indexes([index], url)
    yield lambda: build_index(url, out)
    yield lambda: build_index(listed, out, root=url)
    yield lambda: build_index(listed, out)
    yield lambda: build_index(index, out)
    yield lambda: build_index(index, url)
    for path in (listed, index, rooted):
        yield lambda path=path: repr(open_index(path))  # type: ignore[misc]
        yield lambda path=path: read(path, "raise")  # type: ignore[misc]
        yield lambda path=path: read(path, "skip")  # type: ignore[misc]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(url=urls())
def test_no_secret_of_a_url_is_shown(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assume(SECRET in url)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    caplog.set_level(logging.DEBUG)
    shown = []
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for use in uses(url, tmp_path):
            try:
                shown.append(str(use()))
            except MploadError as error:
                shown += traceback.format_exception(error)
    shown += [str(each.message) for each in found]
    shown += [each.getMessage() for each in caplog.records]
    for path in (*tmp_path.glob("*.jsonl"), *tmp_path.glob("out.txt")):
        shown += path.read_text().splitlines()
        path.unlink()
    assert not [text for text in shown if SECRET in text]


@pytest.mark.processes
def test_the_signature_of_a_redirect_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    def answer(connection: socket.socket, path: str) -> bool:
        if "?" in path:
            connection.sendall(head("200 OK", length=2) + b"ok")
        else:
            connection.sendall(head("302 Found", f"Location: {path}?X-Amz-Signature={SECRET}", length=0))
        return True

    with raw_server(answer) as url, caplog.at_level(logging.DEBUG):
        objects = RemoteObjects(url, limits=RemoteStorage(request_timeout_seconds=5.0, retry_seconds=10.0))
        assert objects.read([ByteRange("a.bin"), ByteRange("b.bin")]) == [b"ok", b"ok"]
    assert "GET /b.bin HTTP/1.1" in caplog.text
    assert SECRET not in caplog.text
