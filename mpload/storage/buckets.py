"""Reads and lists objects at s3, gs and az URLs, using `obstore`.

Compared with `pyarrow.fs`, a read takes about the same CPU time, startup takes a tenth of the time, and a worker uses
less than half of the memory (benchmarks/records/remote.jsonl).

Credentials come only from the provider's usual sources: environment variables, a role of the machine or container, or
an AWS profile (`AWS_PROFILE`, through boto3).
"""

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from itertools import chain
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mpload.errors import ArgumentError, StorageError
from mpload.storage.bucket_failures import as_request_failures, bad_key
from mpload.storage.leading_slashes import key_with_leading_slash
from mpload.storage.listing import Object, is_plain, list_in_parts
from mpload.storage.object_facts import ObjectFacts, Seen, unseen
from mpload.storage.request_failure import too_long
from mpload.units import format_count, printable

if TYPE_CHECKING:
    from obstore.store import ObjectStore, RetryConfig

__all__ = [
    "PARALLEL_LISTS",
    "BucketClient",
    "can_list_ranges",
    "has_addresses",
    "list_bucket",
    "list_level",
    "refuse_leading_slashes",
]

PARALLEL_LISTS = 16
_PAGE_OBJECTS = 1000  # number of objects that providers send per page
_SIGNED_FOR = timedelta(minutes=15)  # the clocks may differ
_TRUE = {"1", "true", "on", "yes", "y"}
"""What obstore takes for true in an environment variable."""
_LIST_SECONDS = 60.0
_LIST_RETRY_SECONDS = 90.0

_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""By the scheme of a bucket's URL: the environment variables with which obstore finds its server."""
_IN_URLS = re.compile(r"[!-~]+")
"""What a URL may consist of."""

_NUM_THREADS_NAME = "TOKIO_WORKER_THREADS"
"""The environment variable for the number of obstore's threads, which is read when they start."""


class _Runtime:
    """The process that started obstore's threads. A forked child lacks them, so calls to obstore would hang there."""

    pid: int | None = None


class BucketClient:
    """Reads from the buckets that URLs name.

    Args:
        connect_seconds: time limit for a connection to be made.
        max_bytes: size of the largest object that may be read; None means no limit.
        seen: called with the URL and the version of each shard that a span was read from.

    Memory: about 10 MB.
    Process: may be forked before the first read. Any thread may read.
    """

    def __init__(self, *, connect_seconds: float, max_bytes: int | None, seen: Seen = unseen) -> None:
        self._connect_seconds = connect_seconds
        self._max_bytes = max_bytes
        self._seen = seen
        self._stores: dict[tuple[str, float], ObjectStore] = {}

    def fetch(self, url: str, key: str, span: tuple[int, int] | None, *, limit_seconds: float) -> bytes:
        """Return the bytes of an object, or of a span of it: (offset, length). A span may end early.

        Args:
            url: the URL of the bucket.
            key: the object's key.
            span: what to read; None means the whole object.
            limit_seconds: time limit for the whole request.

        Raises:
            RequestFailure: the request failed.
            StorageError: the object is larger than `max_bytes`, or this process cannot use obstore.
            ArgumentError: obstore is not installed.
        """
        _refuse_outer_slashes(key)
        store = self._store(url, limit_seconds)
        with as_request_failures(limit_seconds):
            return _interruptible(partial(self._get, store, url, key, span))

    def _get(self, store: "ObjectStore", url: str, key: str, span: tuple[int, int] | None) -> bytes:
        if span is not None:
            offset, length = span
            found = obstore().get(store, key, options={"range": (offset, offset + length)})
            data, meta = bytes(found.bytes()), found.meta
            if len(data) > length:
                raise too_long(len(data), length)
            etag = meta.get("e_tag") or ""  # which is the same, whichever server of the provider answers
            modified = "" if etag else str(meta["last_modified"])
            self._seen(f"{url}/{key}", etag=etag, modified=modified, num_bytes=meta["size"])
            return data
        found = obstore().get(store, key)
        self._check_size(found.meta["size"])
        return bytes(found.bytes())

    def address_of(self, url: str, key: str, *, limit_seconds: float) -> str:
        """Return the http or https URL of an object in an S3 bucket. Its query is a signature, if requests are signed.

        Arguments and errors are those of `fetch`.
        """
        _refuse_outer_slashes(key)
        if _is_public():
            return self._signed(self._unsigned_store(url), key).partition("?")[0]
        return self._signed(self._store(url, limit_seconds), key)

    def _signed(self, store: "ObjectStore", key: str) -> str:
        signed: str = obstore().sign(store, "GET", key, _SIGNED_FOR)
        return signed

    def _unsigned_store(self, url: str) -> "ObjectStore":
        """Return a store with made-up credentials. obstore gives the URL of an object only with a signature."""
        store = self._stores.get((url, 0.0))
        if store is None:
            none = {"skip_signature": False, "access_key_id": "none", "secret_access_key": "none"}
            store = self._stores[url, 0.0] = _open_bucket(
                url, timeout_seconds=1.0, connect_seconds=1.0, retry={"max_retries": 0}, **none
            )
        return store

    def look_up(self, url: str, key: str, *, limit_seconds: float) -> ObjectFacts:
        """Return the size and the version of an object. Arguments and errors are those of `fetch`."""
        _refuse_outer_slashes(key)
        store = self._store(url, limit_seconds)
        with as_request_failures(limit_seconds):
            found = obstore().head(store, key)
        version = found.get("e_tag") or f"{found['last_modified']} {found['size']}"
        return ObjectFacts(num_bytes=found["size"], version=version)

    def _check_size(self, num_bytes: int) -> None:
        if self._max_bytes is not None and num_bytes > self._max_bytes:
            raise StorageError(
                f"is not read: its {format_count(num_bytes)} bytes exceed max_bytes={format_count(self._max_bytes)}. "
                "Raise that limit, or remove the sample from the index"
            )

    def _store(self, url: str, limit_seconds: float) -> "ObjectStore":
        """Return a store whose requests take no longer than the limit, which a store has from the beginning."""
        store = self._stores.get((url, limit_seconds))
        if store is None:
            store = self._stores[url, limit_seconds] = _open_bucket(
                url,
                timeout_seconds=limit_seconds,
                connect_seconds=min(self._connect_seconds, limit_seconds),
                retry={"max_retries": 0},
            )
        return store


