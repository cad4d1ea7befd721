"""The doctor decodes as workers do: a chunk with one call where they would, and else sample by sample."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mpload import Buckets, ImageDecoder, MPDataset, PartialCache, RandomResizedCrop, ResizeCenterCrop, Topology
from mpload.images.decoders import NumpyDecoder
from mpload.index.opening import open_index
from mpload.judgement.facts import Change, Job
from mpload.judgement.remedies import resize_to
from mpload.samples.bulk import BulkPipeline
from mpload.samples.pipeline import Pipeline
from mpload.samples.policy import ErrorPolicy
from mpload.tools.doctor.chunks import ChunkDecoder, decodes_in_bulk
from mpload.tools.doctor.samples import measure_samples
from mpload.tools.doctor.storage import Files
from mpload.tools.doctor.subject import IndexSubject
from tests.support.native import needs_native
from tests.support.staged import write_index, write_photos
from tests.support.staged_more import pil_crop

_CROP = RandomResizedCrop(32)


def _negative(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return 255 - image


@pytest.fixture
def index(tmp_path: Path) -> Any:
    write_photos(tmp_path / "photos", num=10)
    names = sorted(path.name for path in (tmp_path / "photos").iterdir())
    return open_index(write_index(tmp_path / "train.txt", root=tmp_path / "photos", names=names))


def _pipeline(index: Any, **options: Any) -> Pipeline:
    return Pipeline(index=index, policy=ErrorPolicy(), **{"decode": _CROP, **options})


@needs_native
@pytest.mark.parametrize("decode", [_CROP, ResizeCenterCrop(32), ImageDecoder(), NumpyDecoder(), pil_crop])
@pytest.mark.parametrize("setting", ["plain", "transform", "cache", "storage of the user"])
def test_images_are_measured_in_bulk_if_workers_decode_them_in_bulk(
    decode: Any, setting: str, index: Any, tmp_path: Path
) -> None:
    class OfUser:
        def read(self, ranges: Any) -> list[bytes]:
            return [Path(index.root, each.path).read_bytes() for each in ranges]

    options: dict[str, Any] = {"transform": _negative} if setting == "transform" else {}
    if setting == "storage of the user":
        options["storage"] = OfUser()
    pipeline = _pipeline(index, decode=decode, **options)
    if setting == "cache":
        opened = PartialCache(tmp_path / "cache", fraction=1.0)
        pipeline.cache = opened  # type: ignore[assignment]  # only its presence counts
    can = BulkPipeline.of(pipeline, arena=np.empty(1 << 20, np.uint8)) is not None
    is_local = setting != "storage of the user"
    is_image = decode in (_CROP, ResizeCenterCrop(32))
    assert (decodes_in_bulk(pipeline, decode) and pipeline.transform is None) == (can and is_local and is_image)


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("in_bulk", [False, pytest.param(True, marks=needs_native)])
def test_a_chunk_costs_time_for_reading_and_decoding(
    is_packed: bool, in_bulk: bool, index: Any, tmp_path: Path
) -> None:
    images = [Path(index.root, str(record["image"])).read_bytes() for record in index]
    images[3] = images[3][:100]  # is not counted
    for attempt in range(10):  # other programs may take the core in the midst of a read
        folder = tmp_path / f"way{attempt}"
        decoder = ChunkDecoder(images, _CROP, folder=folder, is_packed=is_packed, in_bulk=in_bulk, notes_rows=False)
        decoder.measure(range(8))
        decoder.measure(range(8, 10))
        assert decoder.num_decoded == len(images) - 1
        if 0 < decoder.read.seconds < decoder.decode.seconds:
            return
    pytest.fail(f"reading took longer than decoding: {decoder.read}, {decoder.decode}")


def test_stored_images_are_large_enough_for_the_largest_shape_of_buckets(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", num=10)
    rows = "".join(
        f"{path.name}\t500\t{375 if number % 2 else 900}\n"
        for number, path in enumerate(sorted((tmp_path / "photos").iterdir()))
    )
    (tmp_path / "sized.txt").write_text(
        f"#mpload 1\n#root {tmp_path / 'photos'}\n#columns image:path width:int height:int\n{rows}"
    )
    buckets = Buckets(by="aspect", shapes=[(64, 32), (48, 64)])
    dataset = MPDataset(
        tmp_path / "sized.txt", decode=_CROP, batch_size=4, shuffle=True, buckets=buckets, topology=Topology()
    )
    facts = IndexSubject(dataset).measure(
        Job(batch_size=4, num_workers=1), seconds=0.6, seed=0, announce=lambda _: None
    )
    (resized,) = (each for each in facts.alternatives if each.change is Change.RESIZED)
    assert resized.detail == str(resize_to(48))


@needs_native
def test_without_a_transform_decoding_is_measured_in_bulk_and_so_are_smaller_images(index: Any) -> None:
    files = Files(index)
    plain = measure_samples(_pipeline(index), files, seconds=0.4, seed=0).decoding
    assert plain.alone is None
    assert plain.read is not None
    transformed = measure_samples(_pipeline(index, transform=_negative), files, seconds=0.4, seed=0).decoding
    assert transformed.alone is not None
    assert transformed.read is None
    (resized,) = (each for each in plain.alternatives if each.change is Change.RESIZED)
    assert resized.read is not None  # from a shard
    assert resized.mean_bytes
