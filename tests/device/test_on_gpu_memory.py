"""DevicePrefetcher on an accelerator: pinned and registered host memory, and the lifetime of device memory.

MPLOAD_REQUIRE_GPU=1 pytest -m gpu -n 0         # on a GPU
MPLOAD_TEST_DEVICE=late pytest -m gpu -n 0      # without a GPU: an emulated device with threads as streams
"""

import gc
import mmap
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mpload import DevicePrefetcher
from mpload.device.streams import AcceleratorStream
from mpload.errors import MploadWarning
from tests.support.device_batches import MEAN, STD, VIEWS, Batches
from tests.support.large_batches import DEVICE, SHAPE, LargeBatches, keep_busy, large
from tests.support.slotted_batches import NUM_SLOTS, SlottedBatches
from tests.support.streams import on_stream

pytestmark = pytest.mark.gpu
needs_cuda = pytest.mark.skipif(
    torch.accelerator.is_available() and not torch.cuda.is_available(), reason="the accelerator is not a CUDA device"
)
needs_driver = pytest.mark.skipif(
    torch.accelerator.is_available() and not hasattr(torch.get_device_module(), "cudart"),
    reason="the driver of the accelerator cannot register memory",
)
UNCHANGED: dict[str, Any] = {"device": DEVICE, "dtype": None}
SOURCES: dict[str, Callable[[], Any]] = {
    "slots": SlottedBatches,
    "pinned": lambda: LargeBatches(pinned=True),
    "pageable": LargeBatches,
}


def check(batches: Iterable[Any]) -> None:
    """Check that the batches are those of `LargeBatches`, unchanged, on the device."""
    number = -1
    for number, (images, numbers) in enumerate(batches):
        assert images.device.type == DEVICE.type
        assert torch.equal(images.cpu(), large(number)), number
        assert numbers.unique().tolist() == [number]
    assert number == 7


def slow_copies(loader: Iterable[Any], **options: Any) -> tuple[AcceleratorStream, DevicePrefetcher]:
    """Return a prefetcher and its side stream, which the test may keep busy."""
    stream = AcceleratorStream(torch.device(DEVICE.type, 0))
    return stream, on_stream(stream, loader, **options)


@needs_driver
def test_slots_are_registered_while_a_prefetcher_uses_them_and_again_after_its_release() -> None:
    source = SlottedBatches()
    loader = DevicePrefetcher(source, **UNCHANGED)
    for _ in range(2):
        assert not any(source.are_pinned())
        check(loader)
        assert any(source.are_pinned())
        assert loader.stats().pinned_bytes == 0
        loader.release()
    check(loader)
    assert any(source.are_pinned())
    del loader
    gc.collect()
    assert not any(source.are_pinned())


@needs_driver
def test_a_slot_is_not_overwritten_while_the_device_still_copies_from_it() -> None:
    stream, loader = slow_copies(SlottedBatches(), **UNCHANGED)
    seen = []
    batches = iter(loader)
    for _ in range(8):
        with stream.entered():
            keep_busy()
        images, numbers = next(batches)
        seen.append((images.clone(), numbers.clone()))
    check(seen)


@needs_driver
def test_a_loop_that_is_left_waits_for_the_copies_from_its_slots() -> None:
    source = SlottedBatches()
    stream, loader = slow_copies(source, **UNCHANGED)
    check(loader)  # now the slots are registered, and copies from them do not block
    batches = iter(loader)
    next(batches)
    with stream.entered():
        keep_busy()
    next(batches)
    assert source.ring.num_lent > 0
    batches.close()  # type: ignore[attr-defined]
    assert source.ring.num_lent == 0
    check(loader)


