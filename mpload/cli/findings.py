"""What a check finds, written down as it is found."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from mpload.ingest.checking import Finding
from mpload.units import format_count

__all__ = ["Findings", "write_findings"]

_NUM_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """How much was found, the first of it, and the file of JSON lines that has it all; None where nothing was found."""

    num_findings: int
    first: tuple[Finding, ...]
    report: Path | None

    def __str__(self) -> str:
        if not self.num_findings:
            return "checked: nothing is wrong"
        noun = "finding" if self.num_findings == 1 else "findings"
        lines = [f"checked: {format_count(self.num_findings)} {noun}, listed in {self.report}"]
        lines += [f"  {finding}" for finding in self.first]
        if self.num_findings > len(self.first):
            lines.append(f"  and {format_count(self.num_findings - len(self.first))} more")
        return "\n".join(lines)


def write_findings(findings: Iterable[Finding], report: Path) -> Findings:
    """Write each finding to `report` as a line of JSON. An older report is replaced, or removed if nothing is found.

    Memory: constant.
    """
    first: list[Finding] = []
    num_findings = 0
    report.unlink(missing_ok=True)
    file = None
    try:
        for finding in findings:
            if file is None:
                file = report.open("w", encoding="utf-8")
            file.write(json.dumps(asdict(finding)) + "\n")
            num_findings += 1
            if len(first) < _NUM_SHOWN:
                first.append(finding)
    finally:
        if file is not None:
            file.close()
    return Findings(num_findings=num_findings, first=tuple(first), report=report if file is not None else None)
