"""Makes batches of samples that one decoder makes, in this process."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.errors import MploadError
from mpload.samples.batch import Batch, Sample, columns_of_samples
from mpload.samples.pipeline import Pipeline

__all__ = ["batch_of_columns"]


def batch_of_columns(
    pipeline: Pipeline,
    sample_ids: NDArray[np.int64],
    *,
    seed: int,
    epoch: int,
    following: Callable[[], Any] | None = None,
) -> Batch:
    """Make a batch of samples; `mpload.samples.leaf_batches` does it for column decoders.

    The arguments and errors are those of `Pipeline.make_all`.
    """
    if not len(sample_ids) and not pipeline.writes_in_place:
        return _empty_batch(pipeline)
    shape = pipeline.output_shape if pipeline.writes_in_place else None
    outs = None
    if shape is not None:
        outs = [np.empty((len(sample_ids), *shape), pipeline.output_dtype) for _ in pipeline.sources]
    made: list[Sample] = []
    ids = pipeline.make_all(
        sample_ids,
        seed=seed,
        epoch=epoch,
        following=following,
        outs_at=lambda place: None if outs is None else [out[place, ...] for out in outs],
        store_at=lambda _: made.append,
    )
    columns = columns_of_samples(made, pipeline.index.columns)
    for number, out in zip(pipeline.sources, outs or (), strict=False):
        columns[number] = out[: len(made)]
    return Batch(sample_ids=ids, columns=tuple(columns))


def _empty_batch(pipeline: Pipeline) -> Batch:
    """Return an empty batch whose columns have the types and shapes of the first sample, if that can be made."""
    made = None
    if len(pipeline.index):
        with suppress(MploadError), pipeline.lent_generators():
            made = pipeline.sample(pipeline.index[0], seed=0, epoch=0, on_bad=lambda _: None)
    columns = columns_of_samples([] if made is None else [made[1]], pipeline.index.columns)
    return Batch(sample_ids=np.empty(0, np.int64), columns=tuple(column[:0] for column in columns))
