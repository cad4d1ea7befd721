"""Measures how many of the user's images per second each installed library decodes on one core."""

import importlib
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

import cv2
import numpy as np
import simplejpeg  # type: ignore[import-untyped]

from mpload.errors import DecodeError, MploadError
from mpload.images.crops import random_crop_box
from mpload.images.decoders import ImageDecoder, RandomResizedCrop, jpeg_backend
from mpload.images.resize import Pixels
from mpload.index.index import Index, require_files
from mpload.plan.order import Shuffle
from mpload.plan.sample_rng import SampleRng
from mpload.samples.pipeline import Pipeline
from mpload.samples.policy import ErrorPolicy
from mpload.units import format_counted

__all__ = ["CROP", "DECODE", "Backend", "Speed", "installed_backends", "measure_speeds", "read_images"]

DECODE: Final = "decode"
CROP: Final = "decode + crop"
_NUM_WARM_UP_IMAGES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A decoding library, used in the most efficient way."""

    name: str
    decode: Callable[[bytes], Pixels]
    """Decodes a whole image to uint8 RGB [height, width, 3]."""
    crop: Callable[[bytes, np.random.Generator], Pixels]
    """Decodes a random resized crop, mirrored half of the time, to uint8 RGB [size, size, 3]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The speed of a backend at a task."""

    backend: str
    task: str
    """`DECODE` or `CROP`."""
    images_per_second: float | None
    """The median of all rounds, on one core. None if the backend could not decode any image."""
    failed: int
    """The number of images per round that could not be decoded. They are excluded from `images_per_second`."""


def read_images(index: Index, *, num_images: int, seed: int) -> list[bytes]:
    """Return the bytes of random samples, from the first column of files.

    Raises:
        ArgumentError: The index has no column of files.
        SampleError: A file cannot be read.
    """
    require_files(index, what="the benchmark of decoders")
    pipeline = Pipeline(index=index, decode=bytes, policy=ErrorPolicy())
    order = Shuffle().order(num_samples=len(index), seed=seed, epoch=0)
    ids = order.sample_ids(np.arange(min(num_images, len(index)), dtype=np.int64))
    made = (pipeline.sample(record, seed=seed, epoch=0) for record in index.records(ids))
    return [sample[1][pipeline.sources[0]] for sample in made if sample is not None]


def installed_backends(size: int) -> tuple[list[Backend], list[str]]:
    """Return the installed backends, mpload first, and the packages to install for the others.

    Args:
        size: The height and width of the crops, in pixels.
    """
    backends = [
        Backend(name=f"mpload, {jpeg_backend()}", decode=ImageDecoder(), crop=RandomResizedCrop(size)),
        _full_decode("simplejpeg", simplejpeg.decode_jpeg, size),
        _full_decode("OpenCV", _opencv, size),
    ]
    missing = []
    for name, module, make in (("pillow", "PIL.Image", _pillow), ("imageio", "imageio.v3", _imageio)):
        try:
            backends.append(make(importlib.import_module(module), size))
        except ImportError:
            missing.append(name)
    return backends, missing


def measure_speeds(
    backends: Sequence[Backend],
    files: Sequence[bytes],
    *,
    rounds: int,
    seed: int,
    progress: Callable[[int], None] | None = None,
) -> list[Speed]:
    """Measure all backends on one core. They take turns, so that a temporary load on the machine affects all of them.

    Raises:
        MploadError: No backend can decode any of `files`.
    """
    rng = SampleRng(seed=seed, epoch=0)
    turns = {(each.name, task): call for each in backends for task, call in _tasks(each, files, rng).items()}
    timed: dict[tuple[str, str], list[tuple[float | None, int]]] = {turn: [] for turn in turns}
    num_threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        for done in range(rounds):
            for turn, call in turns.items():
                _timed(call, range(min(_NUM_WARM_UP_IMAGES, len(files))))
                timed[turn].append(_timed(call, range(len(files))))
            if progress is not None:
                progress(done + 1)
    finally:
        cv2.setNumThreads(num_threads)
    speeds = []
    for (name, task), found in timed.items():
        rates = [rate for rate, _ in found if rate is not None]
        median = statistics.median(rates) if rates else None
        speeds.append(Speed(backend=name, task=task, images_per_second=median, failed=found[-1][1]))
    if not any(speed.images_per_second for speed in speeds):
        raise MploadError(
            f"none of {format_counted(len(files), 'file')} is an image that can be decoded. "
            "To find out why: mpload inspect INDEX --check"
        )
    return speeds


def _tasks(backend: Backend, files: Sequence[bytes], rng: SampleRng) -> dict[str, Callable[[int], Pixels]]:
    return {
        DECODE: lambda number: backend.decode(files[number]),
        CROP: lambda number: backend.crop(files[number], rng.for_sample(number)),
    }


def _timed(call: Callable[[int], Pixels], numbers: Iterable[int]) -> tuple[float | None, int]:
    """Return the images per second, or None if all failed, and the number that failed."""
    seconds, num_done, num_failed = 0.0, 0, 0
    for number in numbers:
        start = time.perf_counter()
        try:
            call(number)
        except Exception:  # noqa: BLE001  each library raises its own errors
            num_failed += 1
        else:
            seconds += time.perf_counter() - start
            num_done += 1
    return (num_done / seconds if num_done else None), num_failed


def _full_decode(name: str, decode: Callable[[bytes], Pixels], size: int) -> Backend:
    """Return a backend that decodes the whole image, and uses OpenCV for cropping and resizing."""

    def crop(data: bytes, rng: np.random.Generator) -> Pixels:
        pixels = decode(data)
        box = random_crop_box(pixels.shape[0], pixels.shape[1], rng)
        resized = cv2.resize(box.of(pixels), (size, size), interpolation=cv2.INTER_LINEAR)
        return np.asarray(cv2.flip(resized, 1) if rng.random() < 0.5 else resized, np.uint8)

    return Backend(name=name, decode=decode, crop=crop)


def _opencv(data: bytes) -> Pixels:
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    if pixels is None:
        raise DecodeError("OpenCV cannot decode the image")
    return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB, dst=pixels), np.uint8)


def _pillow(pillow: Any, size: int) -> Backend:
    def open_rgb(data: bytes) -> Any:
        return pillow.open(BytesIO(data)).convert("RGB")

    def crop(data: bytes, rng: np.random.Generator) -> Pixels:
        image = open_rgb(data)
        box = random_crop_box(image.height, image.width, rng)
        edges = (box.left, box.top, box.left + box.width, box.top + box.height)
        image = image.resize((size, size), pillow.Resampling.BILINEAR, box=edges)
        return np.asarray(image.transpose(pillow.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else image)

    return Backend(name="PIL", decode=lambda data: np.asarray(open_rgb(data)), crop=crop)


def _imageio(imageio: Any, size: int) -> Backend:
    return _full_decode("imageio", lambda data: np.asarray(imageio.imread(data, mode="RGB")), size)
