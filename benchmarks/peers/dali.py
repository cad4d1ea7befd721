"""DALI's CPU pipeline: crop-aware decoding in threads of its own."""

from collections.abc import Iterator
from typing import Any

from nvidia.dali import fn, pipeline_def, types

from peers.race import CROP, MEAN, STD, Contestant, Epoch, Output, Race, paths_and_labels

__all__ = ["CONTESTANTS"]


def start(race: Race) -> Epoch:
    source: dict[str, Any]
    if race.listing is not None:
        source = {"file_list": str(race.listing), "file_root": str(race.listing.parent)}
    else:
        samples = paths_and_labels(race)
        source = {"files": [path for path, _ in samples], "labels": [label for _, label in samples]}

    @pipeline_def(batch_size=race.batch_size, num_threads=max(1, race.num_workers), device_id=None)  # type: ignore[untyped-decorator]
    def photos() -> Any:
        data, label = fn.readers.file(**source, random_shuffle=True, name="photos")
        if race.output is Output.BYTES:
            return data, label
        images = fn.decoders.image_random_crop(data, device="cpu", output_type=types.RGB, random_area=[0.08, 1.0])
        images = fn.resize(images, size=(CROP, CROP))
        flip = fn.random.coin_flip()
        if race.output is Output.UINT8:
            return fn.flip(images, horizontal=flip), label
        return fn.crop_mirror_normalize(
            images,
            mirror=flip,
            dtype=types.FLOAT,
            output_layout="CHW",
            mean=[255 * mean for mean in MEAN],
            std=[255 * std for std in STD],
        ), label

    pipeline = photos()
    pipeline.build()
    num_samples = pipeline.epoch_size("photos")

    def epoch(number: int) -> Iterator[int]:
        del number
        left = num_samples
        while left > 0:
            images, _ = pipeline.run()
            num = min(left, len(images))
            left -= num
            yield num

    return epoch


CONTESTANTS: dict[str, Contestant] = {"DALI on the CPU": start}
