"""The table of faults of web servers: what each of them must lead to."""

from dataclasses import dataclass
from enum import StrEnum

from tests.support.web_faults import AT_ONCE, EVERY

__all__ = ["BAD", "FAULTS", "LIMITS", "NO_HOST", "Fault", "Outcome", "ServerKind"]

NO_HOST = "http://no-such-host.invalid"

BAD = "05.jpg"
"""The file with the fault, if a single one has it."""
LIMITS = {"request_timeout_seconds": 0.5, "retry_seconds": 2.0}


class Outcome(StrEnum):
    """What an epoch leads to."""

    ALL_READ = "all samples"
    BAD_OBJECT = "one bad sample"
    """An error under "raise", one sample less under "skip"."""
    OUTAGE = "outage"
    """An error, also under "skip"."""


class ServerKind(StrEnum):
    """What kind of server there is."""

    PLAIN = "plain"
    UNTRUSTED = "untrusted"
    """It has a certificate that no authority has signed."""
    NONE = "none"
    """There is none: DNS does not know its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault, and what it must lead to."""

    name: str
    fault: str
    """As `tests.support.web_faults` names it."""
    outcome: Outcome
    message: str = ""
    """A regular expression: the message of the error."""
    seconds: float = 0.0
    bad: str = BAD
    has_spans: bool = False
    """Whether samples are spans of a shard."""
    server: ServerKind = ServerKind.PLAIN
    is_of_decoder: bool = False
    """Whether the error comes from the decoder, which knows the file but not the URL."""
    is_fast: bool = False
    """Whether it is also tested where time is short."""
    scale: float = 1.0
    """Factor of the time limits in tests, where other programs run: the server needs much processor time."""


def _bad(name: str, fault: str, message: str, *, is_fast: bool = False) -> Fault:
    return Fault(name=name, fault=fault, outcome=Outcome.BAD_OBJECT, message=message, is_fast=is_fast)


def _survived(name: str, fault: str, *, seconds: float = 0.0, bad: str = BAD, is_fast: bool = False) -> Fault:
    return Fault(name=name, fault=fault, outcome=Outcome.ALL_READ, seconds=seconds, bad=bad, is_fast=is_fast)


def _outage(name: str, fault: str, message: str, *, seconds: float = 1000.0) -> Fault:
    return Fault(name=name, fault=fault, outcome=Outcome.OUTAGE, message=message, seconds=seconds, bad=EVERY)


_TRIED = r"\(\d+ attempts in .* s.*; retry_seconds=2\)\. The server answers other requests"
_NONE = r"\(\d+ attempts? in .* s.*; retry_seconds=\d+\)\. The server answers no other request either"
_NO_ANSWER = r"no answer in time: none from 127\.0\.0\.1:\d+ within 0\.\d+ s"

