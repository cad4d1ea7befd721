"""The rows of the table of bench_own_code.py."""

from statistics import median

from records import latest
from served_rows import with_spread

__all__ = ["OWN_CODE_HEADER", "own_code_rows"]

OWN_CODE_HEADER = ["", "sizes of the photographs", "mpload, samples/s", "DataLoader, samples/s", "ratio", "page faults"]


def own_code_rows() -> list[list[str]]:
    """Return the rates of the same code in both loaders, their ratio, and the page faults of a sample in each."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    faults: dict[tuple[str, str], dict[str, float]] = {}
    for record in latest("own_code"):
        case, figures = record["case"], record["figures"]
        key = case["code"], case["sizes"]
        found.setdefault(key, {})[case["contestant"]] = figures["samples_per_second"]
        faults.setdefault(key, {})[case["contestant"]] = figures["page_faults_per_sample"]
    rows = []
    for (code, sizes), rates in found.items():
        ours, theirs = rates["mpload"], rates["DataLoader"]
        ratio = median(mine / other for mine, other in zip(ours, theirs, strict=True))
        both = f"{faults[code, sizes]['mpload']:.0f} and {faults[code, sizes]['DataLoader']:.0f}"
        rows.append([code, sizes, with_spread(ours), with_spread(theirs), f"{ratio:.2f}", both])
    return rows
