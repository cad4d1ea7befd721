"""Damaged, truncated and replaced sidecars and texts: an error or a rebuilt sidecar, never wrong data."""

import contextlib
import shutil
import subprocess
import sys
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpload import Index, open_index
from mpload.errors import IndexChangedError, SidecarError
from mpload.index.columns import Cell
from mpload.index.index import header_of, sidecar_of
from mpload.index.lookup import BATCH_ROWS, SidecarFile, checks_of
from mpload.index.sidecar import SIDECAR_VERSION, rewrite_sidecar
from mpload.ingest.checking import Finding, check_index
from mpload.ingest.image_sizes import measure_sizes
from tests.support.index_texts import expected, make_text


@pytest.mark.parametrize("keep", [0, 1, 100, 1000, -1])
def test_a_truncated_sidecar_is_rebuilt(tmp_path: Path, keep: int) -> None:
    text = make_text(tmp_path / "train.txt", 1000)
    sidecar = sidecar_of(open_index(text)).path
    sidecar.write_bytes(sidecar.read_bytes()[:keep])
    assert open_index(text)[999].cells == expected(999)


def test_a_sidecar_of_another_text_or_version_is_rebuilt(tmp_path: Path) -> None:
    text = make_text(tmp_path / "train.txt", 1000)
    other = make_text(tmp_path / "other.txt", 500)
    sidecar = sidecar_of(open_index(text)).path
    shutil.copy(sidecar_of(open_index(other)).path, sidecar)
    assert len(open_index(text)) == 1000
    version = b"%d\0\0\0\x0e\0\0\0mpload.version"  # value, length of the key, key
    assert version % SIDECAR_VERSION in sidecar.read_bytes()
    sidecar.write_bytes(sidecar.read_bytes().replace(version % SIDECAR_VERSION, version % (SIDECAR_VERSION - 1)))
    assert len(open_index(text)) == 1000


