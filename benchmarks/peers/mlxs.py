"""mlx-data: Apple's loader of plain files, in C++ threads. It cannot normalise, so torch does that."""

import os
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import mlx.data

from peers.crops import finished
from peers.race import CROP, Batch, Contestant, Epoch, Output, Race, paths_and_labels

__all__ = ["CONTESTANTS"]


def start(race: Race) -> Epoch:
    listed: Any = mlx.data.buffer_from_vector(
        [{"image": path.encode(), "label": label} for path, label in paths_and_labels(race)]
    )
    num_threads = max(1, race.num_workers)
    os.environ["OMP_NUM_THREADS"] = "1"  # for torch, which normalises in each thread

    def epoch(number: int) -> Iterator[Batch]:
        del number
        samples = listed.shuffle()
        if race.output is Output.BYTES:
            files = iter(samples.load_file("image").ordered_prefetch(2 * race.batch_size, num_threads))
            while made := list(islice(files, race.batch_size)):
                yield [sample["image"] for sample in made], [sample["label"] for sample in made]
            return
        images = (
            samples.load_image("image")
            .image_random_area_crop("image", (0.08, 1.0), (3 / 4, 4 / 3))
            .image_resize("image", CROP, CROP)
            .image_random_h_flip("image", 0.5)
        )
        batches = images.ordered_prefetch(2 * race.batch_size, num_threads).batch(race.batch_size)
        if race.output is Output.FLOAT32:
            batches = batches.key_transform("image", partial(finished, output=race.output)).prefetch(2, 1)
        for batch in batches:
            yield batch["image"], batch["label"]

    return epoch


CONTESTANTS: dict[str, Contestant] = {"mlx-data": Contestant(start=start, library="mlx")}
