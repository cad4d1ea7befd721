"""Refuses masks before the first epoch, by the names of columns and by a few samples."""

from contextlib import suppress
from typing import Final

import numpy as np

from mpload.errors import StorageError
from mpload.samples.pipeline import Pipeline
from mpload.storage.local import LocalStorage

__all__ = ["refuse_masks"]

_NUM_CHECKED: Final = 4


def refuse_masks(pipeline: Pipeline) -> None:
    """Check that one decoder of images suits all columns: by their names and, if files are local, by a few samples.

    Raises:
        ArgumentError: A mask, or a column without images, was found; see `mpload.samples.masks`.
    """
    maker, index = pipeline.maker, pipeline.index
    guard = maker.files_guard or maker.arrays_guard
    if guard is None or pipeline.by_source is not None:  # then samples are checked when they are made
        return
    if not guard.keeps_gray:
        guard.check_names()
    are_files = all(index.columns[number].type.is_file for number in pipeline.sources)
    if maker.files_guard is None or not are_files or not isinstance(pipeline.opened_storage, LocalStorage):
        return
    samples = []
    for record in index.records(np.linspace(0, len(index) - 1, num=_NUM_CHECKED, dtype=np.int64)):
        with suppress(StorageError):  # raised again when the sample is made
            samples.append(pipeline.read(record))
    guard.check_images(samples)
    for files in samples:
        guard.check_values(files)
