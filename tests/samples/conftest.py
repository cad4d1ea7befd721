"""Fixtures for the tests of samples."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.caches import NUM_FILES


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """An index of files of 1 to 60 kB, about 3.5 MB in all."""
    rng = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    for number in range(NUM_FILES):
        (tmp_path / "data" / f"{number}.bin").write_bytes(rng.bytes(int(rng.integers(1_000, 60_000))))
    path = tmp_path / "all.txt"
    path.write_text("".join(f"data/{number}.bin {number}\n" for number in range(NUM_FILES)))
    return path
