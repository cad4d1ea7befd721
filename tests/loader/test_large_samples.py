"""Samples of varying size may be as large as the address space allows. Beyond that, there is a clear error."""

import resource
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpload import MPDataset, MPLoader, RawBytes, Topology
from mpload.errors import SampleError, WorkerError
from mpload.loader.learned_form import LearnedForm
from mpload.transport.ragged import sample_room_bytes
from mpload.transport.ring import SlotRing
from mpload.transport.slots import RaggedField, SlotLayout
from mpload.units import GIB, MIB

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")


def sparse(path: Path, num_bytes: int) -> str:
    """Create a sparse file of zeros that ends in `end`; it takes up almost no disk space. Return its name."""
    with path.open("wb") as file:
        file.truncate(num_bytes - 3)
        file.seek(0, 2)
        file.write(b"end")
    return path.name


@pytest.mark.slow
@pytest.mark.processes
def test_a_sample_of_300_mib_passes_through_a_worker(tmp_path: Path) -> None:
    (tmp_path / "all.txt").write_text(sparse(tmp_path / "large", 300 * MIB) + "\n")
    dataset = MPDataset(tmp_path / "all.txt", decode=RawBytes(as_array=True), batch_size=1, topology=Topology())
    with MPLoader(dataset, num_workers=1) as loader:
        ((sample,),) = loader
    assert len(sample) == 300 * MIB
    assert bytes(sample[-3:].numpy()) == b"end"


@pytest.mark.processes
def test_samples_of_any_size_fit_batches_of_200_000(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(bytes(range(256)))
    lines = (f"{number % 200}+{number % 7}@bytes\n" for number in range(2000))
    (tmp_path / "all.txt").write_text("#mpload 1\n#columns data:span\n" + "".join(lines))
    for decode in RawBytes(), RawBytes(as_array=True):
        dataset = MPDataset(tmp_path / "all.txt", decode=decode, batch_size=200_000, tail="ragged", topology=Topology())
        with MPLoader(dataset, num_workers=2) as loader:
            (batch,) = loader
        assert [bytes(sample if isinstance(sample, bytes) else sample.tolist()) for sample in batch] == [
            bytes(range(number % 200, number % 200 + number % 7)) for number in range(2000)
        ]


@pytest.mark.processes
def test_a_sample_that_does_not_fit_is_reported_with_numbers_and_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "all.txt").write_text(sparse(tmp_path / "large", 50 * MIB) + "\n")
    dataset = MPDataset(
        tmp_path / "all.txt",
        decode=RawBytes(as_array=True),
        batch_size=200_000,
        tail="ragged",
        topology=Topology(),
    )
    message = r"sample 0 .*50\.0 MiB does not fit; a batch of 200000 allows 41\.. MiB for each\. Make samples or "
    with MPLoader(dataset, num_workers=1) as loader, pytest.raises(SampleError, match=message):
        list(loader)


@given(st.integers(1, 1 << 40), st.integers(0, 9), st.integers(0, 256))
def test_slots_of_all_workers_fit_the_address_space(batch_size: int, num_fields: int, num_workers: int) -> None:
    room_bytes = sample_room_bytes(batch_size=batch_size, num_fields=num_fields)
    num_slots = 3 + -(-64 * num_workers // batch_size)
    assert room_bytes == 1 or num_slots * batch_size * room_bytes * max(1, num_fields) <= 1 << 45
    assert sample_room_bytes(batch_size=256) > 1.5 * GIB


def test_slots_that_do_not_fit_the_address_space_are_reported_with_numbers() -> None:
    layout = SlotLayout(num_samples=1, fields=(RaggedField(name="x", max_sample_bytes=1 << 47),))
    with pytest.raises(
        WorkerError,
        match=r"cannot reserve 256\.0 TiB of address space for 2 slots: Cannot allocate memory\. .* Lower batch_size",
    ):
        SlotRing(num_slots=2, layout=layout)


@pytest.mark.parametrize("limit_bytes", [resource.RLIM_INFINITY, 1 << 40])
@pytest.mark.parametrize("num_leaves", [1, 200])
def test_a_learned_form_leaves_half_of_the_room_to_samples_of_other_forms(limit_bytes: int, num_leaves: int) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, before[1]))
    try:
        form = LearnedForm(batch_size=4)
        (first,) = form.first_fields()
        form.learn([[np.zeros(length)] * num_leaves for length in (1, 2)])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert form.layout is not None
    *leaves, parcels = form.layout.fields
    assert isinstance(parcels, RaggedField)
    assert (len(leaves), parcels.max_sample_bytes) == (num_leaves, first.max_sample_bytes // 2)
    assert form.layout.slot_bytes <= SlotLayout(num_samples=4, fields=(first,)).slot_bytes  # so that it can be adopted
