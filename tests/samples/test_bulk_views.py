"""Views made chunk by chunk: the same batches and failures as views that are made one by one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpload import ErrorPolicy, MPDataset, RandomResizedCrop, ResizeCenterCrop, Topology, Views
from tests.support.chunks import OneWorker
from tests.support.fuzz_seeds import write_images_of_all_kinds
from tests.support.native import needs_native

pytestmark = [needs_native, pytest.mark.processes]  # the form of typed samples is found in a process
VIEWS = Views(
    of="image", glob=(2, RandomResizedCrop(40, scale=(0.3, 1.0))), local=(3, RandomResizedCrop((8, 9), antialias=True))
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    write_images_of_all_kinds(folder)
    return folder


def dataset(folder: Path, names: list[str], views: Any, **options: Any) -> MPDataset:
    path = folder / "index.txt"
    path.unlink(missing_ok=True)
    path.with_name("index.txt.mpx").unlink(missing_ok=True)
    lines = "".join(f"{name}\t{number}\t{number / 3}\n" for number, name in enumerate(names))
    path.write_text(f"#mpload 1\n#columns image:path label:int weight:float\n{lines}")
    options = {"shuffle": True, "batch_size": len(names), "tail": "ragged", "topology": Topology(), **options}
    return MPDataset(path, decode={"crops": views}, **options)


def made(worker: OneWorker, size: int, chunk_samples: int) -> tuple[Any, Any]:
    """Return what a batch holds of the samples that did not fail, and the failures."""
    failures = []
    for first in range(0, size, chunk_samples):
        failures += worker.fill(0, first, min(first + chunk_samples, size)).failures
    described = [(failure.sample, failure.cause, failure.details.get("bad")) for failure in failures]
    kept = np.setdiff1d(np.arange(size), [failure.sample for failure in failures])
    return {name: np.asarray(array)[kept].tobytes() for name, array in worker.arrays.items()}, described


@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_views_made_in_bulk_are_those_made_one_by_one(folder: Path, data: st.DataObject) -> None:
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*") if not path.name.startswith("index"))
    plain = [name for name in files if name.startswith("plain")]
    names = data.draw(st.lists(st.sampled_from(files) | st.sampled_from(plain), max_size=11))
    names.insert(0, plain[0])  # the form of the samples is that of one that can be decoded
    policy = ErrorPolicy(action=data.draw(st.sampled_from(["skip", "substitute"])))
    chosen = dataset(folder, names, VIEWS, on_error=policy)
    chunk_samples = data.draw(st.integers(1, 12))
    worker = OneWorker(chosen)
    assert worker.work._bulk is not None
    in_bulk = made(worker, len(names), chunk_samples)
    far = OneWorker(chosen, is_far=True, outage_every=data.draw(st.sampled_from([0, 2])))
    assert made(far, len(names), chunk_samples) == in_bulk
    assert in_bulk == made(worker.without_bulk(), len(names), chunk_samples)


@pytest.mark.parametrize(
    ("views", "options"),
    [
        (Views(of="image", one=(1, RandomResizedCrop(20), np.float32)), {}),
        (Views(of="image", one=(1, RandomResizedCrop(20, backend="simplejpeg"))), {}),
        (VIEWS, {"transform": dict}),
    ],
)
def test_other_views_are_made_one_by_one(folder: Path, views: Views, options: dict[str, Any]) -> None:
    names = [str(path.relative_to(folder)) for path in sorted(folder.glob("plain/*/*"))]
    worker = OneWorker(dataset(folder, names, views, **options))
    assert worker.work._bulk is None


def test_center_crops_are_made_in_bulk(folder: Path) -> None:
    names = [str(path.relative_to(folder)) for path in sorted(folder.glob("plain/*/*"))]
    chosen = dataset(folder, names, Views(of="image", middle=(1, ResizeCenterCrop(30)), one=(1, RandomResizedCrop(9))))
    worker = OneWorker(chosen)
    assert worker.work._bulk is not None
    in_bulk = made(worker, len(names), 4)
    assert in_bulk == made(worker.without_bulk(), len(names), 4)