@needs_driver
def test_slots_that_cannot_be_registered_are_copied_once_more_and_later_work_is_not_blamed() -> None:
    source = SlottedBatches()
    driver = torch.get_device_module(DEVICE).cudart()
    pages = [source.ring.views(slot)["images"].ctypes.data + 8 * mmap.PAGESIZE for slot in range(NUM_SLOTS)]
    for page in pages:
        assert int(driver.cudaHostRegister(page, mmap.PAGESIZE, 1)) == 0
    try:
        loader = DevicePrefetcher(source, **UNCHANGED)
        with pytest.warns(MploadWarning, match="slots cannot be pinned, so each batch is copied once more on the host"):
            check(loader)
        assert loader.stats().pinned_bytes > 0
        assert torch.ones(3, device=DEVICE).mul_(2).tolist() == [2.0, 2.0, 2.0]
    finally:
        for page in pages:
            assert int(driver.cudaHostUnregister(page)) == 0


@needs_driver
def test_closed_slots_are_unregistered_and_unmapped_once_there_are_new_ones() -> None:
    def num_maps() -> int:
        return Path("/proc/self/maps").read_text().count("mpload-ring")

    gc.collect()
    before = num_maps()
    source = SlottedBatches()
    loader = DevicePrefetcher(source, **UNCHANGED)
    for _ in range(3):
        check(loader)
        source.renew()
    assert num_maps() == before + 2  # the new slots, and the closed ones, which are still registered
    check(loader)
    gc.collect()
    assert num_maps() == before + 1


@needs_driver
def test_registered_memory_keeps_its_pages_when_free_slots_return_theirs_to_the_kernel() -> None:
    source = SlottedBatches()
    loader = DevicePrefetcher(source, **UNCHANGED)
    check(loader)
    gc.collect()
    used = source.ring.used_bytes
    source.ring.drop_free_memory()
    assert 0 < source.ring.used_bytes <= used
    source.pixels.reverse()  # the device would read the old batches if the slots had got new pages
    for number, (images, _) in enumerate(loader):
        assert torch.equal(images.cpu(), large(7 - number)), number


