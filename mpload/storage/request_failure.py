"""The failure of one request to a server."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from mpload.units import format_count

__all__ = ["RequestFailure", "proxy_failure", "seconds_of", "status_failure", "too_long"]

_MAX_RETRY_AFTER_SECONDS = 86_400.0
_TEMPORARY = {408, 425, 429, 500, 502, 503, 504}
_OVERLOAD = {429, 503}
_UNSENT = {"connection refused", "host unreachable", "name not resolved", "no connection in time"}


class RequestFailure(Exception):  # noqa: N818  it becomes a part of the message of an error, or is retried
    """A request failed. No text of a server is a part of it, because that may contain signed requests.

    Args:
        what: a few words, by which failures are counted: `connection refused`.
        detail: what else is known, to be written behind `what`.
        text: a sentence that says it all, in place of `what` and `detail`.
        is_temporary: whether the same request may succeed later.
        is_of_server: whether every request to this server fails in this way.
        is_overload: whether the server has said that it cannot serve any object now.
        wait_seconds: how long the server asks to wait before the next request; None if it does not say.
    """

    def __init__(
        self,
        what: str,
        detail: str = "",
        *,
        text: str | None = None,
        is_temporary: bool = True,
        is_of_server: bool = False,
        is_overload: bool = False,
        wait_seconds: float | None = None,
    ) -> None:
        super().__init__(text or f"{what}{detail}")
        self.what = what
        self.is_temporary = is_temporary
        self.is_of_server = is_of_server
        self.is_overload = is_overload
        self.wait_seconds = wait_seconds

    @property
    def is_missing(self) -> bool:
        """Whether there is no such object."""
        return self.what in {"status 404", "status 410"}

    @property
    def is_unsent(self) -> bool:
        """Whether there was no connection, so that the object cannot be to blame."""
        return self.what in _UNSENT

    @property
    def is_answer(self) -> bool:
        """Whether the server answered, and only refuses this object."""
        return not self.is_temporary and not self.is_of_server


def status_failure(status: int, *, wait_seconds: float | None = None) -> RequestFailure:
    """Return the failure of a request that was answered with an HTTP status that is not a success."""
    status_line = _status_line(status)
    if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        return proxy_failure(status, "the proxy")
    if status in {404, 410}:
        text = "no such object. Does #root of the index point to the right place, or was the object deleted?"
    elif status in {401, 403}:
        text = (
            "access is denied. Set up credentials as for the provider's own tools (AWS_ACCESS_KEY_ID, AWS_PROFILE, "
            "GOOGLE_APPLICATION_CREDENTIALS, a role). For a public bucket, set AWS_SKIP_SIGNATURE=true. (The server "
            f"answered {status_line})"
        )
    elif status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        text = "the span lies past the end of the object. Build the index again"
    else:
        text = f"the server answered {status_line}"
    return RequestFailure(
        f"status {status}",
        text=text,
        is_temporary=status in _TEMPORARY,
        is_overload=status in _OVERLOAD,
        wait_seconds=wait_seconds if status in _OVERLOAD else None,
    )


def proxy_failure(status: int, proxy: str) -> RequestFailure:
    """Return the failure of a request that a proxy has refused to pass on."""
    advice = "Can it reach the server? To connect without it, list the host in no_proxy"
    if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        advice = "It wants a name and a password: set http_proxy and https_proxy to http://NAME:PASSWORD@HOST:PORT"
    return RequestFailure(
        f"proxy status {status}",
        text=f"{proxy} answered {_status_line(status)}. {advice}",
        is_temporary=status in _TEMPORARY,
        is_of_server=status not in _TEMPORARY,
    )


def too_long(num_bytes: int, wanted: int) -> RequestFailure:
    """Return the failure of a request that got more bytes than it asked for. Which of them to use is unknown."""
    return RequestFailure(
        "wrong range",
        f": {format_count(wanted)} bytes were requested, and {format_count(num_bytes)} were sent",
        is_temporary=False,
    )


def seconds_of(retry_after: str | None) -> float | None:
    """Return the seconds of a Retry-After header, which is a number or a date; None if it is missing or neither."""
    if retry_after is None:
        return None
    if retry_after.strip().isdecimal():
        return min(float(retry_after), _MAX_RETRY_AFTER_SECONDS)
    try:
        until = parsedate_to_datetime(retry_after)
        seconds = ((until if until.tzinfo else until.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds()
    except (ValueError, OverflowError):
        return None
    return min(max(0.0, seconds), _MAX_RETRY_AFTER_SECONDS)


def _status_line(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
