"""The readings of a monitor: bounded in number, and written as CSV and Parquet."""

import csv
from pathlib import Path

import pytest
from pyarrow import parquet

from mpload.errors import ArgumentError
from mpload.memory.monitor import MemoryMonitor, Reading, write_csv, write_parquet


@pytest.mark.slow
def test_the_number_of_readings_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpload.memory.monitor._MAX_READINGS", 16)
    monitor = MemoryMonitor()
    for _ in range(200):
        monitor.read()
        assert len(monitor.readings) < 16
    seconds = [reading.seconds for reading in monitor.readings]
    assert seconds == sorted(seconds)
    assert monitor.peak.pss_bytes >= max(reading.total.pss_bytes for reading in monitor.readings)


def test_the_csv_has_a_line_for_each_reading_and_process(tmp_path: Path) -> None:
    readings = [MemoryMonitor().read() for _ in range(3)]
    write_csv(readings, tmp_path / "memory.csv")
    with (tmp_path / "memory.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(reading.processes) for reading in readings)
    assert int(rows[0]["pss_bytes"]) == readings[0].processes[0].pss_bytes


def test_the_parquet_file_has_the_same_contents_as_the_csv(tmp_path: Path) -> None:
    readings = [MemoryMonitor().read() for _ in range(3)]
    write_csv(readings, tmp_path / "memory.csv")
    write_parquet([*readings, Reading(seconds=9.0, processes=readings[0].processes)], tmp_path / "memory.parquet")
    rows = parquet.read_table(tmp_path / "memory.parquet").to_pylist()
    with (tmp_path / "memory.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [{name: str(value) for name, value in row.items()} for row in rows[: len(lines)]] == lines
    assert rows[-1]["seconds"] == 9.0
    assert rows[-1]["system_limit_bytes"] is None


def test_an_interval_of_zero_is_refused() -> None:
    with pytest.raises(ArgumentError, match="interval_seconds must be positive, got 0"):
        MemoryMonitor(interval_seconds=0)
