"""Photos decoded chunk by chunk through the pipeline: the same batches and failures as photos decoded one by one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpload import ErrorPolicy, MPDataset, MPLoader, RandomResizedCrop, ResizeCenterCrop, Topology
from mpload.errors import DecodeError, MploadWarning
from mpload.images.limits import Limits
from mpload.samples.counts import DECODE_NS, READ_NS
from mpload.samples.policy import ErrorAction
from tests.support.chunks import OneWorker
from tests.support.fuzz_seeds import write_images_of_all_kinds
from tests.support.native import needs_native

pytestmark = needs_native

DECODERS = (
    RandomResizedCrop(32),
    RandomResizedCrop((20, 40), antialias=True, exif_orientation=False),
    RandomResizedCrop(24, limits=Limits(max_pixels=5000)),
    ResizeCenterCrop(32),
    ResizeCenterCrop(24, limits=Limits(allow_truncated=True)),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    write_images_of_all_kinds(folder)
    (folder / "empty.jpg").write_bytes(b"")
    shard = folder / "shard"
    shard.write_bytes(b"".join(path.read_bytes() for path in sorted(folder.glob("plain/*/*"))))
    return folder


def dataset(folder: Path, names: list[str], **options: Any) -> MPDataset:
    text = folder / "index.txt"
    text.unlink(missing_ok=True)
    text.with_name("index.txt.mpx").unlink(missing_ok=True)
    kind = "span" if "@" in names[0] else "path"
    lines = "".join(f"{name}\t{number}\n" for number, name in enumerate(names))
    text.write_text(f"#mpload 1\n#columns image:{kind} label:int\n{lines}")
    return MPDataset(text, shuffle=True, batch_size=len(names), tail="ragged", topology=Topology(), **options)


def made(worker: OneWorker, chunk_samples: int) -> tuple[Any, Any]:
    """Return the bytes of a batch's columns, and its failures."""
    columns, failures = worker.batch(0, chunk_samples=chunk_samples)
    described = [(failure.sample, failure.cause, failure.details.get("bad")) for failure in failures]
    return [np.asarray(column).tobytes() for column in columns], described


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_photos_made_in_bulk_are_those_made_one_by_one(folder: Path, data: st.DataObject) -> None:
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*") if not path.name.startswith("index"))
    plain = [name for name in files if name.startswith("plain")]
    names = data.draw(st.lists(st.sampled_from(files) | st.sampled_from(plain), min_size=1, max_size=24))
    policy = ErrorPolicy(action=data.draw(st.sampled_from(["raise", "skip", "substitute"])))
    chosen = dataset(folder, names, decode=data.draw(st.sampled_from(DECODERS)), on_error=policy)
    chunk_samples = data.draw(st.integers(1, 24))
    worker = OneWorker(chosen)
    assert worker.work._bulk is not None
    one_by_one = made(OneWorker(chosen).without_bulk(), chunk_samples)
    assert made(worker, chunk_samples) == one_by_one
    max_bytes, outage_every = data.draw(st.sampled_from([1, 4096, 1 << 24])), data.draw(st.sampled_from([0, 2, 5]))
    far = OneWorker(chosen, is_far=True, read_ahead_bytes=max_bytes, outage_every=outage_every)
    assert made(far, chunk_samples) == one_by_one
    if policy.action is ErrorAction.SKIP and max_bytes > 4096:
        assert sorted(item.path for item in far.far.reads) == sorted(names)  # those that fail or are declined too


def spans_of(folder: Path) -> list[str]:
    spans, start = [], 0
    for path in sorted(folder.glob("plain/*/*")):
        num_bytes = path.stat().st_size
        spans.append(f"{start}+{num_bytes}@shard")
        start += num_bytes
    return spans


@pytest.mark.parametrize("decode", DECODERS[:2] + DECODERS[3:])
@pytest.mark.parametrize("kind", ["file", "span"])
@pytest.mark.parametrize("is_far", [False, True])
def test_plain_photos_are_never_made_one_by_one(folder: Path, decode: Any, kind: str, is_far: bool) -> None:
    files = sorted(str(path.relative_to(folder)) for path in folder.glob("plain/*/*"))
    names = files if kind == "file" else spans_of(folder)
    chosen = dataset(folder, names, decode=decode)
    worker = OneWorker(chosen, is_far=is_far)
    worker.work._fill_one_by_one = None  # type: ignore[method-assign,assignment]
    report = worker.fill(0, 0, len(names))
    assert not report.failures
    assert report.tally.counts[READ_NS] > 0
    assert report.tally.counts[DECODE_NS] > 0
    (images, labels), _ = OneWorker(chosen).without_bulk().batch(0, chunk_samples=1)
    np.testing.assert_array_equal(worker.arrays["image"], np.asarray(images))
    np.testing.assert_array_equal(worker.arrays["label"], np.asarray(labels))


@pytest.mark.processes
def test_batches_of_workers_are_those_of_the_dataset(folder: Path, tmp_path: Path) -> None:
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*") if not path.name.startswith("index"))
    policy = ErrorPolicy(action="skip", max_error_fraction=1.0, report=tmp_path / "errors.jsonl")
    chosen = dataset(folder, files, decode=RandomResizedCrop(32), on_error=policy)
    with pytest.warns(MploadWarning, match="a bad sample"):
        ((images, labels),) = list(chosen)
    with MPLoader(chosen, num_workers=2) as loader:
        loader.set_epoch(0)
        ((same_images, same_labels),) = list(loader)
    np.testing.assert_array_equal(same_images, images)
    np.testing.assert_array_equal(same_labels, labels)


class NothingBig(Limits):
    def check_size(self, kind: str, height: int, width: int, num_bytes: int) -> None:
        raise DecodeError(f"{kind}: {width} pixels are too wide")


@pytest.mark.processes
def test_limits_of_a_users_own_kind_are_respected(folder: Path) -> None:
    names = [str(path.relative_to(folder)) for path in sorted(folder.glob("plain/*/*"))]
    chosen = dataset(folder, names, decode=RandomResizedCrop(16, limits=NothingBig()), on_error="skip")
    _, failures = made(OneWorker(chosen), 4)
    assert len(failures) == len(names)
    assert "pixels are too wide" in failures[0][1]


@pytest.mark.processes
@pytest.mark.parametrize(
    "decode",
    [
        RandomResizedCrop(16, max_pixels=1e8),  # type: ignore[arg-type]
        RandomResizedCrop(16, limits=Limits(max_bytes=float("inf"), max_scans=2.5)),  # type: ignore[arg-type]
        RandomResizedCrop(16, limits=Limits(max_pixels_per_byte=1.5)),  # type: ignore[arg-type]
        ResizeCenterCrop(16, resize=20.0),  # type: ignore[arg-type]  # fails with every decoder, in the same words
    ],
)
def test_numbers_that_are_no_integers_mean_the_same_in_bulk(folder: Path, decode: Any) -> None:
    names = [str(path.relative_to(folder)) for path in sorted(folder.glob("plain/*/*"))]
    chosen = dataset(folder, names, decode=decode)
    assert made(OneWorker(chosen), 4) == made(OneWorker(chosen).without_bulk(), 4)
