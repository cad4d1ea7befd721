"""Reads objects at s3, gs, az, http and https URLs, using `obstore`.

Compared with `pyarrow.fs`, a read takes about the same CPU time, startup takes a tenth of the time, and a worker uses
less than half of the memory (benchmarks/records/remote.jsonl).

Credentials come only from the provider's usual sources: environment variables, a role of the machine or container, or
an AWS profile (`AWS_PROFILE`, through boto3). An index never contains credentials. Errors never quote the messages of
servers or clients, because these can contain signed requests.
"""

import os
import random
import re
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from mpload.errors import ArgumentError, OutsideRootError, StorageError
from mpload.storage.listing import Object, is_plain, list_in_parts
from mpload.storage.ranges import ByteRange
from mpload.units import format_count, printable

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ["RemoteStorage", "check_url", "is_url", "list_objects"]

_SCHEMES = ("s3", "gs", "az", "http", "https")
_BODY_ATTEMPTS = 4
_FIRST_WAIT_SECONDS = 0.2
_PARALLEL_LISTS = 16
_PAGE_OBJECTS = 1000  # number of objects that providers send per page
_STATUS = re.compile(r"status code: (\d{3}[ \w-]{0,30})")
_CAUSES = ("timed out", "timeout", "connection refused", "dns error", "connection closed", "error trying to connect")


class _Runtime:
    """The process that started obstore's threads. A forked child lacks them, so calls to obstore would hang there."""

    pid: int | None = None


