"""What the errors of urllib3 say about a request."""

import errno
import ssl
from http.client import BadStatusLine, IncompleteRead, LineTooLong, RemoteDisconnected
from urllib.parse import urlsplit

from urllib3 import exceptions
from urllib3.connection import HTTPConnection

from mpload.storage.request_failure import RequestFailure
from mpload.units import format_count

__all__ = ["CUT_SHORT", "NoConnectionError", "bad_proxy", "failure_of"]

CUT_SHORT = ("answer cut short", ": the connection was closed before the end of the answer")
_UNREACHABLE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.EADDRNOTAVAIL}
_OTHER_NAME = "Use a name in the URL that the certificate has"
_TLS_ADVICE = {
    9: "Is the clock of this machine right?",
    10: "Renew it, or set the clock of this machine if it is wrong",
    62: _OTHER_NAME,
    64: _OTHER_NAME,
    **dict.fromkeys(range(79, 95), "Make it anew by the rules of RFC 5280, which Python 3.13 and later demand"),
}
"""By OpenSSL's code (X509_V_ERR_...): what to do about a certificate that an authority would not help."""


class NoConnectionError(exceptions.ConnectTimeoutError):
    """A connection was not made in time."""

    def __init__(self, connection: HTTPConnection, step: str) -> None:
        super().__init__(connection, step)
        self.step = step


def failure_of(
    error: Exception, address: str, *, step: str, seconds: float, connect_seconds: float, proxy: str | None = None
) -> RequestFailure:
    """Return what happened, by the class of an exception that urllib3 raised.

    Args:
        error: the exception.
        address: the URL that was requested.
        step: what the request waited for: `answer`, or `rest of the answer`.
        seconds: its time limit.
        connect_seconds: time limit for a connection to be made.
        proxy: what connections are made to, instead of the server.
    """
    server = urlsplit(address)
    origin = f"{server.hostname}:{server.port or (443 if server.scheme == 'https' else 80)}"
    if isinstance(error, exceptions.ProxyError):
        error, origin = error.original_error, proxy or origin
    match error:
        case RequestFailure():
            return error
        case exceptions.ProxySchemeUnsupported():
            return bad_proxy()
        case exceptions.NameResolutionError():
            cause = error.__cause__.strerror if isinstance(error.__cause__, OSError) else "no answer"
            return RequestFailure("name not resolved", f": DNS knows no address of {_host_of(origin)} ({cause})")
        case exceptions.NewConnectionError() if isinstance(error.__cause__, OSError):
            return _failure_of_socket(error.__cause__, origin)
        case NoConnectionError():
            where = proxy or origin
            return RequestFailure(
                "no connection in time", f": none from {where} within {connect_seconds:.3g} s, waiting {error.step}"
            )
        case exceptions.ReadTimeoutError() if step == "answer":
            return RequestFailure("no answer in time", f": none from {origin} within {seconds:.3g} s")
        case exceptions.ReadTimeoutError():
            received = error.__cause__.args[:1] if isinstance(error.__cause__, TimeoutError) else ()
            count = f" after {format_count(received[0])} bytes" if received and isinstance(received[0], int) else ""
            return RequestFailure("answer stalled", f"{count} in {seconds:.3g} s")
        case exceptions.SSLError() if isinstance(error.args[0], ssl.SSLError):
            return _failure_of_tls(error.args[0], origin)
        case exceptions.ProtocolError() if len(error.args) > 1 and isinstance(error.args[1], Exception):
            return _failure_of_socket(error.args[1], origin)
        case exceptions.LocationValueError():  # and of its kind, LocationParseError
            return RequestFailure("redirect to another kind of URL", is_temporary=False)
    return RequestFailure("answer cannot be read", f" ({type(error).__name__})", is_temporary=False)


def _host_of(origin: str) -> str:
    return origin.rpartition(":")[0]


def _failure_of_socket(error: Exception, origin: str) -> RequestFailure:
    match error:
        case ConnectionRefusedError():
            return RequestFailure("connection refused", f" by {origin}: no server listens there")
        case RemoteDisconnected():
            return RequestFailure("connection closed", f" by {origin} before the answer")
        case ConnectionResetError() | BrokenPipeError():
            return RequestFailure("connection reset", f" by {origin}")
        case IncompleteRead():
            return RequestFailure(*CUT_SHORT)
        case BadStatusLine() | LineTooLong():
            return RequestFailure("answer is not HTTP", f": is {origin} a web server?")
        case OSError() if error.errno in _UNREACHABLE:
            return RequestFailure("host unreachable", f": no way to {origin} ({error.strerror})")
        case OSError():
            return RequestFailure("connection failed", f" to {origin} ({error.strerror or type(error).__name__})")
    return RequestFailure("answer cannot be read", f" ({type(error).__name__})", is_temporary=False)


def _failure_of_tls(error: ssl.SSLError, origin: str) -> RequestFailure:
    match error:
        case ssl.SSLCertVerificationError():
            advice = _TLS_ADVICE.get(
                error.verify_code, "Add the certificate of its authority to the file that SSL_CERT_FILE names"
            )
            return RequestFailure(
                "certificate not trusted",
                f": that of {origin} fails verification ({error.verify_message.rstrip('.')}). {advice}",
                is_temporary=False,
                is_of_server=True,
            )
        case ssl.SSLEOFError() | ssl.SSLZeroReturnError():
            return RequestFailure("connection closed", f" by {origin} during TLS")
    return RequestFailure("TLS failed", f" with {origin} ({error.reason or type(error).__name__})")


def bad_proxy() -> RequestFailure:
    """Return the failure of all requests, if the environment names a proxy that cannot be used."""
    return RequestFailure(
        "proxy not supported",
        ". Set http_proxy, https_proxy or all_proxy to http://HOST:PORT, or list the host in no_proxy",
        is_temporary=False,
        is_of_server=True,
    )
