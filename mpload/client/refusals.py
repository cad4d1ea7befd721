"""Why a server and a loader do not fit together, in words."""

from collections.abc import Sequence

from mpload.client.protocol import Description

__all__ = ["differences", "plain"]

_MAX_CHARACTERS = 300


def plain(text: str) -> str:
    """Return a text of a server as one that may go to a terminal: control characters as escapes."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def differences(ours: Description, theirs: Description) -> str:
    """Return what differs between the samples that a loader wants and those that a server makes."""
    if ours.version != theirs.version:
        return (
            f"speaks version {theirs.version} of the protocol, and this loader version {ours.version}. Use the same "
            "version of mpload on both"
        )
    found = []
    if ours.index != theirs.index:
        found.append(f"its index is {plain(theirs.index):.{_MAX_CHARACTERS}}, not {ours.index:.{_MAX_CHARACTERS}}")
    if ours.pipeline != theirs.pipeline:
        its, other = plain(_around(theirs.pipeline, ours.pipeline)), _around(ours.pipeline, theirs.pipeline)
        found.append(f"its pipeline is {its}, not {other}")
    if ours.fields != theirs.fields:
        found.append(f"its samples have {_only(theirs.fields, ours.fields)}, not {_only(ours.fields, theirs.fields)}")
    told = "; ".join(found) or "its answer does not say how"
    return f"makes other samples than this loader wants: {told}. Start the server with the same dataset"


def _around(text: str, other: str) -> str:
    """Return the part of a text in which it differs from another one, with a little before it."""
    same = next(
        (place for place, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other))
    )
    first = max(0, same - 60)
    part = text[first : first + _MAX_CHARACTERS]
    return f"{'...' * (first > 0)}{part}{'...' * (first + _MAX_CHARACTERS < len(text))}"


def _only(fields: Sequence[str], others: Sequence[str]) -> str:
    return (
        ", ".join(f"{field!r:.{_MAX_CHARACTERS}}" for field in fields if field not in others)
        or "the same in another order"
    )
