"""SPDL: threads in one process, around a decoder that lets go of the interpreter lock."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from spdl.pipeline import PipelineBuilder
from spdl.source import DistributedRandomSampler
from torch.utils.data import default_collate

from peers.crops import as_tensor, crop_with
from peers.race import Contestant, Epoch, Output, Race, paths_and_labels

__all__ = ["CONTESTANTS"]


def spdls(library: str) -> Contestant:
    def start(race: Race) -> Epoch:
        torch.set_num_threads(1)
        samples = paths_and_labels(race)
        crop = crop_with(library, race.output)
        is_bytes = race.output is Output.BYTES

        sampler = DistributedRandomSampler(len(samples), rank=0, world_size=1)

        def make(place: int) -> Any:
            path, label = samples[place]
            made = crop(Path(path).read_bytes())
            return (made if is_bytes else as_tensor(made, race.output)), label

        def collate(made: list[Any]) -> Any:  # `list` itself would be taken for a sequence to look up in
            return made if is_bytes else default_collate(made)

        def epoch(number: int) -> Iterator[int]:
            sampler.shuffle(seed=number)
            pipeline = (
                PipelineBuilder()
                .add_source(sampler)
                .pipe(make, concurrency=max(1, race.num_workers))
                .aggregate(race.batch_size)
                .pipe(collate)
                .add_sink(3)
                .build(num_threads=max(1, race.num_workers) + 1)
            )
            with pipeline.auto_stop():
                for batch in pipeline:
                    yield len(batch) if is_bytes else len(batch[1])

        return epoch

    return start


CONTESTANTS: dict[str, Contestant] = {"SPDL, simplejpeg": spdls("simplejpeg")}
