"""What the errors of `obstore` say about a request."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from mpload.errors import MploadError
from mpload.storage.request_failure import RequestFailure, status_failure
from mpload.units import printable

__all__ = ["as_request_failures", "bad_key"]

# obstore's errors tell their kind only in the text that Rust makes of them, one field a line. Strings in it, which may
# quote a server or a path, are replaced first.
_DEBUG = "\n\nDebug source:\n"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_URI = re.compile(r"uri: Some\(.*?\n\s*\),", re.DOTALL)
_STATUS = re.compile(r"^\s*status: (\d{3}),$", re.MULTILINE)
_CODE = re.compile(r"<Code>(\w+)</Code>")
_DNS = re.compile(r'ConnectError\(\s*"dns error"')
_BAD_KEY = re.compile(r'Path "(.*?)"(?: contained|: Encountered)', re.DOTALL)
_KINDS = {
    "ConnectionRefused": "connection refused",
    "ConnectionReset": "connection reset",
    "BrokenPipe": "connection reset",
    "HostUnreachable": "host unreachable",
    "NetworkUnreachable": "host unreachable",
    "IncompleteMessage": "connection closed",
    "IncompleteBody": "answer cut short",
    "UnexpectedEof": "connection closed",
    "Parse": "answer is not HTTP",
    "AlertReceived": "TLS failed",
    "InvalidMessage": "TLS failed",
}
"""By a word of the text: what happened. The first word that occurs counts."""
_EXPIRED = "credentials have expired", ". Renew them, such as by `aws sso login`, and start the job again"
_REGION = "bucket is in another region", ". Set AWS_REGION to the region of the bucket"
_CODES = {
    "ExpiredToken": _EXPIRED,
    "RequestExpired": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "AuthorizationHeaderMalformed": _REGION,
    "PermanentRedirect": _REGION,
    "RequestTimeTooSkewed": ("clock is wrong", ": that of this machine differs from the server's. Set it"),
    "NoSuchBucket": ("no such bucket", ". Check #root of the index, AWS_REGION and AWS_ENDPOINT_URL"),
}
"""By the code of an error of S3, which says that every request will fail: what happened."""


def _is_of_obstore(error: BaseException) -> bool:
    """Return whether obstore raised an error. It raises many classes, whose texts must not be shown."""
    return _is_panic(error) or (isinstance(error, Exception) and not isinstance(error, MploadError))


@contextmanager
def as_request_failures(limit_seconds: float) -> Iterator[None]:
    """Turn errors of obstore into a `RequestFailure`. `limit_seconds` is the time limit of a request."""
    failure = None
    try:
        yield
    except BaseException as error:
        if not _is_of_obstore(error):
            raise
        failure = _failure_of(error, limit_seconds=limit_seconds)
    if failure is not None:
        raise failure  # outside `except`, so that the original is not its context


def bad_key(key: str) -> RequestFailure:
    """Return the failure of a request for an object whose key obstore cannot read."""
    why = "has an empty part, a part `.`, or a control character, so that obstore cannot read it. Rename the object"
    return RequestFailure("bad key", text=f"the key {printable(key)} {why}", is_temporary=False)


def _is_panic(error: BaseException) -> bool:
    """Return whether obstore met something that it does not expect. The class of its error is no `Exception`."""
    return type(error).__name__ == "PanicException"


def _failure_of(error: BaseException, *, limit_seconds: float) -> RequestFailure:
    """Return what happened, by the kind that the error states, never by what a server or a path says.

    Args:
        error: what obstore raised.
        limit_seconds: time limit of the request.
    """
    raw = str(error).rpartition(_DEBUG)[2]
    if (code := _CODE.search(raw)) is not None and code[1] in _CODES:
        return RequestFailure(*_CODES[code[1]], is_temporary=False, is_of_server=True)
    if isinstance(error, FileNotFoundError):
        return status_failure(404)
    if (key := _BAD_KEY.search(str(error).partition(_DEBUG)[0])) is not None:
        return bad_key(key[1])
    debug = _STRING.sub('""', _URI.sub("", raw))
    if (status := _STATUS.search(debug)) is not None:
        return status_failure(int(status[1]))
    if type(error).__name__ in {"PermissionDeniedError", "UnauthenticatedError"}:
        return status_failure(403)
    if "TimedOut" in debug:
        what = "answer stalled" if "kind: Body" in debug else "no answer in time"
        return RequestFailure(what, f": the request took longer than {limit_seconds:.3g} s")
    if _DNS.search(raw):
        return RequestFailure("name not resolved", ": DNS knows no address of the endpoint")
    if "BareRedirect" in debug:
        return RequestFailure(*_REGION, is_temporary=False, is_of_server=True)
    if "TooManyRedirects" in debug:
        return RequestFailure("redirect loop", is_temporary=False)
    if "InvalidCertificate" in debug:
        return RequestFailure("certificate not trusted", is_temporary=False, is_of_server=True)
    if "MissingContentLength" in debug:
        return RequestFailure("answer without a length", ": the server sends no Content-Length", is_temporary=False)
    if "NotPartial" in debug:
        return RequestFailure(
            "server ignores ranges", ": it sent the whole object. Shards need ranges", is_temporary=False
        )
    if _is_panic(error):
        return RequestFailure("obstore failed", ": see what it wrote to standard error", is_temporary=False)
    for word, what in _KINDS.items():
        if re.search(rf"\b{word}\b", debug):
            return RequestFailure(what)
    return RequestFailure("cannot be read", f" ({type(error).__name__})", is_temporary="HttpError" in debug)
