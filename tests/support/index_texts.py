"""Index texts of any size, with records that follow from their sample ids."""

from pathlib import Path

__all__ = ["HEAD", "expected", "make_text"]

HEAD = b"#mpload 1\n#columns image:path label:int\n"


def make_text(path: Path, num_samples: int) -> Path:
    """Write an index text to `path`, and return the path."""
    with path.open("wb") as file:
        file.write(HEAD)
        for start in range(0, num_samples, 100_000):
            stop = min(start + 100_000, num_samples)
            file.write(b"".join(b"d/%d.jpg\t%d\n" % (i, i % 1000) for i in range(start, stop)))
    return path


def expected(sample_id: int) -> tuple[str, int]:
    """Return the cells of a sample in a text made by `make_text`."""
    return f"d/{sample_id}.jpg", sample_id % 1000