FAULTS = (
    _survived("stall, once", "stall once", is_fast=True),
    _survived("stall that ends after 0.3 s", "stall", seconds=0.3),
    _bad("stall of an object forever", "stall", f"{_NO_ANSWER} {_TRIED}"),
    Fault(
        name="stall of the server forever",
        fault="stall",
        outcome=Outcome.OUTAGE,
        message=f"{_NO_ANSWER} {_NONE}",
        bad=EVERY,
        is_fast=True,
    ),
    _bad("drip, 1 kB/s", "drip", rf"answer stalled after \d+ bytes in 0\.\d+ s {_TRIED}", is_fast=True),
    Fault(
        name="drip of the server, 1 kB/s",
        fault="drip",
        outcome=Outcome.OUTAGE,
        message=rf"answer stalled after [\d,]+ bytes in \d[\d.]* s {_NONE}",
        bad=EVERY,
        scale=4.0,
    ),
    Fault(
        name="drip of the server from the first answer on",
        fault="drip",
        outcome=Outcome.OUTAGE,
        message=rf"answer stalled after [\d,]+ bytes in \d[\d.]* s {_NONE}",
        bad=AT_ONCE,
        scale=4.0,
    ),
    _bad("drip of headers", "drip of headers", f"{_NO_ANSWER} {_TRIED}"),
    _survived("stall in the body, once", "stall in the body once"),
    _bad("stall in the body forever", "stall in the body", rf"answer stalled after [\d,]+ bytes in 0\.\d+ s {_TRIED}"),
    _survived("connections refused for 0.5 s", "outage", seconds=0.5, bad=EVERY),
    _survived("connections refused for 1.5 s", "outage", seconds=1.5, bad=EVERY, is_fast=True),
    _outage("connections refused forever", "outage", rf"connection refused by 127\.0\.0\.1:\d+: .* {_NONE}"),
    _survived("connection reset, once", "reset once"),
    _bad("connection reset always", "reset", rf"connection reset by 127\.0\.0\.1:\d+ {_TRIED}"),
    _bad(
        "connection closed before the answer",
        "closed before the answer",
        rf"connection closed by 127\.0\.0\.1:\d+ before the answer {_TRIED}",
    ),
    _bad("redirect loop", "redirect loop", "redirect loop: more than 10 redirects"),
    _bad("status 400", "status 400", "the server answered 400 Bad Request"),
    _bad("status 401", "status 401", r"access is denied.*\(The server answered 401 Unauthorized\)"),
    _bad("status 403", "status 403", r"access is denied.*\(The server answered 403 Forbidden\)", is_fast=True),
    _bad("status 404", "status 404", "no such object"),
    _survived("status 429 for 1 s", "status 429", seconds=1.0, bad=EVERY),
    _survived("status 429 for 1 s, Retry-After: 1", "status 429 after 1", seconds=1.0, bad=EVERY, is_fast=True),
    _bad("status 500 always", "status 500", f"the server answered 500 Internal Server Error {_TRIED}"),
    _survived("status 500 for 1 s", "status 500", seconds=1.0, bad=EVERY),
    _survived("status 502 for 1 s", "status 502", seconds=1.0, bad=EVERY),
    _survived("status 503 for 1.5 s", "status 503", seconds=1.5, bad=EVERY),
    _outage("status 503 forever", "status 503", f"the server answered 503 Service Unavailable {_NONE}"),
    _outage(
        "status 503, Retry-After: 30",
        "status 503 after 30",
        r"(the server answered 503 Service Unavailable|server overloaded), and asks to wait for [23]\d[\d.]* s more",
    ),
    Fault(
        name="status 503 of an object, Retry-After: 1",
        fault="status 503 after 1",
        outcome=Outcome.BAD_OBJECT,
        message=r"503 Service Unavailable, and asks to wait for .* The server answers other requests",
        scale=4.0,  # good objects are not requested either while the server wants to be left alone
    ),
    _survived("short answer, once", "cut once"),
    _bad("short answer always", "cut", f"answer cut short: .* closed before the end of the answer {_TRIED}"),
    _survived("long answer", "long"),
    _survived("chunked answer", "chunked"),
    _survived("answer without a length", "without length"),
    Fault(
        name="ranges ignored", fault="ignores ranges", outcome=Outcome.ALL_READ, bad=EVERY, has_spans=True, is_fast=True
    ),
    _survived("gzip though refused", "gzip"),
    _bad("web page", "web page", "answer is a web page, not the file: the server says text/html"),
    Fault(
        name="empty file",
        fault="empty",
        outcome=Outcome.BAD_OBJECT,
        message=r"05\.jpg\): not an image: 0 bytes",
        is_of_decoder=True,
    ),
    _bad("not HTTP", "not HTTP", rf"answer is not HTTP: is 127\.0\.0\.1:\d+ a web server\? {_TRIED}"),
    _survived("bandwidth 1 MB/s", "bandwidth", bad=EVERY),
    Fault(
        name="name that DNS does not know",
        fault="",
        outcome=Outcome.OUTAGE,
        message=f"name not resolved: DNS knows no address of no-such-host.invalid .* {_NONE}",
        server=ServerKind.NONE,
    ),
    Fault(
        name="certificate not trusted",
        fault="bandwidth",
        outcome=Outcome.OUTAGE,
        message=r"certificate not trusted: that of 127\.0\.0\.1:\d+ fails verification",
        server=ServerKind.UNTRUSTED,
    ),
)