@pytest.fixture(scope="module")
def sized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index whose files exist."""
    folder = tmp_path_factory.mktemp("sized")
    (folder / "d").mkdir()
    for number in range(50):
        (folder / f"d/{number}.jpg").write_bytes(bytes(number))
    return make_text(folder / "train.txt", 50)


def facts(index: Index) -> tuple[str, list[int], list[tuple[Cell, ...]]]:
    return index.fingerprint, index.labels[:].tolist(), [record.cells for record in index]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_small_sidecar_is_rebuilt(sized: Path, data: st.DataObject) -> None:
    index = open_index(sized)
    want = facts(index)
    bad = bytearray(sidecar_of(index).path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        bad[data.draw(st.integers(0, len(bad) - 1))] ^= data.draw(st.integers(1, 255))
    sidecar_of(index).path.write_bytes(bad[: data.draw(st.integers(0, len(bad)))] if data.draw(st.booleans()) else bad)
    assert facts(open_index(sized)) == want


@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("flipped", [1, 128])
def test_any_damaged_byte_of_a_small_sidecar_is_detected_on_opening(sized: Path, flipped: int, step: int) -> None:
    index = open_index(sized)
    want, path = facts(index), sidecar_of(index).path
    good = path.read_bytes()
    for place in range(0, len(good), step):
        bad = bytearray(good)
        bad[place] ^= flipped
        path.write_bytes(bad)
        assert facts(open_index(sized)) == want, place


@pytest.mark.parametrize("flipped", [1, 128])
def test_a_byte_damaged_while_in_use_never_leads_to_wrong_values(sized: Path, flipped: int) -> None:
    measure_sizes(open_index(sized))
    index = open_index(sized)
    want, path = facts(index)[2], sidecar_of(index).path
    assert index.nbytes is not None
    columns = {column: column[:].tolist() for column in (index.labels, index.nbytes)}
    good = path.read_bytes()
    causes = []
    with path.open("r+b") as file:
        for place in range(len(good)):
            file.seek(place)
            file.write(bytes([good[place] ^ flipped]))
            file.flush()
            for column, values in columns.items():
                try:
                    assert column[:].tolist() == values, place
                except SidecarError as error:
                    causes.append(str(error))
            for sample_id in (0, 1, 48, 49):  # one by one, because a neighbour would reveal a wrong offset
                with contextlib.suppress(IndexChangedError):
                    assert [index[sample_id].cells] == want[sample_id : sample_id + 1], place
            file.seek(place)
            file.write(good[place : place + 1])
            file.flush()
    assert len(causes) == 2 * (50 * 8 + 8)  # each byte of labels, sizes and their checksums
    assert all("does not match its checksum" in cause for cause in causes)


def test_damage_to_a_large_sidecar_is_detected_when_the_damaged_rows_are_read(large: Index, tmp_path: Path) -> None:
    text = shutil.copy(large.path, tmp_path / "train.txt")
    path = sidecar_of(open_index(text)).path
    offsets = sidecar_of(large).columns["label"]
    with path.open("r+b") as file:
        for start in (offsets.first_bytes, offsets.first_bytes + offsets.stride_bytes, offsets.last_bytes):
            file.seek(start + 8 * 1000)
            file.write(b"\xff")
    labels = open_index(text).labels
    for first in (0, BATCH_ROWS, 2 * BATCH_ROWS):
        assert labels[first : first + 512].tolist() == large.labels[first : first + 512].tolist()
        for ids in (first + 600, [first, first + 1000]):
            with pytest.raises(SidecarError, match=rf"label of samples {first + 512} to {first + 1023} does not"):
                labels[ids]
    with pytest.raises(SidecarError, match="Delete it and open the index again"):
        np.asarray(labels)
    findings = [str(finding) for finding in findings_without_files(open_index(text))]
    assert len(findings) == 1
    assert "does not match its checksum" in findings[0]


def findings_without_files(index: Index) -> list[Finding]:
    """Return faults of the index itself, ignoring those of its files, which do not exist."""
    return [finding for finding in islice(check_index(index, num_workers=1), 600) if finding.path is None]


def test_equal_rows_have_different_checksums_at_other_positions_and_in_other_texts(large: Index) -> None:
    """A faulty disk may return an intact block that belongs somewhere else."""
    rows = large.labels[:512].tobytes()
    assert len({checks_of(rows, row, seed=seed) for row in (0, 512) for seed in (0, 1 << 31)}) == 4


@pytest.mark.processes
@pytest.mark.parametrize(
    ("num_workers", "what"),
    [
        (2, "sidecar"),
        (0, "text"),
        pytest.param(0, "sidecar", marks=pytest.mark.slow),
        pytest.param(2, "text", marks=pytest.mark.slow),
    ],
)
def test_a_file_truncated_while_in_use_raises_an_error_and_causes_no_signal(
    tmp_path: Path, num_workers: int, what: str
) -> None:
    text = make_text(tmp_path / "train.txt", 3000)
    (tmp_path / "d").mkdir()
    for number in range(3000):
        (tmp_path / f"d/{number}.jpg").touch()
    code = (
        "import os, sys, mpload\n"
        "dataset = mpload.MPDataset(sys.argv[1], decode=mpload.RawBytes(as_array=True), batch_size=8, shuffle=True)\n"
        "loader = mpload.MPLoader(dataset, num_workers=int(sys.argv[2]), memory_budget='1GiB')\n"
        "index = dataset.index\n"
        "try:\n"
        "    for number, batch in enumerate(loader):\n"
        "        if number == 2: os.truncate(sys.argv[3], 4096)\n"
        "except mpload.MploadError as error: print(f'{type(error).__name__}: {error}')\n"
        "for ask in (lambda: index.labels[:], lambda: index[-1]):\n"
        "    try: print(len(ask()))\n"
        "    except (mpload.MploadError, TypeError) as error: print(type(error).__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, text, str(num_workers), f"{text}{'.mpx' * (what == 'sidecar')}"],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    message, labels, record = done.stdout.strip().splitlines()
    if what == "sidecar":
        assert message.startswith("SidecarError: ")
        assert "was truncated while it was in use. Delete it and open the index again" in message
        assert (labels, record) == ("SidecarError", "SidecarError")
    else:
        assert message.startswith("IndexChangedError: ")
        assert "changed after it was opened. Open it again" in message
        assert (labels, record) == ("3000", "IndexChangedError")


def test_rows_that_belong_to_another_record_batch_are_detected(large: Index, tmp_path: Path) -> None:
    text = shutil.copy(large.path, tmp_path / "train.txt")
    index = open_index(text)
    offsets, labels = (np.array(SidecarFile(sidecar_of(index)).columns[name]) for name in ("offset", "label"))
    for first in (BATCH_ROWS, len(offsets) // BATCH_ROWS * BATCH_ROWS):
        moved = offsets.copy()
        moved[first:-1] = offsets[first + 1 :]
        rows = {"offset": moved, "label": labels}
        with pytest.raises(SidecarError, match="do not match the lines"):
            rewrite_sidecar(
                index.path,
                header_of(index),
                partial(iter, [rows]),
                num_samples=len(index),
                digest=sidecar_of(index).digest,
            )
    assert open_index(text)[BATCH_ROWS].cells == expected(BATCH_ROWS)