@needs_cuda
def test_a_forked_child_shares_registered_slots_and_may_drop_the_prefetcher() -> None:
    source = SlottedBatches()
    loader = DevicePrefetcher(source, **UNCHANGED)
    check(loader)
    slot = source.ring.take()  # the one used last
    assert slot is not None
    values = source.ring.views(slot)["numbers"]
    assert torch.from_numpy(values).is_pinned()
    values[:] = 1
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # kills a child that hangs
        was_shared = bool((values == 1).all())
        values[:] = 2
        del loader, batches
        gc.collect()
        os._exit(0 if was_shared else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.from_numpy(values).to(DEVICE, non_blocking=True).tolist() == [2] * SHAPE[0]
    source.ring.give_back(slot)
    batches.close()  # type: ignore[attr-defined]
    check(loader)


@pytest.mark.parametrize("pinned", [True, False])
def test_tensors_without_values_and_batches_without_tensors_arrive(pinned: bool) -> None:
    empty = torch.zeros(0, 3, 8, 8, dtype=torch.uint8), torch.zeros(0, 5), torch.zeros(2, 0, dtype=torch.int64)
    batch = [*(each.pin_memory() if pinned else each for each in empty), torch.arange(3)]
    for stable_addresses in (True, False):
        found, texts, after = DevicePrefetcher(
            [batch, ["a", "b"], batch], device=DEVICE, mean=MEAN, std=STD, stable_addresses=stable_addresses
        )
        assert texts == ["a", "b"]
        for tensors in (found, after):
            assert [tuple(each.shape) for each in tensors] == [(0, 3, 8, 8), (0, 5), (2, 0), (3,)]
            assert [each.device.type for each in tensors] == [DEVICE.type] * 4
            assert tensors[0].dtype == torch.float32
            assert tensors[3].tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", sorted(VIEWS.keys() - {"numpy"}))
def test_a_batch_counts_as_held_until_the_last_reference_to_its_memory_is_gone(kind: str) -> None:
    loader = DevicePrefetcher(Batches(1), device=DEVICE, mean=MEAN, std=STD)
    batches = iter(loader)
    images, labels = next(batches)
    held_bytes = loader.stats().batch_bytes
    assert held_bytes == images.nbytes + labels.nbytes
    view = VIEWS[kind](images)
    del images, labels
    gc.collect()
    assert loader.stats().batch_bytes == held_bytes
    del view
    gc.collect()
    assert loader.stats().batch_bytes == 0


@pytest.mark.parametrize("pinned", [True, False])
def test_batches_of_growing_size_are_copied_right_although_copies_are_slow(pinned: bool) -> None:
    num_images = [1, 8, 4, 16, 32, 2, 32]
    sources = [large(number)[:num] for number, num in enumerate(num_images)]

    class Growing:
        def __iter__(self) -> Iterator[Any]:
            for source in sources:
                yield source.pin_memory() if pinned else source.clone(memory_format=torch.preserve_format)

    for stable_addresses in (True, False):
        stream, loader = slow_copies(Growing(), stable_addresses=stable_addresses, **UNCHANGED)
        seen = []
        batches = iter(loader)
        for _ in num_images:
            with stream.entered():
                keep_busy()
            seen.append(next(batches).clone())
        for found, source in zip(seen, sources, strict=True):
            assert torch.equal(found.cpu(), source)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("depth", [2, 3])
def test_the_host_does_not_wait_for_the_device_when_it_requests_a_batch(source: str, depth: int) -> None:
    if source == "slots" and not hasattr(torch.get_device_module(DEVICE), "cudart"):
        pytest.skip("the driver of the accelerator cannot register memory")
    loader = DevicePrefetcher(SOURCES[source](), device=DEVICE, mean=MEAN, std=STD, depth=depth)
    for _ in range(2):  # loads kernels, registers slots and allocates memory, all of which may wait
        for batch in loader:
            keep_busy()
            del batch
    torch.accelerator.synchronize()
    batches = iter(loader)
    first = next(batches)
    torch.accelerator.synchronize()
    for _ in range(20):
        keep_busy()
    is_done = torch.accelerator.current_stream().record_event()
    second = next(batches)
    assert not is_done.query(), "the host waited until the consumer's stream was done"
    torch.accelerator.synchronize()
    assert [numbers[0].item() for _, numbers in (first, second)] == [0, 1]


@needs_cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature:UserWarning")
@pytest.mark.parametrize("source", SOURCES)
def test_no_call_of_the_prefetcher_synchronises_with_the_device(source: str) -> None:
    loader = DevicePrefetcher(SOURCES[source](), device=DEVICE, mean=MEAN, std=STD)
    list(loader)
    torch.cuda.set_sync_debug_mode("error")
    try:
        seen = list(loader)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [numbers[0].item() for _, numbers in seen] == list(range(8))


def test_memory_that_torch_fills_first_is_filled_before_it_gets_its_batch() -> None:
    torch.use_deterministic_algorithms(mode=True)
    try:
        for stable_addresses in (True, False):
            loader = DevicePrefetcher(LargeBatches(pinned=True), stable_addresses=stable_addresses, **UNCHANGED)
            seen = []
            for images, numbers in loader:
                keep_busy()
                seen.append((images.clone(), numbers.clone()))
            check(seen)
    finally:
        torch.use_deterministic_algorithms(mode=False)


@pytest.mark.parametrize("pinned", [True, False])
def test_videos_keep_their_order_in_memory(pinned: bool) -> None:
    videos = torch.arange(2 * 4 * 16 * 16 * 3).to(torch.uint8).view(2, 4, 16, 16, 3).movedim(-1, -3)
    gaps = torch.arange(24.0).view(4, 6)[:, ::2]
    batch = [each.pin_memory() if pinned else each for each in (videos, gaps)]
    ((found, dense),) = DevicePrefetcher([batch], device=DEVICE)
    assert found.stride() == videos.stride()
    assert torch.equal(found.cpu(), videos)
    assert dense.is_contiguous()
    assert torch.equal(dense.cpu(), gaps)
