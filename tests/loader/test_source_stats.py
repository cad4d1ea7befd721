"""`stats().sources`: the samples of each source of a mixture that were delivered, and those that failed."""

import itertools
import os
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpload import ErrorPolicy, Mixture, MPDataset, MPLoader, SampleError, SourceStats
from tests.support.mixtures import mixed, samples, source


def _counted(loader: MPLoader, found: list[tuple[str, int]], *, failed: int = 0) -> None:
    counts = Counter(name[0] for name, _ in found)
    stats = loader.stats().sources
    assert {Path(path).stem: each.num_samples for path, each in stats.items()} == {n: counts[n] for n in "ab"}
    assert [each.num_failed for each in stats.values()] == [0, failed]
    assert sum(each.num_samples for each in stats.values()) == len(found)


def _mixture(folder: Path, *, epoch_samples: int = 60) -> Mixture:
    one, two = source(folder, "a", 40), source(folder, "b", 4)
    return Mixture({one: 2, two: 1}, epoch_samples=epoch_samples)


def _samples_of_whole_batches(loader: MPLoader) -> list[tuple[str, int]]:
    batches, found = iter(loader), list[tuple[str, int]]()
    for _ in range(len(loader)):
        with suppress(SampleError):
            found += samples([next(batches)])
    return found


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_of_delivered_batches_count_for_their_source(tmp_path: Path, num_workers: int) -> None:
    with MPLoader(mixed(_mixture(tmp_path)), num_workers=num_workers) as loader:
        found = samples(itertools.islice(loader, 2))
        _counted(loader, found)
        found += samples(loader)
        _counted(loader, found)
        before = loader.stats()
        rest = samples(loader)
        since = loader.stats().since(before)
        assert sum(each.num_samples for each in since.sources.values()) == len(rest) == 60
        assert "b.txt: " in str(since)


@pytest.mark.processes
@pytest.mark.parametrize("action", ["skip", "substitute"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_failed_samples_count_for_their_source(tmp_path: Path, action: Any, num_workers: int) -> None:
    mixture = _mixture(tmp_path)
    (tmp_path / "b" / "b2").unlink()
    report = tmp_path / "report.jsonl"
    policy = ErrorPolicy(action=action, max_error_fraction=1, report=report)
    with MPLoader(mixed(mixture, on_error=policy), num_workers=num_workers) as loader:
        with pytest.warns(match="a bad sample"):
            found = samples(loader)
        num_failed = len(report.read_text().splitlines())
        assert num_failed >= 4
        assert len(found) == (60 if action == "substitute" else 60 - num_failed)
        _counted(loader, found, failed=num_failed)


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 1])
def test_failed_samples_count_if_their_whole_batch_failed(tmp_path: Path, num_workers: int) -> None:
    mixture = _mixture(tmp_path)
    for number in range(4):
        (tmp_path / "b" / f"b{number}").unlink()
    report = tmp_path / "report.jsonl"
    policy = ErrorPolicy(action="skip", max_error_fraction=1, report=report)
    with MPLoader(mixed(mixture, on_error=policy, batch_size=1), num_workers=num_workers) as loader:
        with pytest.warns(match="a bad sample"):
            found = _samples_of_whole_batches(loader)
        num_failed = len(report.read_text().splitlines())
        assert num_failed == 60 - len(found) > 0
        _counted(loader, found, failed=num_failed)


@pytest.mark.processes
def test_counts_are_exact_after_kills_and_changes_of_weights(tmp_path: Path) -> None:
    mixture = _mixture(tmp_path, epoch_samples=2000)
    found = []
    with MPLoader(mixed(mixture, batch_size=4), num_workers=2) as loader:
        for number, batch in enumerate(loader):
            found += samples([batch])
            if number == 30:
                loader.set_weights(dict(zip(mixture.sources, (1, 1), strict=True)))
            if number in {1, 20, 60}:
                os.kill(next(pid for name, pid in loader.pids.items() if "worker" in name), signal.SIGKILL)
        assert loader.stats().num_deaths >= 1
        assert len(found) == 2000
        _counted(loader, found)


def test_other_datasets_have_no_sources(tmp_path: Path) -> None:
    one = source(tmp_path, "a", 4)
    dataset: MPDataset = MPDataset(one, decode=lambda data: np.frombuffer(data, np.uint8), batch_size=2)
    for given in (MPLoader(dataset, num_workers=0), MPLoader([1, 2], num_workers=0)):
        assert given.stats().sources == {}
        given.close()
    assert str(SourceStats(num_samples=3, num_failed=1)) == "3 samples, 1 failed"
