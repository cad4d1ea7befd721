"""DALI's CPU pipeline: decodes only the crop, in its own threads, with the options that make it fastest."""

from collections.abc import Iterator
from typing import Any

from nvidia.dali import fn, pipeline_def, types

from peers.race import CROP, MEAN, STD, Batch, Contestant, Epoch, Output, Race, paths_and_labels

__all__ = ["CONTESTANTS"]


def start(race: Race) -> Epoch:
    source: dict[str, Any]
    if race.listing is not None:
        source = {"file_list": str(race.listing), "file_root": str(race.listing.parent)}
    else:
        samples = paths_and_labels(race)
        source = {"files": [path for path, _ in samples], "labels": [label for _, label in samples]}

    @pipeline_def(  # type: ignore[untyped-decorator]
        batch_size=race.batch_size, num_threads=max(1, race.num_workers), device_id=None, exec_dynamic=True
    )
    def photos() -> Any:
        data, label = fn.readers.file(**source, random_shuffle=True, name="photos")
        if race.output is Output.BYTES:
            return data, label
        images = fn.decoders.image_random_crop(
            data, device="cpu", output_type=types.RGB, random_area=[0.08, 1.0], use_fast_idct=True
        )
        images = fn.resize(images, size=(CROP, CROP), antialias=False)
        flip = fn.random.coin_flip()
        if race.output is Output.UINT8:
            return fn.flip(images, horizontal=flip), label
        return fn.crop_mirror_normalize(
            images,
            mirror=flip,
            dtype=types.FLOAT,
            output_layout="HWC",
            mean=[255 * mean for mean in MEAN],
            std=[255 * std for std in STD],
        ), label

    pipeline = photos()
    pipeline.build()
    num_samples = pipeline.epoch_size("photos")

    def epoch(number: int) -> Iterator[Batch]:
        del number
        left = num_samples
        while left > 0:
            images, labels = pipeline.run()
            yield Files(images) if race.output is Output.BYTES else images, labels.as_array()[:left, 0]
            left -= len(images)

    return epoch


class Files:
    """A sequence of files, like those of the other contestants, that converts a file only when it is accessed."""

    def __init__(self, images: Any) -> None:
        self.images = images

    def __getitem__(self, place: int) -> Any:
        return self.images.at(place)


CONTESTANTS: dict[str, Contestant] = {"DALI on the CPU": Contestant(start=start, library="dali")}
