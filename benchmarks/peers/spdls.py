"""SPDL: threads around a decoder that releases the interpreter lock.

A task makes a whole batch, as in SPDL's examples, because each task is a hop between an event loop and a thread. A
second contestant makes one sample per task, which is how one would port a dataset's `__getitem__`. (Decoding with
SPDL's own `spdl.io`, which uses FFmpeg, takes twice as long here.) A pipeline is built once, and each iteration over it
is an epoch.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from spdl.pipeline import PipelineBuilder
from spdl.source import DistributedRandomSampler

from peers.crops import Crop, as_columns, channels_first, crop_with, finished
from peers.race import CROP, Batch, Contestant, Epoch, Output, Race, paths_and_labels

__all__ = ["CONTESTANTS"]

Samples = list[tuple[str, int]]


class Orders:
    """The shuffled order of each epoch; it blocks until the epoch's turn begins, so that nothing is read earlier."""

    def __init__(self, num_samples: int) -> None:
        self.sampler = DistributedRandomSampler(num_samples, rank=0, world_size=1)
        self.turns: queue.Queue[int] = queue.Queue()

    def __iter__(self) -> Iterator[int]:
        while threading.main_thread().is_alive():  # otherwise the waiting thread would keep the process alive
            try:
                number = self.turns.get(timeout=0.2)
            except queue.Empty:
                continue
            self.sampler.shuffle(seed=number)
            yield from self.sampler
            return


def make(place: int, samples: Samples, crop: Crop, output: Output) -> Any:
    path, label = samples[place]
    made = crop(Path(path).read_bytes())
    return (made if output is Output.BYTES else finished(made, output)), label


def collate(made: list[tuple[Any, int]], output: Output) -> Any:
    images, labels = as_columns(made)
    return (images if output is Output.BYTES else torch.from_numpy(np.stack(images))), torch.tensor(labels)


def make_batch(places: list[int], samples: Samples, crop: Crop, output: Output) -> Any:
    if output is Output.BYTES:
        return collate([make(place, samples, crop, output) for place in places], output)
    dtype = np.uint8 if output is Output.UINT8 else np.float32
    images, labels = np.empty((len(places), CROP, CROP, 3), dtype), np.empty(len(places), np.int64)
    for row, place in enumerate(places):
        images[row], labels[row] = make(place, samples, crop, output)
    return torch.from_numpy(images), torch.from_numpy(labels)


def whole_batches(orders: Orders, samples: Samples, crop: Crop, race: Race) -> Any:
    num_threads = max(1, race.num_workers)
    return (
        PipelineBuilder()
        .add_source(orders, continuous=True)
        .aggregate(race.batch_size)
        .pipe(partial(make_batch, samples=samples, crop=crop, output=race.output), concurrency=num_threads)
        .add_sink(3)
        .build(num_threads=num_threads)
    )


def single_samples(orders: Orders, samples: Samples, crop: Crop, race: Race) -> Any:
    num_threads = max(1, race.num_workers)
    return (
        PipelineBuilder()
        .add_source(orders, continuous=True)
        .pipe(partial(make, samples=samples, crop=crop, output=race.output), concurrency=num_threads)
        .aggregate(race.batch_size)
        .pipe(partial(collate, output=race.output))
        .add_sink(3)
        .build(num_threads=num_threads + 1)
    )


def spdls(library: str, build: Callable[..., Any]) -> Contestant:
    def start(race: Race) -> Epoch:
        torch.set_num_threads(1)
        samples = paths_and_labels(race)
        crop = crop_with(library, race.output)
        orders = Orders(len(samples))
        pipeline: Any = None

        def epoch(number: int) -> Iterator[Batch]:
            nonlocal orders, pipeline
            pipeline = pipeline or build(orders, samples, crop, race)
            orders.turns.put(number)
            try:
                for images, labels in pipeline:
                    yield (images if race.output is Output.BYTES else channels_first(images)), labels
            except GeneratorExit:  # in the middle of an epoch; the threads would wait to deliver the rest
                pipeline.stop()
                orders, pipeline = Orders(len(samples)), None
                raise

        return epoch

    return Contestant(start=start, library=library)


CONTESTANTS: dict[str, Contestant] = {
    "SPDL, simplejpeg": spdls("simplejpeg", whole_batches),
    "SPDL, simplejpeg, a task a sample": spdls("simplejpeg", single_samples),
}
