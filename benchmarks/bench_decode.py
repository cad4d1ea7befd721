"""What does a random crop of a photograph cost on one core, compared with PIL, OpenCV and the codec alone?

    python benchmarks/bench_decode.py [--quick] [--short-side 256]

Photographs of ImageNet's sizes (about 500 x 375, 105 KB) are read from the page cache, decoded, cropped at random,
resized to 224 x 224, mirrored half of the time, and written into a batch. All contestants make the same crops, except
OpenCV + albumentations, which chooses its own. They take turns of 25 images in one process, so that a disturbance of
the machine affects all of them. Times are CPU time of the only working thread, in microseconds: for each turn the best
of all rounds, and the median over whole rounds. Ratios are computed from the best times.

- pil: Image.open, crop, resize, transpose.
- opencv: cv2.imdecode, then albumentations' RandomResizedCrop and HorizontalFlip.
- simplejpeg: full decode, cv2.resize of the crop, cv2.flip.
- mpload_simplejpeg, mpload_native: all that a worker does, from sample_ids to the slot, in chunks of 25 images;
  `_antialias`: with antialias=True; `_rows`: from the second epoch on with `row_index=True`.
- mpload_libjpeg_huffman, mpload_without_avx2: as mpload_native, in processes of their own, in which libjpeg-turbo
  decodes the Huffman codes (MPLOAD_LIBJPEG_HUFFMAN=1), or rows are resized with SSE2 (MPLOAD_SIMD=sse2); `_antialias`
  as above. They show what mpload's Huffman decoder, and AVX2 or AVX-512, gain.
- limit: the C code of the native decoder in a loop in C, over the same files and crops, one after the other, without
  Python (its own process). mpload decodes two at a time, so it may be faster.

With --short-side, the photographs are made smaller first, as `mpload pack` does, and take about 30 KB.

Records: benchmarks/records/decode.jsonl.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import albumentations  # type: ignore[import-untyped]
import cv2
import numpy as np
import simplejpeg  # type: ignore[import-untyped]
from PIL import Image
from records import write_record

from mpload.images.backends import can_note_rows
from mpload.images.crops import random_crop_box
from mpload.images.decoders import RandomResizedCrop, jpeg_backend
from mpload.images.image import open_image
from mpload.images.jpeg import Jpeg
from mpload.images.resize import Box, View
from mpload.images.shrink import shrunk_jpeg
from mpload.index.opening import open_index
from mpload.ingest.build import build_index
from mpload.plan.batch_number import BatchNumber
from mpload.plan.batching import Batching
from mpload.plan.order import Sequential
from mpload.plan.plan import Tail
from mpload.plan.sample_rng import SampleRng
from mpload.plan.topology import Topology
from mpload.samples.index_work import PipelineWork
from mpload.samples.pipeline import Pipeline
from mpload.samples.policy import ErrorPolicy
from mpload.samples.row_index import RowIndex
from mpload.tools.rows import note_rows
from mpload.transport.worker import ChunkReport
from mpload.units import MIB

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.photos import make_photo_tree

SIZE = 224
TURN = 25
IMAGES = Path(__file__).parents[1] / "mpload" / "images"
MODULES = {IMAGES / f"{name}.c" for name in ("_jpeg", "_jpeg_crops", "_transcode")} | {*IMAGES.glob("_mask*.c")}
SOURCES = (Path(__file__).with_name("decode_limit.c"), *sorted({*IMAGES.glob("_*.c")} - MODULES))
Turn = Callable[[int, int], int]
"""Makes the images from first to last (exclusive), and returns the CPU time in nanoseconds."""
SWITCHED_OFF = {
    "mpload_libjpeg_huffman": {"MPLOAD_LIBJPEG_HUFFMAN": "1"},
    "mpload_without_avx2": {"MPLOAD_SIMD": "sse2"},
}
"""Contestants, and the environment variables that switch a part of the native decoder off."""


class Views:
    """The files, and the crop of each that the pipeline will choose."""

    def __init__(self, pipeline: Pipeline, *, epoch: int = 0) -> None:
        index = pipeline.index
        rng = SampleRng(seed=0, epoch=epoch)
        self.paths, self.boxes, self.mirrored, self.lines = [], [], [], []
        for record in index.records(np.arange(len(index))):
            path = Path(index.root) / str(record.cells[0])
            image = open_image(path.read_bytes())
            assert isinstance(image, Jpeg)
            dice = rng.for_sample(record.sample_id)
            box = random_crop_box(image.height, image.width, dice)
            view = View(box=box, full=(SIZE, SIZE), mirror=dice.random() < 0.5)
            self.paths.append(path)
            self.boxes.append(box)
            self.mirrored.append(view.mirror)
            size, denominator, shown, full, corner, mirror, antialias = image.stored_view(view)
            numbers = (*size, denominator, *shown, *full, *corner, int(mirror), int(antialias), SIZE, SIZE)
            self.lines.append(f"{' '.join(map(str, numbers))} {path}\n")


def timed(make: Callable[[int, Any], None]) -> Turn:
    """Return a `Turn` in which `make` writes each image to its place in a batch."""
    batch = np.zeros((TURN, SIZE, SIZE, 3), np.uint8)

    def turn(first: int, last: int) -> int:
        start = time.thread_time_ns()
        for number in range(first, last):
            make(number, batch[number - first])
        return time.thread_time_ns() - start

    return turn


def pil(views: Views) -> Turn:
    def make(number: int, out: Any) -> None:
        box = views.boxes[number]
        with Image.open(views.paths[number]) as file:
            edges = (box.left, box.top, box.left + box.width, box.top + box.height)
            image = file.convert("RGB").crop(edges).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
            if views.mirrored[number]:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        out[:] = np.asarray(image)

    return timed(make)


def opencv(views: Views) -> Turn:
    transform = albumentations.Compose([
        albumentations.RandomResizedCrop((SIZE, SIZE)),
        albumentations.HorizontalFlip(),
    ])  # fmt: skip

    def make(number: int, out: Any) -> None:
        pixels: Any = cv2.imdecode(np.frombuffer(views.paths[number].read_bytes(), np.uint8), cv2.IMREAD_COLOR)
        out[:] = transform(image=cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB))["image"]

    return timed(make)


def full_decode(views: Views) -> Turn:
    def make(number: int, out: Any) -> None:
        pixels = simplejpeg.decode_jpeg(views.paths[number].read_bytes())
        cv2.resize(views.boxes[number].of(pixels), (SIZE, SIZE), dst=out, interpolation=cv2.INTER_LINEAR)
        if views.mirrored[number]:
            cv2.flip(out, 1, dst=out)

    return timed(make)


def ours(pipeline: Pipeline) -> Turn:
    """Return a `Turn` that makes chunks of a batch as a worker does."""
    batching = Batching(num_samples=len(pipeline.index), batch_size=TURN, order=Sequential(), tail=Tail.RAGGED)
    work = PipelineWork(pipeline=pipeline, batching=batching, read_ahead_bytes=8 * MIB, decode_bytes=1 << 30)
    work.open(0)
    image, label = (column.name for column in pipeline.index.columns)
    arrays = {image: np.zeros((TURN, SIZE, SIZE, 3), np.uint8), label: np.zeros(TURN, np.int64)}

    def turn(first: int, last: int) -> int:
        start = time.thread_time_ns()
        report = ChunkReport()
        number = BatchNumber(seed=0, epoch=0, start=0, batch=first // TURN, topology=Topology(rank=0, world_size=1))
        work.fill(number.numbers, arrays, 0, last - first, report)
        return time.thread_time_ns() - start

    return turn


def compile_limit(folder: Path) -> Path:
    """Compile the loop in C; return the path of the program."""
    program = folder / "decode_limit"
    subprocess.run(["gcc", "-O3", "-o", program, *SOURCES, "-ljpeg", "-lm"], check=True)
    return program


@contextmanager
def elsewhere(*command: str | Path, **environment: str) -> Iterator[Turn]:
    """Run a program that makes images in a process of its own, for each line "first last" that it reads."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | environment
    ) as process:
        requests, answers = process.stdin, process.stdout
        assert requests is not None
        assert answers is not None

        def turn(first: int, last: int) -> int:
            requests.write(f"{first} {last}\n")
            requests.flush()
            return int(answers.readline())

        turn(0, 0)  # wait until the program is ready
        yield turn
        requests.close()


