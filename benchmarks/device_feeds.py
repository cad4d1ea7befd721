"""Loaders that bring photographs onto a GPU: the contestants of bench_device_peers.py.

Each yields batches without end: images [B, 3, 224, 224], normalised, bfloat16 or float16, channels last, and int64
labels, all on the device. Every contestant crops and flips at random and reads the same list of plain JPEG files.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from feeds import MEAN, SIZE, STD, DataPrefetcher, chain
from peers.crops import channels_first, crop_pixels, crop_with
from peers.race import Output, Race, each_path_and_label
from torch.utils.data import DataLoader, Dataset

import mpload

__all__ = ["Batches", "Feed", "Setting", "contestants"]

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a contestant reads, and with what."""

    listing: Path
    """Lines of a path, relative to the listing's folder, and a label."""
    batch_samples: int
    num_workers: int
    device: str
    hw_decoder_load: float
    """DALI: the fraction of the photographs for the GPU's hardware decoder."""
    largest_side: int
    """Upper bound for the height and width of the photographs, in pixels."""

    def race(self) -> Race:
        return Race(
            data=self.listing.parent,
            output=Output.UINT8,
            batch_size=self.batch_samples,
            num_workers=self.num_workers,
            listing=self.listing,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """A contestant."""

    start: Callable[[Setting, ExitStack], Batches]
    """Starts the loader; the stack is closed when the measurement is over."""
    largest_difference: float | None = None
    """How far the first batch may be from the one that an `MPDataset` decodes on the CPU: mean of absolute differences
    of the pixels, 0 to 255. None for loaders that choose other crops."""
    library: str | None = None
    """The package whose version is recorded."""
    is_loader: bool = True


# mpload.


def dataset(setting: Setting, decode: Callable[..., Any] | None = None) -> mpload.MPDataset:
    return mpload.MPDataset(
        setting.listing,
        decode=decode or mpload.RandomResizedCrop(SIZE),
        batch_size=setting.batch_samples,
        shuffle=True,
        tail="drop",
        topology=mpload.Topology(),
    )


def ours(decode: Callable[[], Callable[..., Any]]) -> Callable[[Setting, ExitStack], Batches]:
    def start(setting: Setting, stack: ExitStack) -> Batches:
        loader = stack.enter_context(
            mpload.MPLoader(dataset(setting, decode()), num_workers=setting.num_workers),
        )
        batches = mpload.DevicePrefetcher(loader, device=setting.device, dtype=torch.bfloat16, mean=MEAN, std=STD)
        return endless(batches)

    return start


def crop() -> mpload.RandomResizedCrop:
    return mpload.RandomResizedCrop(SIZE)


def on_gpu(**options: Any) -> mpload.GpuDecode:
    return mpload.GpuDecode(mpload.RandomResizedCrop(SIZE), **options)


# torch's DataLoader.


class Photos(Dataset[Any]):
    """The usual map-style dataset. `library` decodes and resizes; OpenCV is the fastest of those most people use."""

    def __init__(self, setting: Setting, library: str) -> None:
        self.samples = list(each_path_and_label(setting.race()))
        self.crop = _opencv if library == "opencv" else crop_with(library, Output.UINT8)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> Any:
        path, label = self.samples[number]
        return self.crop(Path(path).read_bytes()), label


def _opencv(data: bytes) -> Any:
    import cv2

    cv2.setNumThreads(0)
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    return cv2.cvtColor(crop_pixels(pixels), cv2.COLOR_BGR2RGB)  # the crop is smaller than the photograph


class ChannelsFirst:
    """A loader's batches of images [B, H, W, 3] as views [B, 3, H, W]."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return ((channels_first(images), labels) for images, labels in self.loader)


def copied(loader: Iterable[Any], setting: Setting) -> Batches:
    """Copy and normalise with the pattern of most training scripts."""
    if setting.device == "cpu":
        return endless(Normalised(loader))
    return endless(DataPrefetcher(loader))


class Normalised:
    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return ((chain(images).bfloat16(), labels) for images, labels in self.loader)


def stock(library: str) -> Callable[[Setting, ExitStack], Batches]:
    def start(setting: Setting, stack: ExitStack) -> Batches:
        del stack
        loader: Any = DataLoader(
            Photos(setting, library),
            batch_size=setting.batch_samples,
            shuffle=True,
            drop_last=True,
            num_workers=setting.num_workers,
            pin_memory=setting.device != "cpu",
            persistent_workers=True,
        )
        return copied(ChannelsFirst(loader), setting)

    return start


def ours_in_stock(setting: Setting, stack: ExitStack) -> Batches:
    del stack
    loader: Any = DataLoader(
        dataset(setting),  # type: ignore[arg-type, unused-ignore]
        batch_size=None,
        num_workers=setting.num_workers,
        pin_memory=setting.device != "cpu",
        persistent_workers=True,
    )
    return copied(loader, setting)


# DALI.


def dali(where: str) -> Callable[[Setting, ExitStack], Batches]:
    """Return the pipeline of DALI's ResNet-50 example; `where` is "mixed" (nvJPEG) or "cpu"."""

    def start(setting: Setting, stack: ExitStack) -> Batches:
        del stack
        from nvidia.dali import fn, pipeline_def, types
        from nvidia.dali.plugin.base_iterator import LastBatchPolicy
        from nvidia.dali.plugin.pytorch import DALIGenericIterator

        options: dict[str, Any] = {}
        if where == "mixed":
            options = {
                "hw_decoder_load": setting.hw_decoder_load,
                "preallocate_width_hint": setting.largest_side,
                "preallocate_height_hint": setting.largest_side,
            }

        @pipeline_def(  # type: ignore[untyped-decorator]
            batch_size=setting.batch_samples, num_threads=setting.num_workers, device_id=0, prefetch_queue_depth=3
        )
        def photos() -> Any:
            files, labels = fn.readers.file(
                file_list=str(setting.listing),
                file_root=str(setting.listing.parent),
                random_shuffle=True,
                name="photos",
            )
            images = fn.decoders.image_random_crop(
                files,
                device=where,
                output_type=types.RGB,
                random_area=[0.08, 1.0],
                random_aspect_ratio=[3 / 4, 4 / 3],
                **options,
            )
            images = fn.resize(
                images.gpu(), size=(SIZE, SIZE), interp_type=types.INTERP_LINEAR, antialias=False, device="gpu"
            )
            images = fn.crop_mirror_normalize(
                images,
                mirror=fn.random.coin_flip(),
                dtype=types.FLOAT16,
                output_layout="HWC",
                mean=[255 * mean for mean in MEAN],
                std=[255 * std for std in STD],
            )
            return images, labels.gpu()

        batches = DALIGenericIterator(
            photos(),
            ["images", "labels"],
            reader_name="photos",
            auto_reset=True,
            last_batch_policy=LastBatchPolicy.DROP,
        )
        return (
            (channels_first(batch[0]["images"]), batch[0]["labels"].squeeze(-1).long()) for batch in endless(batches)
        )

    return start


# SPDL. Its own nvJPEG decoder is not built into the package on PyPI, and its FFmpeg decoder is slower (peers/spdls.py).


def spdl(setting: Setting, stack: ExitStack) -> Batches:
    from peers.spdls import make_batch
    from spdl.io import transfer_tensor_h2d
    from spdl.pipeline import PipelineBuilder

    samples = list(each_path_and_label(setting.race()))
    make = partial(make_batch, samples=samples, crop=crop_with("simplejpeg", Output.UINT8), output=Output.UINT8)
    builder = (
        PipelineBuilder()
        .add_source(shuffled_forever(len(samples)))
        .aggregate(setting.batch_samples)
        .pipe(make, concurrency=setting.num_workers)
    )
    if setting.device != "cpu":
        builder = builder.pipe(transfer_tensor_h2d, executor=ThreadPoolExecutor(1))
    pipeline = builder.add_sink(3).build(num_threads=setting.num_workers)
    stack.enter_context(pipeline.auto_stop())
    return spdl_batches(pipeline)


def shuffled_forever(num_samples: int) -> Iterator[int]:
    for epoch in count():
        order = list(range(num_samples))
        random.Random(epoch).shuffle(order)
        yield from order


def spdl_batches(pipeline: Iterable[Any]) -> Batches:
    for images, labels in pipeline:
        if images.is_cuda:
            for tensor in (images, labels):
                tensor.record_stream(torch.cuda.current_stream())
        yield chain(channels_first(images)).bfloat16(), labels


# No loader.


def resident(setting: Setting, stack: ExitStack) -> Batches:
    """Yield the same batch, made on the device, forever."""
    del stack
    images = torch.randn(setting.batch_samples, 3, SIZE, SIZE, dtype=torch.bfloat16, device=setting.device)
    labels = torch.randint(0, 100, (setting.batch_samples,), device=setting.device)
    return endless([(images.contiguous(memory_format=torch.channels_last), labels)])


def endless(batches: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from batches


def contestants(shares: Iterable[float]) -> dict[str, Feed]:
    """Return all contestants by name; `shares` are the fractions of photographs that mpload decodes on the GPU."""
    mixed = {
        f"mpload, mixed {share:g}": Feed(start=ours(partial(on_gpu, share=share)), largest_difference=3.0)
        for share in shares
    }
    return {
        "no loader": Feed(start=resident, is_loader=False),
        "mpload": Feed(start=ours(crop), largest_difference=2.0),
        "mpload, decoded on the GPU": Feed(start=ours(on_gpu), largest_difference=3.0, library="torchvision"),
        **mixed,
        "DataLoader": Feed(start=stock("opencv")),
        "DataLoader, simplejpeg": Feed(start=stock("simplejpeg")),
        "mpload's dataset in a DataLoader": Feed(start=ours_in_stock, largest_difference=2.0),
        "DALI, mixed": Feed(start=dali("mixed"), library="nvidia.dali"),
        "DALI, decoded on the CPU": Feed(start=dali("cpu"), library="nvidia.dali"),
        "SPDL": Feed(start=spdl, library="spdl.io"),
    }
