"""Workers that hang, are killed or wait during a native call that reads many files: the right sample is blamed."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpload import ErrorPolicy, MPDataset, MPLoader, RawBytes, Topology
from mpload.errors import MploadWarning
from mpload.transport.batches import PoolOptions
from tests.support.chunks import OneWorker
from tests.support.native import needs_native
from tests.support.slow_disk import SlowDisk, can_mount, mounted
from tests.support.transport_kills import kill_a_worker

pytestmark = [
    needs_native,
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux" or not can_mount(), reason="mounting a slow disk needs root"),
]

NUM_FILES = 64
BAD = 41


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(NUM_FILES):
        (tmp_path / f"{number}.bin").write_bytes(b"%d" % number)
    (tmp_path / "contents").mkdir()
    (tmp_path / "contents" / "0").write_bytes(b"slow")
    return tmp_path


def disk(folder: Path, read_seconds: float) -> SlowDisk:
    return SlowDisk(contents=folder / "contents", num_files=NUM_FILES, read_seconds=read_seconds)


@pytest.fixture
def hanging(folder: Path) -> Iterator[Path]:
    """Make an index of files. One file takes longer to read than a worker may spend on a sample."""
    names = [f"{number}.bin" for number in range(NUM_FILES)]
    names[BAD] = "hanging/0"
    text = folder / "index.txt"
    text.write_text(
        "#mpload 1\n#columns file:path label:int\n" + "".join(f"{name}\t{i}\n" for i, name in enumerate(names))
    )
    with mounted(disk(folder, 1.5), folder / "hanging"):  # the kernel lets no process die before such a read ends
        yield text


def dataset(text: Path, *, batch_size: int = NUM_FILES, **options: Any) -> MPDataset:
    return MPDataset(text, decode=RawBytes(), batch_size=batch_size, topology=Topology(), **options)


@pytest.mark.slow
def test_a_file_that_hangs_is_found_by_the_sample_that_the_native_call_had_reached(
    hanging: Path, tmp_path: Path
) -> None:
    policy = ErrorPolicy(action="skip", report=tmp_path / "report.jsonl")
    options = PoolOptions(sample_timeout_seconds=0.5)
    with MPLoader(dataset(hanging, on_error=policy), num_workers=1, options=options) as loader:
        with pytest.warns(MploadWarning, match="a bad sample"):
            ((data, labels),) = list(loader)
        assert labels.tolist() == [number for number in range(NUM_FILES) if number != BAD]
        assert data == [b"%d" % number for number in labels.tolist()]
        # Two for the chunk, which is then split around the sample, and two for the sample alone.
        assert loader.stats().num_deaths == 4


def test_killed_readers_lose_and_repeat_no_sample(folder: Path) -> None:
    text = folder / "index.txt"
    names = "".join(f"slow/{number}\t{number}\n" for number in range(NUM_FILES))
    text.write_text("#mpload 1\n#columns file:path label:int\n" + names)
    found = []
    with mounted(disk(folder, 0.005), folder / "slow"), MPLoader(dataset(text, batch_size=4), num_workers=2) as loader:
        for data, labels in loader:
            found += labels.tolist()
            assert data == [b"slow"] * 4
            if labels[0] % 16 == 0:
                kill_a_worker(loader.pids)
        assert loader.stats().num_deaths
    assert found == list(range(NUM_FILES))


def test_a_disk_that_is_slow_is_no_stall_and_is_read_ahead(folder: Path) -> None:
    text = folder / "index.txt"
    text.write_text("#mpload 1\n#columns file:path\n" + "".join(f"slow/{number}\n" for number in range(NUM_FILES)))
    with mounted(disk(folder, 0.01), folder / "slow"):
        worker = OneWorker(dataset(text))
        reached: list[int] = []
        worker.fill(0, 0, NUM_FILES, at=reached.append)
        assert worker.work.pipeline.ahead.is_active
        assert reached[1] <= 16, "a few slow reads are enough to begin reading ahead"
        assert [np.asarray(value).tobytes() for value in worker.arrays["file"]] == [b"slow"] * NUM_FILES