def _refuse_outer_slashes(key: str) -> None:
    """Raise `RequestFailure` if a key begins or ends with a slash. obstore would leave it out."""
    if key != key.strip("/"):
        raise bad_key(key)


def _interruptible(call: Callable[[], bytes]) -> bytes:
    """Call in a thread where Ctrl-C may end the wait, since obstore notices Ctrl-C only when a request is over."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        return call()
    found: SimpleQueue[bytes | BaseException] = SimpleQueue()

    def work() -> None:
        try:
            found.put(call())
        except BaseException as error:  # noqa: BLE001  raised below
            found.put(error)

    try:
        threading.Thread(target=work, name="mpload-bucket", daemon=True).start()
    except RuntimeError:  # a limit on threads is reached
        return call()
    result = found.get()
    try:
        if isinstance(result, BaseException):
            raise result
        return result
    finally:
        del result  # its traceback refers to this frame


def has_addresses(url: str) -> bool:
    """Return whether the objects of a bucket can be read at http and https URLs."""
    return url.startswith("s3:") and not _is_directory_bucket(url)


def signing_may_wait() -> bool:
    """Return whether `BucketClient.address_of` may wait for credentials, of a role or a profile."""
    is_static = "AWS_ACCESS_KEY_ID" in os.environ and "AWS_SECRET_ACCESS_KEY" in os.environ
    return "AWS_PROFILE" in os.environ or not (is_static or _is_public())


def _is_public() -> bool:
    return os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in _TRUE


def can_list_ranges(url: str, prefix: str) -> bool:
    """Return whether a bucket can be listed from any key: an S3 bucket, unless it is a directory bucket."""
    return url.startswith("s3:") and not _is_directory_bucket(url) and is_plain(prefix)


def list_bucket(
    url: str, prefix: str, *, after: str = "", up_to: str | None = None, num_threads: int = PARALLEL_LISTS
) -> Iterator[tuple[str, int]]:
    """Yield the path relative to `prefix` and the size in bytes of each object of a bucket, in no particular order.

    A bucket that can be listed from any key is listed by several threads. Others are listed from the first key to the
    last.

    Args:
        url: the URL of the bucket.
        prefix: the beginning of the keys.
        after: only paths after this text. `after` and `up_to` need a bucket with `can_list_ranges`.
        up_to: only paths up to this text, which is included; None means all.
        num_threads: number of threads.

    Raises:
        RequestFailure: the bucket cannot be read.
        ArgumentError: obstore is not installed.
    """
    store = _open_for_lists(url)
    library = obstore()

    def pages_after(last: str) -> Iterator[list[Object]]:
        offset = prefix + last if last else None
        for page in library.list(store, prefix=prefix or None, offset=offset, chunk_size=_PAGE_OBJECTS):
            yield [(each["path"][len(prefix) :], each["size"]) for each in page if each["path"].startswith(prefix)]

    with as_request_failures(_LIST_SECONDS):
        if can_list_ranges(url, prefix):
            yield from list_in_parts(pages_after, num_threads=num_threads, after=after, up_to=up_to)
        else:
            yield from chain.from_iterable(pages_after(""))


def list_level(url: str, prefix: str, *, at_any_cost: bool) -> list[str]:
    """Return the names of the folders directly below `prefix` of a bucket.

    Args:
        url: the URL of the bucket.
        prefix: the beginning of the keys.
        at_any_cost: list them even if the first page of the objects has no folder, so that there may be very many
            objects. Otherwise the list is empty then.

    Memory: the names of the folders, and of the objects beside them.

    Raises:
        RequestFailure: the bucket cannot be read.
        ArgumentError: obstore is not installed.
    """
    store = _open_for_lists(url)
    with as_request_failures(_LIST_SECONDS):
        if not at_any_cost:
            pages = obstore().list(store, prefix=prefix or None, chunk_size=_PAGE_OBJECTS)
            first: Sequence[Any] = next(iter(pages), [])
            if all("/" not in each["path"][len(prefix) :] for each in first):
                return []
        found = obstore().list_with_delimiter(store, prefix=prefix or None)
    return [path[len(prefix) :] for path in found["common_prefixes"] if path.startswith(prefix)]


def refuse_leading_slashes(url: str) -> None:
    """Raise `RequestFailure` if a key of a bucket begins with a slash, or if the bucket cannot be read.

    obstore itself refuses other keys with empty parts when it lists them. Directory buckets are not checked, as they
    cannot be listed from a key.
    """
    if _is_directory_bucket(url):
        return
    with as_request_failures(_LIST_SECONDS):
        key = key_with_leading_slash(obstore(), _open_for_lists(url))
    if key is not None:
        raise bad_key(key)


def _is_directory_bucket(url: str) -> bool:
    return url.endswith("--x-s3")


def obstore() -> Any:
    """Return the library, unless this process cannot use it.

    Raises:
        ArgumentError: it is not installed.
        StorageError: this process was forked from one that had used it.
    """
    try:
        import obstore as library  # noqa: PLC0415  an optional package
    except ImportError as error:
        raise ArgumentError("reading URLs takes the package obstore: pip install 'mpload[remote]'") from error
    if _Runtime.pid is None:
        _Runtime.pid = os.getpid()
        _start_one_thread(library)
    if _Runtime.pid != os.getpid():
        raise StorageError(
            "this process was forked from one that had already read URLs, so it lacks obstore's threads. Use MPLoader, "
            "or DataLoader(..., multiprocessing_context='spawn')"
        )
    return library


def _start_one_thread(library: Any) -> None:
    """Start a single thread of obstore's in this process, unless the user has set another number.

    By default there is one for each core, in each worker: 1,024 of them in 16 workers on 64 cores. One is as fast: it
    carries 1.3 GB/s, and the processor time for each photograph stays the same.
    """
    if _NUM_THREADS_NAME in os.environ:
        return
    from obstore.store import MemoryStore  # noqa: PLC0415  an optional package

    os.environ[_NUM_THREADS_NAME] = "1"
    try:
        library.put(MemoryStore(), "any", b"")
    finally:
        os.environ.pop(_NUM_THREADS_NAME, None)  # since other libraries read it too


def _open_for_lists(url: str) -> "ObjectStore":
    return _open_bucket(
        url,
        timeout_seconds=_LIST_SECONDS,
        connect_seconds=10.0,
        retry={"max_retries": 1000, "retry_timeout": timedelta(seconds=_LIST_RETRY_SECONDS)},
    )


def _open_bucket(
    url: str, *, timeout_seconds: float, connect_seconds: float, retry: "RetryConfig", **more: Any
) -> "ObjectStore":
    obstore()
    from obstore.store import from_url  # noqa: PLC0415  an optional package

    _check_endpoint(url.partition(":")[0])
    if url.startswith("s3:") and "AWS_PROFILE" in os.environ and not more:
        try:
            from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415  an optional package
        except ImportError as error:
            raise ArgumentError("AWS_PROFILE takes the package boto3: pip install boto3") from error
        more["credential_provider"] = Boto3CredentialProvider()
    with as_request_failures(timeout_seconds):
        return from_url(
            url,
            client_options={
                "timeout": timedelta(seconds=timeout_seconds),
                "connect_timeout": timedelta(seconds=connect_seconds),
                "allow_http": True,  # for an endpoint with an http URL in the environment
            },
            retry_config=retry,
            **more,
        )


def _check_endpoint(scheme: str) -> None:
    """Check the variables that name a server of buckets, since obstore panics at each request if one is no URL."""
    for name in _ENDPOINTS.get(scheme, ()):
        value = os.environ.get(name)
        if value is None:
            continue
        try:
            parts = urlsplit(value)
            is_url = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_url = False
        if not is_url or not _IN_URLS.fullmatch(value):
            shown = "" if "@" in value else f"={printable(value)!r}"
            raise ArgumentError(
                f"the environment variable {name}{shown} must be the URL of a server, with http:// or https://, such "
                "as http://localhost:9000. Set it to one, or unset it for the provider's own server"
            )
