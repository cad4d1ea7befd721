"""Makes the client that reads from a server, or a bucket, and imports what it needs."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from importlib import import_module

from mpload.errors import ArgumentError
from mpload.storage.buckets import BucketClient, has_addresses, signing_may_wait
from mpload.storage.notices import Notices
from mpload.storage.object_facts import Seen
from mpload.storage.retrying import Client, RetryingClient
from mpload.storage.servers import Limits, What

__all__ = ["load_libraries", "new_client"]


def load_libraries(url: str) -> None:
    """Import what a client of this URL needs. Processes that are forked from this one then share its memory, 12 MB."""
    for name in ("mpload.storage.web" if url.startswith("http") else "obstore.store", "mpload.storage.quick_reads"):
        with suppress(Exception):  # of a broken library; the first read raises it again
            import_module(name)


def new_client(
    url: str,
    limits: Limits,
    *,
    max_bytes: int | None,
    seen: Seen,
    examples: Callable[[], Iterable[What]],
    notices: Notices | None,
) -> RetryingClient:
    """Return a client for the server, or the bucket, at a URL.

    Args:
        url: the URL, without a path.
        limits: the time limits.
        max_bytes: size of the largest object that may be read; None means no limit.
        seen: called with the URL and the version of each shard that a span was read from.
        examples: returns a few reads of which most should succeed.
        notices: is told about outages before they lead to errors.

    Raises:
        ArgumentError: urllib3, which reads http and https URLs, is not installed.
    """
    # Imported here: TLS and HTTP would cost every worker that reads local files memory and time.
    seconds = limits.connect_seconds
    address_of: Callable[[str], str] | None = None
    if url.startswith("http"):
        try:
            from mpload.storage import web  # noqa: PLC0415
        except ImportError as error:
            raise ArgumentError("reading URLs takes the package urllib3: pip install 'mpload[remote]'") from error

        client: Client = web.WebClient(connect_seconds=seconds, max_bytes=max_bytes, seen=seen)
        address_of = partial(web.address_of, url)
    else:
        client = bucket = BucketClient(connect_seconds=seconds, max_bytes=max_bytes, seen=seen)
        if has_addresses(url):
            address_of = partial(bucket.address_of, url, limit_seconds=limits.request_seconds)
    quick = None
    if address_of is not None:
        with suppress(ImportError):  # pycurl is not installed, which costs speed only
            from mpload.storage.quick_reads import QuickReads  # noqa: PLC0415

            quick = QuickReads(
                url,
                address_of,
                connect_seconds=seconds,
                max_bytes=max_bytes,
                seen=seen,
                is_bucket=not url.startswith("http"),
                may_wait=not url.startswith("http") and signing_may_wait(),
            )
    return RetryingClient(client, url, limits, examples=examples, notices=notices, quick=quick)
