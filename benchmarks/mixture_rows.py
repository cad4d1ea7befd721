"""The rows of the table of bench_mixture_peers.py."""

from statistics import median

from records import Record, latest

__all__ = ["MIXTURE_HEADER", "mixture_rows"]

MIXTURE_HEADER = [
    "weights 0.7, 0.2, 0.1",
    "off by, 100 samples",
    "1,000",
    "10,000",
    "reads of a small source's samples",
    "resumed: 0 workers",
    "2 workers",
    "2 workers, then 3",
    "samples/s",
    "peak memory in MB, 10⁴",
    "3·10⁵",
]


def mixture_rows() -> list[list[str]]:
    """Return how each contestant keeps shares, repeats a source and resumes, the most exact ones first."""
    records = [(record["case"], record["figures"]) for record in latest("mixture_peers", "contestant", "measure")]
    peaks = {case["contestant"]: figures for case, figures in records if case["measure"] == "memory"}
    rows = []
    for case, figures in sorted((each for each in records if each[0]["measure"] == "exactness"), key=_rank):
        if "failed" in figures:
            rows.append([case["contestant"], figures["failed"], *["-"] * (len(MIXTURE_HEADER) - 2)])
            continue
        fewest, most = figures["fewest_and_most_times"]
        rows.append(
            [
                case["contestant"],
                *(f"{off:.1f}" for off in figures["excess_samples"].values()),
                f"{fewest} to {most}",
                *(_resumed(case, outcomes) for outcomes in figures["resumed"].values()),
                f"{median(figures['samples_per_second']):,.0f}",
                *(_megabytes(peaks.get(case["contestant"], {}), name) for name in ("peak_bytes", "peak_bytes_of_many")),
            ]
        )
    return rows


def _rank(record: tuple[Record, Record]) -> tuple[int, float]:
    case, figures = record
    if "failed" in figures:
        return 1, 0.0
    num_exact = sum(_resumed(case, outcomes) == "exact" for outcomes in figures["resumed"].values())
    return -num_exact, figures["excess_samples"]["10000"]


def _resumed(case: Record, outcomes: dict[str, str]) -> str:
    """Return whether a killed run goes on exactly, from a state of the first epoch and from one of a later epoch."""
    if case["note"] == "has no state":
        return "no state"
    early, late = (
        "exact" if outcome == "exact" else "error" if outcome.startswith("error") else "other samples"
        for outcome in outcomes.values()
    )
    return early if early == late else f"{early}; later epochs: {late}"


def _megabytes(figures: Record, name: str) -> str:
    return f"{figures[name] / 1e6:,.0f}" if name in figures else "-"
