"""Sizes, counts, durations and facts: parsed from what people write and formatted for people to read."""

import re
from collections.abc import Mapping
from html import escape

from mpload.errors import ArgumentError

__all__ = [
    "GIB",
    "KIB",
    "MIB",
    "format_bytes",
    "format_count",
    "format_counted",
    "format_facts",
    "format_seconds",
    "html_table",
    "parse_bytes",
    "printable",
]

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_FACTORS = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "kib": KIB,
    "m": 10**6, "mb": 10**6, "mib": MIB,
    "g": 10**9, "gb": 10**9, "gib": GIB,
    "t": 10**12, "tb": 10**12, "tib": 1 << 40,
}  # fmt: skip
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_bytes(text: str | int) -> int:
    """Return the size in bytes that `text` stands for: `"4GiB"`, `"1.5 MB"`, `"512"` or an integer.

    Raises:
        ArgumentError: `text` is not a size, or is negative.
    """
    if isinstance(text, int):
        if text < 0:
            raise ArgumentError(f"a size must not be negative, got {text}")
        return text
    given: object = text
    match = _SIZE.fullmatch(given) if isinstance(given, str) else None
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ArgumentError(f"{text!r} is not a size in bytes. Write a number and a unit: '4GiB', '500 MB', '1048576'")
    return int(float(match[1]) * factor)


def format_bytes(num_bytes: float) -> str:
    """Return `num_bytes` in the largest binary unit in which it is at least 1: `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def format_count(count: int) -> str:
    """Return `count` with thousands separators: `1,281,167`."""
    return f"{count:,}"


def format_counted(count: int, noun: str) -> str:
    """Return a count and its noun, singular or plural: `1 worker`, `1,024 workers`, `3 batches`."""
    ending = "" if count == 1 else "es" if noun.endswith(("s", "x", "ch")) else "s"
    return f"{format_count(count)} {noun}{ending}"


def format_seconds(seconds: float) -> str:
    """Return a duration in readable units: `340 ms`, `12.3 s`, `4 min 10 s`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def format_facts(title: str, facts: Mapping[str, str]) -> str:
    """Return facts formatted as a `repr`: `<Index train.txt: samples 1,281,167, columns image:path label:int>`."""
    return f"<{title}: {', '.join(f'{name} {value}' for name, value in facts.items())}>"


def html_table(title: str, facts: Mapping[str, str]) -> str:
    """Return facts as a small HTML table for a notebook. All text is escaped."""
    cell = "style='text-align: left'"
    rows = (f"<tr><th {cell}>{escape(name)}</th><td {cell}>{escape(value)}</td></tr>" for name, value in facts.items())
    return f"<table><caption {cell}>{escape(title)}</caption>{''.join(rows)}</table>"


def printable(path: str) -> str:
    r"""Return `path` in a form that can be printed and logged: on one line, and harmless to a terminal.

    Bytes that are not UTF-8 become `\udcff`, and control characters become `\n`, `\x1b` and the like.
    """
    plain = _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), path)
    return plain.encode("utf-8", "backslashreplace").decode()
