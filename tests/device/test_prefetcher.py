"""DevicePrefetcher, as far as it can be tested without an accelerator: values, order, lifetimes, memory."""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from mpload import Boxes, MPDataset, MPLoader, Pad, RandomResizedCrop, ResizeCenterCrop, Topology, build_index
from mpload.device.prefetcher import DevicePrefetcher
from mpload.errors import ArgumentError
from mpload.transport.ring import SlotRing
from mpload.transport.slots import Field, SlotLayout
from tests.support.batches import ids, numbers
from tests.support.device_batches import (
    NORMALISED,
    SHAPE,
    VIEWS,
    Batches,
    check_that_it_keeps_its_batch,
    images_of,
    reference,
)
from tests.support.streams import LateStream, on_stream


class Recycled:
    """A loader with only a few slots, which are overwritten as soon as they are no longer held."""

    def __init__(self, num_batches: int, num_slots: int) -> None:
        self.num_batches = num_batches
        fields = (Field(name="images", shape=(*SHAPE[2:], SHAPE[1]), dtype="uint8"), Field(name="n", dtype="int64"))
        self.ring = SlotRing(num_slots=num_slots, layout=SlotLayout(num_samples=SHAPE[0], fields=fields))

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.num_batches):
            free = []
            while (slot := self.ring.take()) is not None:
                free.append(slot)
                self.ring.views(slot)["images"][:] = 255
            assert free, "more host batches are held than there are slots"
            slot = free.pop()
            for other in free:
                self.ring.give_back(other)
            views = self.ring.views(slot)
            views["images"][:] = images_of(number).permute(0, 2, 3, 1).numpy()
            views["n"][:] = number
            arrays = self.ring.lend(slot, SHAPE[0])
            del views
            yield torch.from_numpy(arrays.pop("images")).permute(0, 3, 1, 2), torch.from_numpy(arrays.pop("n"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("is_late", [True, False])
def test_images_are_computed_in_float64_and_rounded_once(
    dtype: torch.dtype, channels_last: bool, is_late: bool
) -> None:
    stream = LateStream(0) if is_late else None
    loader = on_stream(stream, Batches(), dtype=dtype, channels_last=channels_last, **NORMALISED)
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    assert len(loader) == 6
    for number, (images, labels) in enumerate(loader):
        if stream is not None:
            stream.finish()
        assert torch.equal(images, reference(images_of(number)).to(dtype))
        assert images.is_contiguous(memory_format=memory_format)
        assert images.dtype == dtype
        assert labels.tolist() == [number] * 4
    assert number == 5


@pytest.mark.parametrize("kind", [partial(MPLoader, num_workers=0), partial(DataLoader, batch_size=None)])
def test_masks_of_three_objects_are_no_images(tmp_path: Path, kind: Callable[[Any], Iterable[Any]]) -> None:
    cv2.imwrite(str(tmp_path / "image.jpg"), np.full((40, 60, 3), 99, np.uint8))
    square = {"bbox": [5, 5, 20, 20], "segmentation": [[5, 5, 25, 5, 25, 25, 5, 25]]}
    objects = {"width": 60, "height": 40, "annotations": [square] * 3}
    (tmp_path / "list.txt").write_text(f"#mpload 1\n#columns image:path boxes:str\nimage.jpg\t{json.dumps(objects)}\n")
    decode: Any = {"image": ResizeCenterCrop(32), "boxes": Boxes("xywh", values=("masks:mask",), min_side=0)}
    dataset = MPDataset(tmp_path / "list.txt", decode=decode, batch_size=2, collate=Pad(0))
    (plain,) = kind(dataset)
    dataset.set_epoch(0)
    (batch,) = DevicePrefetcher(kind(dataset), device="cpu")
    assert plain["boxes"]["masks"].shape == (2, 3, 32, 32)
    torch.testing.assert_close(batch["boxes"]["masks"], plain["boxes"]["masks"], rtol=0, atol=0)
    assert batch["image"].dtype == torch.float32


def test_values_other_than_images_arrive_unchanged() -> None:
    class Pair(NamedTuple):
        left: Any
        right: Any

    @dataclass
    class Named:
        ids: torch.Tensor
        texts: list[str]

    batch = {
        "pair": Pair(images_of(1), images_of(2)),
        "named": Named(torch.arange(4), ["a", "b", "c", "d"]),
        "rest": [torch.zeros(0), torch.tensor(3.5), (torch.ones(2, 5).t(), b"bytes"), None],
        "gray": torch.zeros(4, 1, 8, 8, dtype=torch.uint8),
        "complex": torch.ones(3, dtype=torch.complex64),
    }
    (moved,) = DevicePrefetcher([batch], **NORMALISED)
    assert torch.equal(moved["pair"].right, reference(images_of(2)).float())
    assert isinstance(moved["pair"], Pair)
    assert isinstance(moved["named"], Named)
    assert moved["named"].texts == batch["named"].texts  # type: ignore[attr-defined]
    assert moved["named"].ids.tolist() == [0, 1, 2, 3]
    empty, number, (strided, raw), nothing = moved["rest"]
    assert (len(empty), number.item(), strided.tolist(), raw, nothing) == (0, 3.5, [[1.0, 1.0]] * 5, b"bytes", None)
    assert moved["gray"].dtype == torch.uint8
    assert moved["complex"].dtype == torch.complex64
    assert moved["gray"].data_ptr() != batch["gray"].data_ptr()  # type: ignore[attr-defined]


def test_without_a_dtype_images_stay_unchanged() -> None:
    for number, (images, _) in enumerate(DevicePrefetcher(Batches(), device="cpu", dtype=None)):
        assert torch.equal(images, images_of(number))
        assert images.stride() == images_of(number).stride()


@pytest.mark.slow
@settings(max_examples=200)
@given(
    seed=st.integers(0, 10_000),
    depth=st.integers(1, 4),
    lets_go=st.lists(st.booleans(), min_size=8, max_size=8),
    stable_addresses=st.booleans(),
    eagerness=st.sampled_from([0.0, 0.3, 0.8]),
)
def test_delayed_work_sees_the_right_batch_on_any_schedule(
    seed: int, depth: int, lets_go: list[bool], stable_addresses: bool, eagerness: float
) -> None:
    stream = LateStream(seed, eagerness=eagerness)
    source = Recycled(len(lets_go), num_slots=5)
    loader = on_stream(stream, source, depth=depth, stable_addresses=stable_addresses, **NORMALISED)
    seen: list[torch.Tensor] = []

    batches = iter(loader)
    kept = []  # with depth 1, the memory of a held batch is replaced, and the queued work must not outlive it
    images = labels = None
    for done in lets_go:
        images, labels = next(batches)
        stream.consume(lambda found: seen.append(found.clone()), images)
        if depth == 1 and not stable_addresses:
            kept.append(images)
        if done:
            del images, labels
            images = labels = None
    assert next(batches, None) is None
    stream.finish()
    assert len(seen) == len(lets_go)
    for number, found in enumerate(seen):
        assert torch.equal(found, reference(images_of(number)).float()), number
    if depth > 1:
        assert loader.stats().num_extra_batches == 0


def test_host_batches_are_released_once_they_are_copied() -> None:
    stream = LateStream(0, eagerness=0.0)
    source = Recycled(4, num_slots=4)
    batches = iter(on_stream(stream, source, **NORMALISED))
    first = next(batches)
    assert source.ring.num_lent == 2  # the first and the second, whose copies have not begun
    stream.finish()
    second = next(batches)
    assert source.ring.num_lent == 1  # the third, which has just been fetched
    num_done = stream.side.num_done
    batches.close()  # type: ignore[attr-defined]
    assert source.ring.num_lent == 0
    assert stream.side.num_done > num_done  # it waited for the copies
    assert [labels[0].item() for _, labels in (first, second)] == [0, 1]


def test_on_the_cpu_a_slot_is_free_when_its_batch_is_yielded() -> None:
    source = Recycled(4, num_slots=2)
    for _ in DevicePrefetcher(source, **NORMALISED):
        assert source.ring.num_lent == 0


@pytest.mark.parametrize("is_late", [True, False])
def test_a_hoarding_consumer_never_sees_a_batch_change(is_late: bool) -> None:
    stream = LateStream(1) if is_late else None
    loader = on_stream(stream, Batches(12), depth=3, **NORMALISED)
    held = list(loader)
    list(loader)
    if stream is not None:
        stream.finish()
    for number, (images, labels) in enumerate(held):
        assert torch.equal(images, reference(images_of(number)).float())
        assert labels.tolist() == [number] * 4
    assert loader.stats().num_extra_batches == 2 * 12 - 2 * 3 + 3  # all except the first three


@pytest.mark.slow
@pytest.mark.parametrize("kind", VIEWS)
def test_any_view_of_a_batch_keeps_its_values(kind: str) -> None:
    check_that_it_keeps_its_batch(kind, **NORMALISED)


def test_a_loop_reuses_the_same_buffers() -> None:
    loader = on_stream((stream := LateStream(0)), Batches(10), depth=3, **NORMALISED)
    addresses = set()
    for images, _ in itertools.chain(loader, loader):
        stream.finish()
        addresses.add(images.data_ptr())
    stats = loader.stats()
    batch_bytes = images.nbytes + 256  # the labels have 32 bytes, padded to the alignment
    assert len(addresses) == 3
    assert (stats.num_batches, stats.num_extra_batches) == (20, 0)
    assert stats.batch_bytes == 3 * batch_bytes
    assert stats.conversion_bytes == images.nbytes // 4 + 256
    assert stats.device_bytes == stats.batch_bytes + stats.conversion_bytes
    assert stats.moved_bytes == 20 * (images.nbytes // 4 + 32)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_stable_addresses_take_turns_even_if_batches_are_held(depth: int) -> None:
    loader = DevicePrefetcher(Batches(9), depth=depth, stable_addresses=True, **NORMALISED)
    held = [(images, images.data_ptr()) for images, _ in loader]
    addresses = [address for _, address in held]
    assert len(set(addresses)) == depth
    assert addresses == [addresses[number % depth] for number in range(9)]
    assert loader.stats().num_extra_batches == 0


def test_release_frees_the_buffers_and_keeps_held_batches() -> None:
    loader = DevicePrefetcher(Batches(4), **NORMALISED)
    batches = iter(loader)
    images, _ = next(batches)
    expected = images.clone()
    loader.release()
    assert loader.stats().device_bytes == 0
    assert loader.stats().num_batches == 1
    with pytest.raises(ArgumentError, match="restored or released"):
        next(batches)
    assert len(list(loader)) == 4
    assert torch.equal(images, expected)


@pytest.mark.parametrize("is_late", [True, False])
def test_an_error_of_the_loader_is_raised_after_the_batches_before_it(is_late: bool) -> None:
    def failing() -> Iterator[Any]:
        yield from Batches(3)
        raise OSError("the disk is gone")

    class Failing:
        def __iter__(self) -> Iterator[Any]:
            return failing()

    stream = LateStream(0) if is_late else None
    batches = iter(on_stream(stream, Failing(), **NORMALISED))
    received = [next(batches)[1] for _ in range(3)]
    if stream is not None:
        stream.finish()
    assert [labels[0].item() for labels in received] == [0, 1, 2]
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)
    assert next(batches, "the end") == "the end"


def test_a_loop_can_be_left_and_started_again() -> None:
    loader = DevicePrefetcher(Batches(), **NORMALISED)
    for _ in loader:
        break
    old = iter(loader)
    assert [labels[0].item() for _, labels in loader] == list(range(6))
    with pytest.raises(ArgumentError, match="was iterated again, restored or released"):
        next(old)


def test_several_prefetchers_do_not_interfere_with_each_other() -> None:
    streams = [LateStream(0), LateStream(1), None]
    loaders = [on_stream(each, Batches(5 + n), **NORMALISED) for n, each in enumerate(streams)]
    rounds = 0
    for batches in itertools.zip_longest(*loaders):
        for stream, batch in zip(streams, batches, strict=True):
            if stream is not None:
                stream.finish()
            if batch is not None:
                assert torch.equal(batch[0], reference(images_of(rounds)).float())
        rounds += 1
    assert rounds == 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("numbers")


@pytest.mark.processes
@pytest.mark.parametrize("is_late", [True, False])
def test_the_batches_of_an_mploader_arrive_in_order_and_states_count_those_received(
    folder: Path, is_late: bool
) -> None:
    expected = ids(numbers(folder, 203))

    def stream() -> LateStream | None:
        return LateStream(2, eagerness=1 - 1e-3) if is_late else None

    with MPLoader(numbers(folder, 203), num_workers=2) as inner:
        loader = on_stream(stream(), inner, device="cpu", depth=3)
        assert len(loader) == len(expected)
        batches = iter(loader)
        received = []
        for _ in range(20):
            values, labels = next(batches)
            received.append((values.clone(), labels.clone()))
        state = loader.state_dict()
        assert ids(received) == expected[:20]
    with MPLoader(numbers(folder, 203), num_workers=2) as inner:
        loader = on_stream(stream(), inner, device="cpu")
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        assert ids([(values.clone(), labels.clone()) for values, labels in loader]) == expected[20:]
        assert loader.state_dict()["epoch"] == 1
        loader.set_epoch(0)
        assert loader.state_dict()["epoch"] == 0


@pytest.mark.processes
def test_photos_arrive_normalised(photo_tree: Path) -> None:
    index = build_index(photo_tree, photo_tree.with_name("device.txt"))

    def dataset() -> MPDataset:
        return MPDataset(index, decode=RandomResizedCrop(32), batch_size=5, shuffle=True, topology=Topology())

    expected = list(dataset())
    with MPLoader(dataset(), num_workers=2) as inner:
        for (images, labels), (pixels, numbers_) in zip(DevicePrefetcher(inner, **NORMALISED), expected, strict=True):
            assert torch.equal(images, reference(pixels).float())
            assert torch.equal(labels, numbers_)


def test_batches_requested_in_inference_mode_are_ordinary_tensors() -> None:
    with torch.inference_mode():
        images, _ = next(iter(DevicePrefetcher(Batches(), **NORMALISED)))
        assert torch.is_inference_mode_enabled()
    assert not images.is_inference()
    assert not images.requires_grad


def test_arguments_that_break_a_rule_are_refused() -> None:
    with pytest.raises(ArgumentError, match="depth must be at least 1, got 0"):
        DevicePrefetcher(Batches(), device="cpu", depth=0)
    for loader in (3, MPLoader):
        with pytest.raises(ArgumentError, match=r"loader must be an iterable of batches, got .* Pass an MPLoader"):
            DevicePrefetcher(loader, device="cpu")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="list has no method state_dict"):
        DevicePrefetcher([], device="cpu").state_dict()
    missing = "xpu" if torch.cuda.is_available() else "cuda"
    with pytest.raises(ArgumentError, match=f"device '{missing}' does not exist: torch finds"):
        DevicePrefetcher(Batches(), device=missing)
