"""SPDL: its threads around a decoder that lets go of the interpreter lock, or its pool of processes.

Both are what its documentation would have one compare. A pipeline is built once and runs an epoch as often as it is
iterated; stages have a thread for each of their tasks, and decoded crops are put together by one copy.
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
from spdl.pipeline.defs import MAIN_PROCESS, ProcessPoolExecutorConfig
from spdl.source import DistributedRandomSampler

from peers.crops import Crop, as_tensor, crop_with
from peers.race import Contestant, Epoch, Output, Race, paths_and_labels

__all__ = ["CONTESTANTS"]

Stage = Callable[[Any], Any]


class Orders:
    """An order for each epoch, which nothing is read of before the epoch's turn."""

    def __init__(self, num_samples: int) -> None:
        self.sampler = DistributedRandomSampler(num_samples, rank=0, world_size=1)
        self.turns: queue.Queue[int] = queue.Queue()

    def __iter__(self) -> Iterator[int]:
        while threading.main_thread().is_alive():  # else the thread that waits here keeps the process alive
            try:
                number = self.turns.get(timeout=0.2)
            except queue.Empty:
                continue
            self.sampler.shuffle(seed=number)
            yield from self.sampler
            return


def make(place: int, samples: list[tuple[str, int]], crop: Crop, output: Output) -> Any:
    path, label = samples[place]
    made = crop(Path(path).read_bytes())
    return (as_tensor(made, output) if output is Output.FLOAT32 else made), label


def collate(made: list[tuple[Any, int]], output: Output) -> Any:
    images: Any
    images, labels = zip(*made, strict=True)
    if output is Output.UINT8:
        images = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)  # the pixels are copied as they lie
    elif output is Output.FLOAT32:
        images = torch.stack(images)
    return images, torch.tensor(labels)


def with_threads(orders: Orders, make_one: Stage, collate_all: Stage, race: Race) -> Any:
    num_threads = max(1, race.num_workers)
    return (
        PipelineBuilder()
        .add_source(orders, continuous=True)
        .pipe(make_one, concurrency=num_threads)
        .aggregate(race.batch_size)
        .pipe(collate_all)
        .add_sink(3)
        .build(num_threads=num_threads + 1)
    )


def with_processes(orders: Orders, make_one: Stage, collate_all: Stage, race: Race) -> Any:
    num_together = 16  # samples that cross to another process at a time
    return (
        PipelineBuilder()
        .add_source(orders, continuous=True)
        .to(ProcessPoolExecutorConfig(max_workers=max(1, race.num_workers)), buffer_size=num_together)
        .pipe(make_one)
        .aggregate(race.batch_size)
        .pipe(collate_all)
        .to(MAIN_PROCESS, buffer_size=max(1, num_together // race.batch_size))
        .add_sink(3)
        .build(num_threads=2)
    )


def spdls(library: str, build: Callable[..., Any]) -> Contestant:
    def start(race: Race) -> Epoch:
        torch.set_num_threads(1)
        samples = paths_and_labels(race)
        make_one = partial(make, samples=samples, crop=crop_with(library, race.output), output=race.output)
        collate_all = partial(collate, output=race.output)
        orders = Orders(len(samples))
        pipeline: Any = None

        def epoch(number: int) -> Iterator[int]:
            nonlocal orders, pipeline
            pipeline = pipeline or build(orders, make_one, collate_all, race)
            orders.turns.put(number)
            try:
                for _, labels in pipeline:
                    yield len(labels)
            except GeneratorExit:  # in the middle of an epoch, of which its threads would wait to give the rest
                pipeline.stop()
                orders, pipeline = Orders(len(samples)), None
                raise

        return epoch

    return start


CONTESTANTS: dict[str, Contestant] = {
    "SPDL, simplejpeg": spdls("simplejpeg", with_threads),
    "SPDL, simplejpeg, processes": spdls("simplejpeg", with_processes),
}
