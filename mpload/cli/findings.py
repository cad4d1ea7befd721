"""The findings of a check, written to a file as they occur."""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from mpload.errors import StorageError
from mpload.index.publishing import file_at
from mpload.ingest.checking import Finding
from mpload.units import format_count, format_counted, printable

__all__ = ["Findings", "write_findings"]

_NUM_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The number of findings, the first few of them, and the JSON lines file that lists all; None without findings."""

    num_findings: int
    first: tuple[Finding, ...]
    report: Path | None

    def __str__(self) -> str:
        if not self.num_findings:
            return "checked: no problems found"
        lines = [f"checked: {format_counted(self.num_findings, 'finding')}, listed in {self.report}"]
        lines += [f"  {finding}" for finding in self.first]
        if self.num_findings > len(self.first):
            lines.append(f"  and {format_count(self.num_findings - len(self.first))} more")
        return "\n".join(lines)


def write_findings(findings: Iterable[Finding], report: Path) -> Findings:
    """Write each finding to `report` as a line of JSON. Replace an older report; delete it if there are no findings.

    If `report` is a symbolic link, this is done to the file that it leads to, and the link stays.

    Raises:
        ArgumentError: there is something at `report` that is not a regular file.
        StorageError: the report cannot be written.

    Memory: constant.
    """
    first: list[Finding] = []
    num_findings = 0
    target = file_at(report)
    file = None
    with _errors_named(report):
        if target.exists():
            os.truncate(target, 0)  # not deleted yet, so that a new report keeps its permissions
    try:
        for finding in findings:
            with _errors_named(report):
                file = file or target.open("w", encoding="utf-8")
                file.write(json.dumps(asdict(finding)) + "\n")
            num_findings += 1
            if len(first) < _NUM_SHOWN:
                first.append(finding)
        if file is not None:
            with _errors_named(report):
                file.close()
    finally:
        if file is None:
            target.unlink(missing_ok=True)
        else:
            with suppress(OSError):  # the error that ended the loop says more
                file.close()
    return Findings(num_findings=num_findings, first=tuple(first), report=report if file is not None else None)


@contextmanager
def _errors_named(report: Path) -> Iterator[None]:
    """Raise errors of writing the report as `StorageError`."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{printable(str(report))}: the findings cannot be written: {error.strerror or error}. Free some space, or "
            "name another file: --report FILE"
        ) from error
