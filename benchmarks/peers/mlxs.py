"""mlx-data: Apple's loader of plain files, in threads, all of it in C++."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import mlx.data

from peers.crops import ROW_MEAN, ROW_SCALE
from peers.race import CROP, Batch, Contestant, Epoch, Output, Race, paths_and_labels

__all__ = ["CONTESTANTS"]


def normalised(images: Any) -> Any:
    """Of a batch, in numpy: it has no operation for that."""
    rows = images.reshape(len(images), CROP, -1) - ROW_MEAN
    rows *= ROW_SCALE
    return rows.reshape(images.shape)


def start(race: Race) -> Epoch:
    listed: Any = mlx.data.buffer_from_vector(
        [{"image": path.encode(), "label": label} for path, label in paths_and_labels(race)]
    )
    num_threads = max(1, race.num_workers)

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
            .batch(race.batch_size)
        )
        if race.output is Output.FLOAT32:
            images = images.key_transform("image", normalised)
        for batch in images.ordered_prefetch(2 * num_threads, num_threads):
            yield batch["image"], batch["label"]

    return epoch


CONTESTANTS: dict[str, Contestant] = {"mlx-data": Contestant(start=start, library="mlx")}
