"""tf.data: decodes only the crop, in its own threads."""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from peers.race import CROP, MEAN, STD, Batch, Contestant, Epoch, Output, Race, paths_and_labels

__all__ = ["CONTESTANTS"]


def start(race: Race) -> Epoch:
    samples = paths_and_labels(race)
    num_samples = len(samples)
    listed = tf.data.Dataset.from_tensor_slices(([path for path, _ in samples], [label for _, label in samples]))
    del samples  # the tensors hold the same data

    def read(path: Any, label: Any) -> Any:
        return tf.io.read_file(path), label

    def make(data: Any, label: Any) -> Any:
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.image.extract_jpeg_shape(data),
            bounding_boxes=tf.zeros([1, 0, 4]),
            use_image_if_no_bounding_boxes=True,
            area_range=(0.08, 1.0),
            aspect_ratio_range=(3 / 4, 4 / 3),
        )
        window = tf.stack([begin[0], begin[1], size[0], size[1]])
        image = tf.image.decode_and_crop_jpeg(
            data, window, channels=3, dct_method="INTEGER_FAST", fancy_upscaling=False
        )
        image = tf.image.random_flip_left_right(tf.image.resize(image, (CROP, CROP)))
        if race.output is Output.UINT8:
            return tf.cast(image, tf.uint8), label
        return (image / 255 - MEAN) / STD, label

    threads = race.num_workers or tf.data.AUTOTUNE

    def epoch(number: int) -> Iterator[Batch]:
        dataset = listed.shuffle(num_samples, seed=number)
        dataset = dataset.map(read, num_parallel_calls=threads)
        if race.output is not Output.BYTES:
            dataset = dataset.map(make, num_parallel_calls=threads)
        yield from dataset.batch(race.batch_size).prefetch(2)

    return epoch


CONTESTANTS: dict[str, Contestant] = {"tf.data": Contestant(start=start, library="tensorflow")}