class RemoteStorage:
    """Reads objects, and spans of them, below a URL.

    A failed request is retried up to `max_retries` times within `retry_seconds`, with increasing waits and jitter. A
    request without a response within `timeout_seconds` has failed.

    Args:
        root: the URL that paths are relative to.
        allow_outside_root: allow paths that are URLs outside `root`.
        max_bytes: size of the largest object or span that may be read; None means no limit.
        timeout_seconds: time limit for one request.
        retry_seconds: time limit for a request and all its retries.
        max_retries: number of retries after the first attempt.

    Memory: the bytes that `read` returns, and about 10 MB for the client.
    Process: may be pickled, and may be forked before the first read. Each process makes its own clients. Any thread may
    read.

    Raises:
        ArgumentError: `root` is not a URL that can be read, or contains a secret.
    """

    max_parallel_reads = 32

    def __init__(
        self,
        root: str,
        *,
        allow_outside_root: bool = False,
        max_bytes: int | None = None,
        timeout_seconds: float = 30.0,
        retry_seconds: float = 120.0,
        max_retries: int = 6,
    ) -> None:
        if is_url(root):
            check_url(root)
        self._root = root.rstrip("/")
        self._allow_outside_root = allow_outside_root
        self._max_bytes = max_bytes
        self._timeout_seconds = timeout_seconds
        self._retry_seconds = retry_seconds
        self._max_retries = max_retries
        self._start()

    def _start(self) -> None:
        self._stores: dict[str, ObjectStore] = {}

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Return the bytes of each range, in the order of `ranges`.

        Raises:
            ArgumentError: obstore is not installed.
            OutsideRootError: a URL leads outside the root.
            StorageError: bytes cannot be read.
        """
        return [self._read(item) for item in ranges]

    def _read(self, item: ByteRange) -> bytes:
        url = self._url(item.path)
        if item.length_bytes is not None:
            self._check_size(url, item.length_bytes)
            if not item.length_bytes:
                return b""
        bucket, key = _split(url)
        store = self._store(bucket, url)
        failure, data = None, b""
        for attempt in range(_BODY_ATTEMPTS):
            try:
                data = self._fetch(store, key, url, item)
            except StorageError:
                raise
            except Exception as error:  # noqa: BLE001  obstore raises many classes, whose texts must not be shown
                failure = _failure(url, error)
                if not _is_truncated(error) or attempt == _BODY_ATTEMPTS - 1:
                    break
                time.sleep(random.uniform(0.5, 1.0) * _FIRST_WAIT_SECONDS * 2**attempt)
            else:
                failure = None
                break
        if failure is not None:  # raised outside `except`, so that the original is not its context
            raise failure
        if item.length_bytes is not None and len(data) < item.length_bytes:
            raise StorageError(
                f"{_redacted(url)}: the span {item.offset_bytes}+{item.length_bytes} ends at byte "
                f"{format_count(item.offset_bytes + item.length_bytes)}, past the end of the object. Was it uploaded "
                "completely? If so, build the index again"
            )
        return data

    def _fetch(self, store: "ObjectStore", key: str, url: str, item: ByteRange) -> bytes:
        if item.length_bytes is not None:
            span = {"start": item.offset_bytes, "length": item.length_bytes}
            return bytes(_obstore(url).get_range(store, key, **span))
        found = _obstore(url).get(store, key)
        self._check_size(url, found.meta["size"])
        return bytes(found.bytes())

    def _url(self, path: str) -> str:
        if not is_url(path):
            if path[:1] == "/" or ".." in path.split("/"):
                raise OutsideRootError(
                    f"{_redacted(path)}: leads outside of the root {self._root}. Fix this line of the index"
                )
            if not path or not is_url(self._root):
                raise StorageError(f"{_redacted(path)!r} is not a URL. Fix this line of the index")
            return f"{self._root}/{path}"
        check_url(path)
        if not self._allow_outside_root and (not path.startswith(f"{self._root}/") or ".." in path.split("/")):
            raise OutsideRootError(
                f"{_redacted(path)}: lies outside of the root {self._root}. Set #root of the index to a URL that holds "
                "all objects or, if you trust the index, open it by open_index(..., allow_outside_root=True)"
            )
        return path

    def _check_size(self, url: str, num_bytes: int) -> None:
        if self._max_bytes is not None and num_bytes > self._max_bytes:
            raise StorageError(
                f"{_redacted(url)}: is not read: its {format_count(num_bytes)} bytes exceed "
                f"max_bytes={format_count(self._max_bytes)}. Raise that limit, or remove the sample from the index"
            )

    def _store(self, bucket: str, url: str) -> "ObjectStore":
        store = self._stores.get(bucket)
        if store is None:
            store = self._stores[bucket] = _open_bucket(
                bucket,
                url,
                timeout_seconds=self._timeout_seconds,
                retry_seconds=self._retry_seconds,
                max_retries=self._max_retries,
            )
        return store

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_stores"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._start()


def is_url(path: str) -> bool:
    """Return whether a path is a URL."""
    return "://" in path


def check_url(url: str) -> None:
    """Raise `ArgumentError` unless `url` can be read and contains no secret."""
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES or not parts.netloc:
        raise ArgumentError(f"{_redacted(url)}: is not a URL with scheme {', '.join(_SCHEMES[:-1])} or {_SCHEMES[-1]}")
    if "@" in parts.netloc or (parts.query and parts.scheme.startswith("http")):
        raise ArgumentError(
            f"{_redacted(url)}: contains a password, or a query that may be a signature. An index must not contain "
            "secrets: write s3://BUCKET/KEY, and pass credentials in the provider's environment variables"
        )


def list_objects(url: str) -> Iterator[tuple[str, int]]:
    """Yield the path relative to `url` and the size in bytes of each object below `url`, in no particular order.

    An S3 bucket can be listed from any key, so several threads list parts of it. Others are listed from the first key
    to the last.

    Memory: a few pages of the list.

    Raises:
        ArgumentError: the URL cannot be listed, or obstore is not installed.
        StorageError: the bucket cannot be read.
    """
    check_url(url)
    if url.startswith("http"):
        raise ArgumentError(
            f"{url}: objects at http URLs cannot be listed. List their paths in a text file, and index that file "
            "with this URL as its root"
        )
    bucket, prefix = _split(f"{url.rstrip('/')}/")
    store = _open_bucket(bucket, url, timeout_seconds=60.0, retry_seconds=300.0, max_retries=10)
    library = _obstore(url)

    def pages_after(last: str) -> Iterator[list[Object]]:
        offset = prefix + last if last else None
        for page in library.list(store, prefix=prefix or None, offset=offset, chunk_size=_PAGE_OBJECTS):
            yield [(each["path"][len(prefix) :], each["size"]) for each in page if each["path"].startswith(prefix)]

    is_sorted = bucket.startswith("s3:") and not bucket.endswith("--x-s3")  # directory buckets are not sorted
    failure = None
    try:
        if is_sorted and is_plain(prefix):
            yield from list_in_parts(pages_after, num_threads=_PARALLEL_LISTS)
        else:
            yield from chain.from_iterable(pages_after(""))
    except StorageError as error:
        failure = StorageError(f"{_redacted(url)}: {error}")
    except Exception as error:  # noqa: BLE001  as above
        failure = _failure(url, error)
    if failure is not None:
        raise failure


def _obstore(url: str) -> Any:
    try:
        import obstore  # noqa: PLC0415  an optional package
    except ImportError as error:
        raise ArgumentError(
            f"{_redacted(url)}: reading URLs takes the package obstore: pip install 'mpload[remote]'"
        ) from error
    if _Runtime.pid is None:
        _Runtime.pid = os.getpid()
    if _Runtime.pid != os.getpid():
        raise StorageError(
            f"{_redacted(url)}: this process was forked from one that had already read URLs, so it lacks obstore's "
            "threads. Use MPLoader, or DataLoader(..., multiprocessing_context='spawn')"
        )
    return obstore


def _is_truncated(error: Exception) -> bool:
    """Return whether a response started but did not finish. obstore does not always retry these."""
    return type(error).__name__ == "GenericError" and "Retry" not in str(error)


def _split(url: str) -> tuple[str, str]:
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", unquote(key) if scheme.startswith("http") and "%" in key else key


def _open_bucket(
    bucket: str, url: str, *, timeout_seconds: float, retry_seconds: float, max_retries: int
) -> "ObjectStore":
    _obstore(url)
    from obstore.store import from_url  # noqa: PLC0415  an optional package

    more: dict[str, Any] = {}
    if bucket.startswith("s3:") and "AWS_PROFILE" in os.environ:
        try:
            from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415  an optional package
        except ImportError as error:
            raise ArgumentError(f"{_redacted(url)}: AWS_PROFILE takes the package boto3: pip install boto3") from error
        more["credential_provider"] = Boto3CredentialProvider()
    failure = None
    try:
        return from_url(
            bucket,
            client_options={
                "timeout": timedelta(seconds=timeout_seconds),
                "connect_timeout": timedelta(seconds=min(10.0, timeout_seconds)),
                "allow_http": True,  # for an endpoint with an http URL in the environment
            },
            retry_config={"max_retries": max_retries, "retry_timeout": timedelta(seconds=retry_seconds)},
            **more,
        )
    except Exception as error:  # noqa: BLE001  as above
        failure = _failure(url, error)
    raise failure


def _failure(url: str, error: Exception) -> StorageError:
    """Return an error that says what kind of failure it was and its HTTP status, but never quotes its text."""
    text = str(error)
    status = _STATUS.search(text)
    if isinstance(error, FileNotFoundError) or type(error).__name__ == "NotFoundError":
        cause = "no such object. Does #root of the index point to the right place, or was the object deleted?"
    elif type(error).__name__ in {"PermissionDeniedError", "UnauthenticatedError"} or (
        status is not None and status[1][:3] in {"401", "403"}
    ):
        cause = (
            "access is denied. Set up credentials as for the provider's own tools (AWS_ACCESS_KEY_ID, AWS_PROFILE, "
            "GOOGLE_APPLICATION_CREDENTIALS, a role). For a public bucket, set AWS_SKIP_SIGNATURE=true"
        )
    elif status is not None and status[1].startswith("416"):
        cause = "the span lies past the end of the object. Build the index again"
    elif status is not None:
        cause = f"the server answered {status[1].strip()} to every attempt"
    elif found := next((words for words in _CAUSES if words in text.lower()), None):
        cause = f"{found}, in every attempt. Check the network and the endpoint"
    else:
        cause = f"cannot be read ({type(error).__name__})"
    return StorageError(f"{_redacted(url)}: {cause}")


def _redacted(url: str) -> str:
    """Return a URL without its password and query, so that it can be printed."""
    plain = re.sub(r"(://)[^/@]*@", r"\1", url.partition("?")[0] if url.startswith("http") else url)
    return printable(plain)
