"""The rows of the table of bench_doctor.py."""

from records import latest

__all__ = ["DOCTOR_HEADER", "doctor_rows"]

DOCTOR_HEADER = ["situation", "culprit found", "first remedy", "predicted gain", "measured gain"]


def doctor_rows() -> list[list[str]]:
    """Return what the doctor found in each situation, and what its first remedy gained."""
    rows = []
    for record in latest("doctor"):
        figures = record["figures"]
        wrong = "" if figures["culprit_is_right"] else " (wrong)"
        remedy = "right" if figures["remedy_is_right"] else "wrong"
        predicted, measured = (
            "-" if gain is None else f"{gain:.1f}" for gain in (figures["predicted_gain"], figures["measured_gain"])
        )
        rows.append(
            [
                record["case"]["situation"],
                figures["found"] + wrong,
                remedy if figures["first_remedy"] else f"none, {remedy}",
                f"{figures.get('bound') or ''} {predicted}".strip(),
                measured,
            ]
        )
    return rows
