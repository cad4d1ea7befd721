"""Lookahead: the images of the next batch are decoded while a batch is used, and every error keeps its place."""

import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mpload import DevicePrefetcher, GpuDecode, MPDataset, MPLoader, RandomResizedCrop, Topology, build_index
from mpload.device.lookahead import Lookahead
from mpload.device.unpacking import Unpacker
from mpload.errors import SampleError

CPU = torch.device("cpu")


class ThreadedUnpacker(Unpacker):
    """Decodes on the CPU, but in the thread that waits for the decoder of a GPU."""

    is_async = True


class Source:
    """Yields batches, and raises an error like each one among them. Its state is the number of batches yielded."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = iter(batches)
        self.num_taken = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self.batches)
        self.num_taken += 1
        if isinstance(batch, Exception):
            raise type(batch)(*batch.args)
        return batch


@pytest.fixture
def samples(photo_tree: Path) -> list[bytes]:
    decode = GpuDecode(RandomResizedCrop(16))
    files = [path.read_bytes() for path in sorted(photo_tree.rglob("*.JPEG"))[:3]]
    return [decode(data, np.random.default_rng(number)) for number, data in enumerate(files)]


def opened(batches: list[Any], unpacker: Unpacker | None = None) -> tuple[Lookahead[int], Source, Unpacker]:
    source, unpacker = Source(batches), unpacker or ThreadedUnpacker(CPU)
    return Lookahead(source, unpacker=unpacker, state_after=lambda: source.num_taken), source, unpacker


def test_the_next_batch_is_begun_ahead_if_a_thread_decodes_images(samples: list[bytes]) -> None:
    batches, source, unpacker = opened([samples, (samples, 5), [3]])
    expected = Unpacker(CPU)(samples)
    first = next(batches)
    assert (source.num_taken, batches.num_ahead, batches.state) == (1, 0, 1)
    for _ in range(2):
        batches.look_ahead()
        assert (source.num_taken, batches.num_ahead, batches.state) == (2, 1, 1)
    assert torch.equal(unpacker.finish(first), expected)
    second = next(batches)
    assert (source.num_taken, batches.num_ahead, batches.state) == (2, 0, 2)
    batches.look_ahead()
    assert (source.num_taken, batches.num_ahead, batches.state) == (3, 1, 2)
    images, number = unpacker.finish(second)
    assert torch.equal(images, expected)
    assert number == 5
    assert unpacker.finish(next(batches)) == [3]
    assert (source.num_taken, batches.num_ahead, batches.state) == (3, 0, 3)
    assert next(batches, None) is None


@pytest.mark.parametrize("unpacker", [ThreadedUnpacker(CPU), Unpacker(CPU)])
def test_batches_are_taken_one_by_one_if_nothing_is_decoded_meanwhile(unpacker: Unpacker, samples: list[bytes]) -> None:
    plain = [torch.ones(2)]
    batches, source, _ = opened([plain, samples if type(unpacker) is Unpacker else plain, plain], unpacker)
    for number in range(3):
        next(batches)
        batches.look_ahead()
        assert (source.num_taken, batches.num_ahead) == (number + 1, 0)


def test_an_error_of_the_loader_is_raised_after_the_batches_before_it_and_the_next_ones_follow(
    samples: list[bytes],
) -> None:
    batches, _, unpacker = opened([samples, SampleError("the second"), samples, OSError("the fourth")])
    first = next(batches)
    batches.look_ahead()
    assert (batches.state, batches.num_ahead) == (1, 0)
    assert len(unpacker.finish(first)) == 3
    with pytest.raises(SampleError, match="the second"):
        next(batches)
    assert batches.state == 2
    assert len(unpacker.finish(next(batches))) == 3
    assert batches.state == 3
    with pytest.raises(OSError, match="the fourth"):
        next(batches)


def test_a_damaged_image_fails_its_own_batch_although_the_next_one_was_taken_before(samples: list[bytes]) -> None:
    damaged = samples[0][:-2000]
    batches, _, unpacker = opened([[damaged], samples])
    begun = next(batches)
    batches.look_ahead()
    with pytest.raises(SampleError, match="sample 0 of the batch, which GpuDecode left to the device"):
        unpacker.finish(begun)
    assert batches.state == 1
    assert len(unpacker.finish(next(batches))) == 3


def test_closing_waits_for_what_is_being_decoded(samples: list[bytes]) -> None:
    begun, may_go_on, ended = (threading.Event() for _ in range(3))

    def slow_decoder(_: torch.device) -> None:
        begun.set()
        may_go_on.wait(30)
        ended.set()

    batches, _, _ = opened([samples, samples], ThreadedUnpacker(CPU, find_decoder=slow_decoder))
    next(batches)
    batches.look_ahead()
    assert begun.wait(30)
    threading.Timer(0.2, may_go_on.set).start()
    batches.close()
    assert ended.is_set()
    assert batches.num_ahead == 0


def test_an_error_does_not_keep_the_loader_alive(samples: list[bytes]) -> None:
    batches, source, _ = opened([samples, OSError("ended")])
    next(batches)
    batches.look_ahead()
    with pytest.raises(OSError, match="ended") as raised:
        next(batches)
    there = weakref.ref(source)
    gc.disable()
    try:
        del batches, source, raised
        assert there() is None
    finally:
        gc.enable()


class Job:
    """Keeps an iterator in a reference cycle, as trainers do."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self.batches = batches
        self.on_end = self.stop

    def stop(self) -> None:
        pass


def prefetcher(batches: Any, unpacker: Unpacker) -> DevicePrefetcher:
    """Return a prefetcher for the CPU, whose images a thread decodes."""
    loader = DevicePrefetcher(batches, device="cpu", dtype=None)
    loader._unpack = unpacker
    return loader


def test_an_iteration_that_the_decoding_thread_collects_does_not_wait_for_that_thread(samples: list[bytes]) -> None:
    unpacker, may_collect = ThreadedUnpacker(CPU), threading.Event()

    def collect() -> int:
        may_collect.wait(30)
        return gc.collect()

    loader = prefetcher([samples] * 4, unpacker)
    gc.disable()
    try:
        job: Any = Job(iter(loader))
        next(job.batches)
        collected = unpacker._thread.submit(collect)
        next(job.batches)  # begins to decode the next batch, behind `collect`
        del job
        may_collect.set()
        assert collected.result(30) > 0
    finally:
        gc.enable()
    assert len(list(loader)) == 4


def test_images_are_decoded_while_the_interpreter_shuts_down(samples: list[bytes]) -> None:
    unpacker = ThreadedUnpacker(CPU)
    unpacker._thread.shutdown()  # as concurrent.futures does
    assert torch.equal(unpacker(samples), Unpacker(CPU)(samples))


def test_a_run_that_ends_in_its_first_batch_has_received_nothing(tmp_path: Path, photo_tree: Path) -> None:
    index = build_index(photo_tree, tmp_path / "photos.txt")
    dataset = MPDataset(index, decode=RandomResizedCrop(16), batch_size=2, shuffle=True, topology=Topology())

    def fail(_: Any) -> Any:
        raise ValueError("the transform failed")

    with MPLoader(dataset, num_workers=0) as loader:
        batches = DevicePrefetcher(loader, device="cpu", device_transform=fail)
        batches.load_state_dict({**loader.state_dict(), "position": 4})
        at_first = batches.state_dict()
        with pytest.raises(ValueError, match="the transform failed"):
            next(iter(batches))
        assert batches.state_dict() == at_first
        assert at_first["position"] == 4
