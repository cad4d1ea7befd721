"""What leads to a server of mpload: its URL, and the token that it wants to see."""

from urllib.parse import SplitResult, urlsplit

from mpload.errors import ArgumentError
from mpload.units import format_count

__all__ = ["check_token", "web_parts"]

_MAX_TOKEN = 1000
"""Characters. It comes in a header, whose size is limited."""


def web_parts(url: object) -> SplitResult | None:
    """Return the parts of a URL of the web without a user, a query and a fragment; None if it is anything else."""
    if not isinstance(url, str) or not url.isprintable() or " " in url:
        return None
    try:
        parts = urlsplit(url)
        is_complete = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, or a bad IPv6 address
        return None
    return parts if is_complete and not (parts.query or parts.fragment or "@" in parts.netloc) else None


def check_token(token: object) -> None:
    """Raise `ArgumentError` unless an HTTP header can carry a token. None is none."""
    if token is None:
        return
    if not isinstance(token, str) or not (token.isascii() and token.isprintable() and token.strip() == token != ""):
        raise ArgumentError("token must be printable ASCII text, not empty, without spaces around it, or None")
    if len(token) > _MAX_TOKEN:
        raise ArgumentError(
            f"token may have {format_count(_MAX_TOKEN)} characters, got {format_count(len(token))}. Take a shorter one"
        )
