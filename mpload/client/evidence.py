"""What the failures of a server's answer mean: a bad sample, or a server that lacks what others have."""

from collections.abc import Iterable
from dataclasses import replace

from mpload.errors import IndexChangedError, StorageError
from mpload.transport.messages import Failure

__all__ = ["changed_index", "named", "unread"]


def unread(failures: Iterable[Failure]) -> list[Failure]:
    """Return the failures of samples whose bytes could not be read. Others may have them."""
    return [failure for failure in failures if failure.kind is not None and issubclass(failure.kind, StorageError)]


def changed_index(failures: Iterable[Failure]) -> Failure | None:
    """Return the failure that says that the index was changed under its reader, if one does."""
    return next((failure for failure in failures if failure.kind is IndexChangedError), None)


def named(failure: Failure, *, url: str, first: int) -> Failure:
    """Return the failure of an answer as one of the batch, with the URL of the server in its causes.

    Args:
        failure: what the server reports; its place counts from `first`.
        url: the server.
        first: the first sample of the request.
    """
    details = dict(failure.details)
    if "bad" in details:
        details["bad"] = [(sample_id, f"on {url}: {cause}") for sample_id, cause in details["bad"]]
    return replace(failure, sample=first + failure.sample, cause=f"on {url}: {failure.cause}", details=details)
