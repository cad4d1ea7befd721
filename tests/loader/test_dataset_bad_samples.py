"""Bad samples of an MPDataset are raised, skipped or substituted, and recorded in a report."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from mpload import (
    ErrorPolicy,
    Index,
    MPDataset,
    MPLoader,
    RandomResizedCrop,
    Topology,
    open_index,
)
from mpload.errors import MploadError, MploadWarning, SampleError, TooManyBadSamples
from tests.support.batches import crops


def bad_index(photos: Path, tmp_path: Path) -> Path:
    lines = photos.read_text().splitlines(keepends=True)
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff no image")
    root = f"#root {tmp_path}\n"
    for path in (photos.parent / "train").iterdir():
        (tmp_path / path.name).symlink_to(path)
    lines = [line for line in lines if not line.startswith("#root")]
    head = [line for line in lines if line.startswith("#")]
    body = [line for line in lines if not line.startswith("#")]
    body[5:5] = ["broken.jpg\t0\n", "missing.jpg\t1\n"]
    index = tmp_path / "bad.txt"
    index.write_text("".join([head[0], root, *head[1:], *body]))
    return index


@pytest.fixture
def bad(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    monkeypatch.chdir(tmp_path)
    return open_index(bad_index(photos, tmp_path), allow_outside_root=True)


@pytest.mark.processes
def test_a_bad_sample_raises_with_its_place_and_cause(bad: Index) -> None:
    with pytest.raises(SampleError, match=rf"{bad.path}:10: sample 5 \(broken.jpg\): "):
        list(crops(bad, shuffle=False))
    loader = DataLoader(crops(bad, shuffle=False), batch_size=None, num_workers=2)
    with pytest.raises(SampleError, match=r"sample 5 \(broken.jpg\)"):
        list(loader)


def test_skipped_and_substituted_samples_are_recorded_in_the_report(bad: Index, tmp_path: Path) -> None:
    with pytest.warns(
        MploadWarning, match=r"a bad sample \(skip\); this and further ones are listed in .*bad.errors.jsonl"
    ):
        batches = list(crops(bad, shuffle=False, on_error="skip", tail="ragged"))
    assert [len(labels) for _, labels in batches] == [4, 2, 4, 4, 4, 4, 2]
    report = [json.loads(line) for line in (tmp_path / "bad.errors.jsonl").read_text().splitlines()]
    assert [(line["sample_id"], line["paths"], line["action"]) for line in report] == [
        (5, ["broken.jpg"], "skip"),
        (6, ["missing.jpg"], "skip"),
    ]
    assert report[0]["where"] == f"{bad.path}:10"
    assert "No such file" in report[1]["cause"]
    with pytest.warns(MploadWarning, match="substitute"):
        batches = list(crops(bad, shuffle=False, on_error="substitute"))
    assert {len(labels) for _, labels in batches} == {4}
    with pytest.warns(MploadWarning, match="substitute"):
        again = list(crops(bad, shuffle=False, on_error="substitute"))
    assert all(torch.equal(x[0], y[0]) for x, y in zip(batches, again, strict=True))


def test_a_job_that_skips_too_many_samples_is_stopped(photos: Path, tmp_path: Path) -> None:
    index = tmp_path / "gone.txt"
    index.write_text("#mpload 1\n#columns image:path\n" + "".join(f"{i}.jpg\n" for i in range(500)))
    policy = ErrorPolicy(action="skip", report=tmp_path / "report.jsonl", max_error_fraction=0.05)
    dataset = MPDataset(index, decode=RandomResizedCrop(64), on_error=policy, topology=Topology())
    with pytest.warns(MploadWarning), pytest.raises(TooManyBadSamples, match=r"51 of 51 samples failed, more than"):
        list(dataset)
    assert len((tmp_path / "report.jsonl").read_text().splitlines()) == 51


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [None, 0, 2])
def test_the_bad_samples_of_an_epoch_that_is_read_again_are_counted_anew(
    bad: Index, tmp_path: Path, num_workers: int | None
) -> None:
    policy = ErrorPolicy(action="skip", report=tmp_path / "report.jsonl", max_error_fraction=0.004)  # of 1,000: 4
    dataset = crops(bad, shuffle=False, on_error=policy, tail="ragged")
    loader = dataset if num_workers is None else MPLoader(dataset, num_workers=num_workers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MploadWarning)
        for _ in range(4):  # each has two bad samples
            loader.set_epoch(0)
            assert sum(len(labels) for _, labels in loader) == 24


def test_a_report_that_cannot_be_written_shows_some_bad_samples(tmp_path: Path) -> None:
    index = tmp_path / "bad.txt"
    index.write_text("".join(f"missing-{number}.jpg\t0\n" for number in range(200)))
    policy = ErrorPolicy(action="skip", report=tmp_path / "missing" / "report.jsonl", max_error_fraction=1)
    dataset = MPDataset(index, batch_size=50, on_error=policy, topology=Topology(), tail="ragged")
    with pytest.warns(MploadWarning) as warned, pytest.raises(MploadError):
        list(dataset)
    shown = [str(each.message) for each in warned if "cannot be written" in str(each.message)]
    assert len(shown) == 20
    assert "missing-0.jpg" in shown[0]
    assert shown[-1].endswith("Further ones are not shown")
