"""DevicePrefetcher on an accelerator: what users do around it with torch's streams, graphs, modes and processes.

MPLOAD_REQUIRE_GPU=1 pytest -m gpu -n 0         # on a GPU
MPLOAD_TEST_DEVICE=late pytest -m gpu -n 0      # without a GPU: an emulated device with threads as streams
"""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from mpload import DevicePrefetcher, MPDataset, MPLoader, PerSample, RandomResizedCrop, Topology, build_index
from mpload.device.streams import AcceleratorStream
from tests.support.device_batches import MEAN, STD, Batches, every_pixel, flip, images_of, reference
from tests.support.large_batches import DEVICE, LargeBatches, keep_busy, large

pytestmark = pytest.mark.gpu
needs_cuda = pytest.mark.skipif(
    torch.accelerator.is_available() and not torch.cuda.is_available(), reason="the accelerator is not a CUDA device"
)
NORMALISED: dict[str, Any] = {"device": DEVICE, "mean": MEAN, "std": STD}
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("depth", [2, 3])
def test_each_batch_may_be_requested_on_another_stream_even_if_it_is_the_side_stream_itself(depth: int) -> None:
    num_streams = 34  # torch has 32, so some of these are the same stream, and one is the prefetcher's own
    streams = [AcceleratorStream(torch.device(DEVICE.type, 0)) for _ in range(num_streams)]
    batches = iter(DevicePrefetcher(LargeBatches(num_streams, pinned=True), device=DEVICE, dtype=None, depth=depth))
    seen = []
    for stream in streams:
        with stream.entered():
            images, numbers = next(batches)
            keep_busy()
            seen.append((images.clone(), numbers.clone()))
            del images, numbers
    torch.accelerator.synchronize()
    for number, (images, numbers) in enumerate(seen):
        assert torch.equal(images.cpu(), large(number)), number
        assert numbers.unique().tolist() == [number]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_around_the_loop_does_not_change_batches(dtype: torch.dtype) -> None:
    with torch.autocast("cuda" if DEVICE.type == "cuda" else "cpu", dtype=dtype):
        ((found, labels),) = DevicePrefetcher([(every_pixel(), torch.arange(2))], dtype=torch.float32, **NORMALISED)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double().cpu(), reference(every_pixel()), rtol=2e-6, atol=2e-6)
    assert labels.dtype == torch.int64


def test_batches_made_ahead_in_inference_mode_can_be_trained_on() -> None:
    weight = torch.ones(3, device=DEVICE, requires_grad=True)
    batches = iter(DevicePrefetcher(Batches(4), depth=3, **NORMALISED))
    with torch.inference_mode():
        next(batches)
        assert torch.is_inference_mode_enabled()
    for number in (1, 2, 3):
        images, _ = next(batches)
        (gradient,) = torch.autograd.grad((images * weight[:, None, None]).sum(), [weight])
        expected = reference(images_of(number)).sum((0, 2, 3))
        torch.testing.assert_close(gradient.double().cpu(), expected, rtol=1e-4, atol=1e-3)


def test_a_default_device_changes_nothing(photo_tree: Path) -> None:
    index = build_index(photo_tree, photo_tree.with_name("default_device.txt"))

    def dataset() -> MPDataset:
        return MPDataset(index, decode=RandomResizedCrop(64), batch_size=5, shuffle=True, topology=Topology())

    expected = list(dataset())
    with torch.device(DEVICE), MPLoader(dataset(), num_workers=2) as inner:
        loader = DevicePrefetcher(inner, device_transform=PerSample(flip), **NORMALISED)
        seen = list(loader)
        again = DevicePrefetcher(inner, device=DEVICE, dtype=None)
        again.load_state_dict({**loader.state_dict(), "epoch": 0, "position": 0})
        pixels = [images.cpu() for images, _ in again]
    for (images, labels), found, (wanted, numbers) in zip(seen, pixels, expected, strict=True):
        assert torch.equal(found, wanted)
        assert labels.tolist() == numbers.tolist()
        for image, unflipped in zip(images.double().cpu(), reference(wanted), strict=True):
            torch.testing.assert_close(image.sum(-1), unflipped.sum(-1), rtol=1e-4, atol=1e-3)


def test_an_error_in_a_transform_leaves_the_current_stream_and_device_as_they_were() -> None:
    is_broken = True

    def broken(batch: Any) -> Any:
        if is_broken:
            raise ValueError("this transform is broken")
        return batch

    before = torch.accelerator.current_stream(), torch.accelerator.current_device_index()
    loader = DevicePrefetcher(Batches(), device_transform=broken, **NORMALISED)
    with pytest.raises(ValueError, match="this transform is broken"):
        next(iter(loader))
    assert (torch.accelerator.current_stream(), torch.accelerator.current_device_index()) == before
    is_broken = False
    assert [labels[0].item() for _, labels in loader] == list(range(6))


def test_an_error_in_queued_work_leaves_the_current_stream_and_device_as_they_were() -> None:
    def broken(_: torch.Tensor) -> None:
        raise ValueError("this work is broken")

    stream = AcceleratorStream(torch.device(DEVICE.type, 0))
    outer = AcceleratorStream(torch.device(DEVICE.type, 0))
    try:
        for index in range(torch.accelerator.device_count()):
            torch.accelerator.set_device_index(index)
            before = torch.accelerator.current_stream(0)
            with outer.entered():
                entered = torch.accelerator.current_stream()
                with pytest.raises(ValueError, match="this work is broken"), stream.entered():
                    stream.queue(broken, torch.zeros(1))
                assert torch.accelerator.current_stream() == entered
            assert (torch.accelerator.current_stream(0), torch.accelerator.current_device_index()) == (before, index)
    finally:
        torch.accelerator.set_device_index(0)


