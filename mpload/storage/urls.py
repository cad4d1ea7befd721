"""URLs: whether one can be read, and how to print one without its secrets."""

import re
from urllib.parse import SplitResult, unquote, urlsplit

from mpload.errors import ArgumentError
from mpload.units import printable

__all__ = ["check_url", "climbs", "is_url", "redacted"]

_BUCKETS = ("s3", "gs", "az")
_SCHEMES = (*_BUCKETS, "http", "https")


def is_url(path: str) -> bool:
    """Return whether a path is a URL."""
    return "://" in path


def check_url(url: str) -> None:
    """Raise `ArgumentError` unless `url` can be read and contains no secret."""
    scheme, parts = url.partition("://")[0], _parts(url)
    if parts is None or scheme not in _SCHEMES or not parts.netloc:
        raise ArgumentError(
            f"{redacted(url)}: is not a URL with scheme {', '.join(_SCHEMES[:-1])} or {_SCHEMES[-1]} and a valid host"
        )
    if "@" in parts.netloc or (parts.query and scheme.startswith("http")):
        raise ArgumentError(
            f"{redacted(url)}: contains a password, or a query that may be a signature. An index must not contain "
            "secrets: write s3://BUCKET/KEY, and pass credentials in the provider's environment variables"
        )


def climbs(path: str) -> bool:
    """Return whether a path or URL contains `..`, also if it is percent-encoded, since servers decode it."""
    return ".." in path.split("/") or ".." in unquote(path).split("/")


def _parts(url: str) -> SplitResult | None:
    """Return the parts of a URL; None if its host or port is not valid. Then either may be a part of a password."""
    try:
        parts = urlsplit(f"https://{url.partition('://')[2]}")  # of any scheme, even none
        _ = parts.port
    except ValueError:
        return None
    return parts


def redacted(url: str) -> str:
    """Return a URL without its password and query, so that it can be printed. A path is returned as it is."""
    scheme, is_there, _ = url.partition("://")
    if is_there and _parts(url) is None:
        return f"{printable(scheme)}://..."
    plain = url.partition("?")[0] if is_there and scheme not in _BUCKETS else url
    return printable(re.sub(r"(://)[^/]*@", r"\1", plain))
