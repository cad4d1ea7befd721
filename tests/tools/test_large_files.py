"""A file that training refuses because of its size is read by no tool: it may be larger than the memory."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mpload import Index, MPDataset, RandomResizedCrop, RawBytes, Topology, build_index, open_index
from mpload.errors import MploadWarning, SampleError, StorageError
from mpload.images.decoders import ImageDecoder
from mpload.images.limits import Limits
from mpload.ingest.checking import check_index
from mpload.samples.pipeline import Pipeline
from mpload.samples.policy import ErrorPolicy
from mpload.storage import local
from mpload.tools.bounded import BoundedBytes
from mpload.tools.doctor.samples import measure_samples
from mpload.tools.doctor.storage import Files, measure_rates
from mpload.tools.pack.packing import pack_index
from mpload.tools.rows import note_rows
from tests.support.jpegs import make
from tests.support.native import needs_native

NUM_BYTES = Limits().max_bytes + 1
LARGE = 3
REFUSAL = f"is not read: its {NUM_BYTES:,} bytes exceed max_bytes={NUM_BYTES - 1:,}"


@pytest.fixture
def index(tmp_path: Path) -> Index:
    """Eight photos; one is valid, but has a hole at its end that makes it too large."""
    (tmp_path / "photos/cat").mkdir(parents=True)
    for number in range(8):
        path = tmp_path / f"photos/cat/{number}.jpg"
        path.write_bytes(make("420", 64, 64, seed=number))
        if number == LARGE:
            with path.open("ab") as file:
                file.truncate(NUM_BYTES)
    return open_index(build_index(tmp_path / "photos", tmp_path / "i.txt"))


@pytest.fixture(autouse=True)
def _reads_are_small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    read, sizes = local._read_whole, []

    def noted(descriptor: int, num_bytes: int) -> bytes:
        sizes.append(num_bytes)
        return read(descriptor, num_bytes)

    monkeypatch.setattr(local, "_read_whole", noted)
    yield
    assert max(sizes, default=0) < NUM_BYTES


def test_training_refuses_it(index: Index) -> None:
    with pytest.raises(SampleError, match=REFUSAL):
        list(MPDataset(index, decode=RandomResizedCrop(32), batch_size=8, topology=Topology()))


@pytest.mark.parametrize("decode", [None, ImageDecoder()])
def test_a_check_reports_it(index: Index, decode: ImageDecoder | None) -> None:
    causes = [(finding.sample_id, finding.cause) for finding in check_index(index, decode=decode)]
    if decode is None:  # then a check reads nothing of any file
        assert causes == []
    else:
        ((sample_id, cause),) = causes
        assert sample_id == LARGE
        assert cause.startswith(REFUSAL)


def test_a_check_follows_the_limits_of_its_decoder(index: Index) -> None:
    limited = ImageDecoder(limits=Limits(max_bytes=10))
    assert [finding.sample_id for finding in check_index(index, decode=limited)] == list(range(8))


def test_a_pack_stops_at_it_and_says_what_to_do(index: Index, tmp_path: Path) -> None:
    with pytest.raises(SampleError, match=rf"/i\.txt:\d+: cat/3\.jpg: {REFUSAL}\. Remove it from the index$"):
        pack_index(index, tmp_path / "pack")


@needs_native
def test_the_row_index_leaves_it_out(index: Index) -> None:
    assert note_rows(index).num_entries() == 7


def test_doctor_counts_it_as_failed(index: Index) -> None:
    pipeline = Pipeline(index=index, decode=RandomResizedCrop(32), policy=ErrorPolicy())
    files = Files(index, decode=BoundedBytes.like(pipeline.decoders))
    samples = measure_samples(pipeline, files, seconds=1, seed=0).samples
    assert samples.num_failed >= 1
    assert REFUSAL in samples.first_failure
    assert measure_rates(index, files, seconds=0.1, seed=0)


def test_doctor_reads_what_the_decoders_of_a_dataset_get() -> None:
    small, large = ImageDecoder(limits=Limits(max_bytes=10)), ImageDecoder(limits=Limits(max_bytes=20))
    assert BoundedBytes.like([small, large]).limits == Limits(max_bytes=20)
    assert BoundedBytes.like([small, RawBytes()]).limits is None


def test_files_of_any_size_are_read_for_a_decoder_without_limits(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_read_whole", lambda _, num_bytes: np.zeros(num_bytes, np.uint8))  # takes no memory
    (data,) = Files(index, decode=BoundedBytes(None)).reader()(index[LARGE])
    assert len(data) == NUM_BYTES
    with pytest.raises(StorageError, match=REFUSAL):
        Files(index).reader()(index[LARGE])


def test_the_size_of_an_image_comes_from_its_header_or_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    photo = make("420", 64, 48, seed=0)
    comment = b"\xff\xfe\xff\xff" + bytes(0xFFFD)  # pushes the header beyond the first 64 KiB
    for name, data in (("header.jpg", photo), ("none.jpg", photo[:2] + 2 * comment + photo[2:])):
        with (tmp_path / "photos" / name).open("wb") as file:
            file.write(data)
            file.truncate(NUM_BYTES)
    with pytest.warns(MploadWarning, match=r"1 image could not be read, such as none\.jpg"):
        built = build_index(tmp_path / "photos", tmp_path / "i.txt", with_image_sizes=True)
    cells = {str(record.cells[0]): record.cells[-2:] for record in open_index(built)}
    assert cells == {"header.jpg": (48, 64), "none.jpg": (0, 0)}