@needs_cuda
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
@pytest.mark.parametrize("is_transformed", [True, False])
def test_sparse_nested_and_subclassed_tensors_arrive_with_their_values(is_transformed: bool) -> None:
    class Marked(torch.Tensor):
        """A tensor subclass, like the tv_tensors of torchvision."""

    rows = [torch.arange(2.0), torch.arange(5.0)]
    batch = [
        images_of(0),
        torch.eye(3).to_sparse(),
        torch.eye(3).to_sparse_csr(),
        torch.arange(4).as_subclass(Marked),
        torch.nested.nested_tensor(rows, layout=torch.jagged),
    ]
    transform = (lambda each: each) if is_transformed else None
    ((images, coo, csr, marked, nested),) = DevicePrefetcher([batch], device_transform=transform, **NORMALISED)
    torch.testing.assert_close(images.double().cpu(), reference(images_of(0)), rtol=2e-6, atol=2e-6)
    assert {each.device.type for each in (images, coo, csr, marked, nested)} == {"cuda"}
    assert torch.equal(coo.to_dense().cpu(), torch.eye(3))
    assert torch.equal(csr.to_dense().cpu(), torch.eye(3))
    assert (type(marked), marked.tolist()) == (Marked, [0, 1, 2, 3])
    assert [row.tolist() for row in nested.unbind()] == [row.tolist() for row in rows]


@needs_cuda
def test_graphs_that_are_captured_for_each_address_see_the_right_batches_though_their_sizes_change() -> None:
    num_images = [4, 4, 32, 4, 4, 32]
    sources = [large(number)[:num].pin_memory() for number, num in enumerate(num_images)]
    loader = DevicePrefetcher(sources, device=DEVICE, dtype=None, stable_addresses=True, depth=1)
    graphs: dict[tuple[int, int], Any] = {}
    addresses, sums = [], []
    sources[0].to(DEVICE).sum((1, 2, 3), dtype=torch.int64)  # loads the kernel, which a capture may not
    for images in loader:
        key = images.data_ptr(), len(images)
        if key not in graphs:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = images.sum((1, 2, 3), dtype=torch.int64)
            graphs[key] = graph, out
        graph, out = graphs[key]
        graph.replay()
        addresses.append(images.data_ptr())
        sums.append(out.clone())
    for number, found in enumerate(sums):
        assert torch.equal(found.cpu(), sources[number].sum((1, 2, 3), dtype=torch.int64)), number
    assert len(set(addresses[2:])) == 1  # none changes after the largest batch


@needs_cuda
def test_another_thread_may_capture_a_graph_while_batches_are_copied() -> None:
    is_warm, is_capturing, is_fetched = threading.Event(), threading.Event(), threading.Event()
    seen: list[Any] = []
    errors: list[BaseException] = []

    def consume() -> None:
        try:
            loader = DevicePrefetcher(LargeBatches(), device=DEVICE, dtype=None)
            list(loader)
            is_warm.set()
            assert is_capturing.wait(30)
            seen.extend((images.clone(), numbers.clone()) for images, numbers in loader)
        except BaseException as error:  # noqa: BLE001  raised in the main thread
            errors.append(error)
        finally:
            is_warm.set()
            is_fetched.set()

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert is_warm.wait(30)
    values = torch.arange(1000.0, device="cuda")
    expected = values * 2  # loads the kernel, which a capture may not
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        out = values * 2
        is_capturing.set()
        assert is_fetched.wait(30)
    consumer.join(30)
    if errors:
        raise errors[0]
    graph.replay()
    assert torch.equal(out, expected)
    for number, (images, _) in enumerate(seen):
        assert torch.equal(images.cpu(), large(number)), number
    assert len(seen) == 8


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a new interpreter."""
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@needs_cuda
def test_the_cpu_is_used_if_no_gpu_is_visible() -> None:
    program = """
import torch
from mpload import DevicePrefetcher
from mpload.errors import ArgumentError
((images,),) = DevicePrefetcher([(torch.zeros(1, 3, 4, 4, dtype=torch.uint8),)])
print(images.device, images.dtype)
try:
    DevicePrefetcher([], device="cuda")
except ArgumentError as error:
    print(error)
"""
    found = run(program, CUDA_VISIBLE_DEVICES="")
    assert found.returncode == 0, found.stderr
    device, message = found.stdout.splitlines()
    assert device == "cpu torch.float32"
    assert message.startswith("device 'cuda' does not exist: torch finds")


@needs_cuda
def test_a_process_that_ends_in_the_middle_of_a_loop_ends_without_a_message() -> None:
    program = """
from mpload import DevicePrefetcher
from tests.support.slotted_batches import SlottedBatches
loader = DevicePrefetcher(SlottedBatches(4), device="cuda:0")
batches = iter(loader)
images, numbers = next(batches)
print(images.sum().isfinite().item())
"""
    found = run(program)
    assert (found.returncode, found.stdout.split(), found.stderr) == (0, ["True"], "")