def limit(views: Views, program: Path) -> AbstractContextManager[Turn]:
    """Run the loop in C."""
    crops = program.with_name("views")
    crops.write_text("".join(views.lines))
    return elsewhere(program, crops)


def serve_turns(listing: Path, *, antialias: bool) -> None:
    """Be the program that `elsewhere` runs: make images as `mpload_native` does."""
    decode = RandomResizedCrop(SIZE, backend="native", antialias=antialias)
    turn = ours(Pipeline(index=open_index(listing), decode=decode, policy=ErrorPolicy()))
    for line in sys.stdin:
        first, last = map(int, line.split())
        print(turn(first, last), flush=True)


def measure(contestants: dict[str, Turn], *, num_images: int, rounds: int) -> dict[str, Any]:
    """Return microseconds per image for each contestant: float64 [rounds, turns]."""
    starts = range(0, num_images, TURN)
    found = {name: np.zeros((rounds, len(starts))) for name in contestants}
    for round_number in range(-1, rounds):  # round -1 warms up
        for number, first in enumerate(starts):
            for name, turn in contestants.items():
                spent_ns = turn(first, first + TURN)
                if round_number >= 0:
                    found[name][round_number, number] = spent_ns / TURN / 1000
    return found


def check_pixels(views: Views, pipelines: Sequence[Pipeline], number: int) -> None:
    """Check that the contestants make the same pixels, nearly."""
    outs = np.zeros((len(pipelines) + 1, SIZE, SIZE, 3), np.uint8)
    (record,) = pipelines[0].index.records(np.array([number]))
    for pipeline, out in zip(pipelines, outs, strict=False):
        pipeline.sample(record, seed=0, epoch=0, outs=[out])
    box: Box = views.boxes[number]
    pixels = box.of(simplejpeg.decode_jpeg(views.paths[number].read_bytes()))
    cv2.resize(pixels, (SIZE, SIZE), dst=outs[-1])
    if views.mirrored[number]:
        cv2.flip(outs[-1], 1, dst=outs[-1])
    assert np.abs(outs - outs[-1].astype(int)).mean() < 4


