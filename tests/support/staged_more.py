"""More jobs that are slow for one known reason: formats, decoders, waiting, contention, and datasets of the user."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tests.support.photos import encode
from tests.support.slow_disk import SlowDisk, mounted
from tests.support.staged import Staged, Waiting, write_index, write_photos

__all__ = ["MORE", "photos", "pil_crop", "progressive", "waiting_transform"]

_CROP = ("--decode", "tests.support.staged:plain_crop")
_HUNGRY = ("--batch-size", "8", "--step-time", "0.001")


class PilCrop:
    """Decodes with Pillow, as many training scripts do."""

    output_shape = (224, 224, 3)

    def __call__(self, data: bytes, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        with Image.open(BytesIO(data)) as image:
            made = image.convert("RGB").resize((300, 256), Image.Resampling.BILINEAR).crop((38, 16, 262, 240))
        if out is None:
            return np.asarray(made)
        out[:] = np.asarray(made)
        return out


pil_crop = PilCrop()
slow_service = Waiting(seconds=0.1)


def waiting_transform(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Take 30 ms, but hardly any CPU time."""
    time.sleep(0.03)
    return image


class Computes:
    """A map-style dataset whose samples take 5 ms of CPU time."""

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, number: int) -> Any:
        ends = time.thread_time() + 0.005
        while time.thread_time() < ends:
            pass
        return np.full((8, 8), number, np.float32)


computes = Computes()


def photos(convert: Callable[[Image.Image], bytes] | None = None, *, broken: int = 0) -> Callable[..., Path]:
    """Return a function that indexes two dozen photos many times each, converted, some of them broken."""

    def prepare(folder: Path, _: ExitStack) -> Path:
        write_photos(folder / "photos", num=24)
        files = sorted((folder / "photos").iterdir())
        for number, path in enumerate(files):
            if convert is not None:
                with Image.open(path) as image:
                    image.load()
                    path.write_bytes(convert(image))
            if number < broken:
                path.write_bytes(path.read_bytes()[:200])
        names = [path.name for path in files]
        return write_index(folder / "train.txt", root=folder / "photos", names=names, repeats=400)

    return prepare


def progressive(image: Image.Image) -> bytes:
    """Return a progressive JPEG."""
    return encode(image, "JPEG", quality="keep", progressive=True)


def _network(folder: Path, stack: ExitStack) -> Path:
    write_photos(folder / "contents", num=16, height=120, width=160)
    disk = SlowDisk(contents=folder / "contents", num_files=3000, read_seconds=0.04, reads_at_once=4, is_cached=False)
    point = stack.enter_context(mounted(disk, folder / "disk"))
    return write_index(folder / "train.txt", root=point, names=[str(number) for number in range(3000)])


def _png(image: Image.Image) -> bytes:
    return encode(image, "PNG")


MORE: dict[str, Staged] = {
    "all progressive": Staged(
        bottleneck="progressive JPEGs", first="mpload pack", prepare=photos(progressive), options=(*_CROP, *_HUNGRY)
    ),
    "PNG photos": Staged(
        bottleneck="format that decodes slowly",
        first="--resize-short",
        prepare=photos(_png),
        options=(*_CROP, *_HUNGRY),
    ),
    "Pillow": Staged(
        bottleneck="slow decoder",
        first="mpload's own decoder",
        prepare=photos(),
        options=("--decode", "tests.support.staged_more:pil_crop", *_HUNGRY),
    ),
    "a service that takes 100 ms": Staged(
        bottleneck="too few workers",
        first="num_workers=",
        prepare=photos(),
        seconds=6.0,
        options=("--decode", "tests.support.staged_more:slow_service", "--workers", "4", *_HUNGRY),
    ),
    "a transform that waits": Staged(
        bottleneck="too few workers",
        first="num_workers=",
        prepare=photos(),
        options=(*_CROP, "--transform", "tests.support.staged_more:waiting_transform", *_HUNGRY),
    ),
    "busy neighbours": Staged(
        bottleneck="other processes",
        first="Stop or move",
        prepare=photos(),
        num_neighbours=4,
        options=("--decode", "tests.support.staged:plain_crop", *_HUNGRY),
    ),
    "CPU quota": Staged(
        bottleneck="CPU quota",
        first="Raise the container's quota",
        prepare=photos(),
        quota_cores=0.5,
        seconds=6.0,
        options=(*_CROP, *_HUNGRY),
    ),
    "broken photos": Staged(
        bottleneck="broken samples",
        first="mpload inspect",
        prepare=photos(broken=5),
        options=(*_CROP, "--batch-size", "8", "--step-time", "1.0"),
    ),
    "network storage": Staged(
        bottleneck="storage",
        first="Cache",
        prepare=_network,
        needs_mount=True,
        options=("--decode", "tests.support.staged:small_crop", "--batch-size", "8", "--step-time", "0.008"),
    ),
    "a map-style dataset that waits": Staged(
        bottleneck="too few workers",
        first="num_workers=",
        prepare=photos(),
        dataset="tests.support.own_datasets:mapped",
        options=_HUNGRY,
    ),
    "a map-style dataset that computes": Staged(
        bottleneck="decode",
        first="Use a machine with",
        prepare=photos(),
        dataset="tests.support.staged_more:computes",
        options=_HUNGRY,
    ),
    "no time of a step": Staged(
        bottleneck="not known without the time of a step",
        first="--resize-short",
        prepare=photos(),
        options=(*_CROP, "--batch-size", "8"),
    ),
}