def make_photos(folder: Path, *, num_images: int, short_side: int | None) -> None:
    """Write the photographs, shrunk to a shorter side of `short_side` pixels if it is given."""
    make_photo_tree(folder, num_images=num_images, num_classes=1, seed=0, grain=10)
    if short_side is not None:
        for path in folder.glob("*/*"):
            path.write_bytes(shrunk_jpeg(open_image(path.read_bytes()), short_side=short_side, quality=90))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer images; write no record")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--antialias", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--short-side", type=int, metavar="PIXELS", help="make the photographs smaller first")
    arguments = parser.parse_args()
    if arguments.serve is not None:
        serve_turns(arguments.serve, antialias=arguments.antialias)
        return
    num_images, rounds = (100, 2) if arguments.quick else (500, 6)
    cv2.setNumThreads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_photos(folder / "photos", num_images=num_images, short_side=arguments.short_side)
        listing = build_index(folder / "photos", folder / "photos.txt")
        index = open_index(listing)

        def pipeline(decode: RandomResizedCrop, row_index: RowIndex | None = None) -> Pipeline:
            return Pipeline(index=index, decode=decode, policy=ErrorPolicy(), row_index=row_index)

        python = pipeline(RandomResizedCrop(SIZE, backend="simplejpeg"))
        views = Views(python)
        pipelines = {
            "mpload_simplejpeg": python,
            "mpload_simplejpeg_antialias": pipeline(RandomResizedCrop(SIZE, backend="simplejpeg", antialias=True)),
        }
        is_native = jpeg_backend().startswith("native")
        if is_native:
            pipelines["mpload_native"] = pipeline(RandomResizedCrop(SIZE, backend="native"))
            pipelines["mpload_native_antialias"] = pipeline(RandomResizedCrop(SIZE, backend="native", antialias=True))
        if can_note_rows():
            pipelines["mpload_native_rows"] = pipeline(RandomResizedCrop(SIZE, backend="native"), note_rows(index))
        for number in range(0, num_images, 20):
            check_pixels(views, [each for name, each in pipelines.items() if "antialias" not in name], number)
        contestants = {"pil": pil(views), "opencv": opencv(views), "simplejpeg": full_decode(views)}
        contestants |= {name: ours(each) for name, each in pipelines.items()}
        with ExitStack() as others:
            if is_native:
                for contestant, environment in SWITCHED_OFF.items():
                    command = (sys.executable, __file__, "--serve", str(listing))
                    contestants[contestant] = others.enter_context(elsewhere(*command, **environment))
                    antialiased = elsewhere(*command, "--antialias", **environment)
                    contestants[f"{contestant}_antialias"] = others.enter_context(antialiased)
                contestants["limit"] = others.enter_context(limit(views, compile_limit(folder)))
            found = measure(contestants, num_images=num_images, rounds=rounds)
        mean_bytes = round(statistics.mean(path.stat().st_size for path in views.paths))
    case = {"num_images": num_images, "mean_bytes": mean_bytes, "rounds": rounds, "backend": jpeg_backend()}
    if is_native:
        case["simd"] = import_module("mpload.images._jpeg").SIMD
    if arguments.short_side is not None:
        case["short_side"] = arguments.short_side
    best = {name: times.min(axis=0).mean() for name, times in found.items()}
    for name, times in found.items():
        figures = {"best_us": best[name], "median_us": statistics.median(times.mean(axis=1))}
        ratios = {"times_pil": best["pil"] / best[name], "times_opencv": best["opencv"] / best[name]}
        if "limit" in best:
            ratios["of_limit"] = best[name] / best["limit"]
        figures = {key: round(value, 1) for key, value in figures.items()}
        figures |= {key: round(value, 3) for key, value in ratios.items()}
        print(json.dumps({"contestant": name, **figures}), flush=True)
        if not arguments.quick:
            write_record("decode", {"contestant": name, **case}, figures)


if __name__ == "__main__":
    main()
