"""Makes batches of samples whose columns have decoders of their own, in this process."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.errors import SampleError
from mpload.samples.column_decoders import ColumnDecoders
from mpload.samples.leaf_arrays import LeafWriter, columns_of_leaves, local_arrays
from mpload.samples.leaves import exact_pairs
from mpload.samples.pipeline import Pipeline

__all__ = ["NUM_PROBED", "batch_of_leaves", "template_here", "template_of_sample"]

NUM_PROBED = 8
"""How many samples are tried. The first one that can be made shows the form of all samples."""


def batch_of_leaves(
    pipeline: Pipeline,
    sample_ids: NDArray[np.int64],
    *,
    seed: int,
    epoch: int,
    following: Callable[[], Any] | None = None,
) -> dict[str, Any]:
    """Make a batch, and return the values of each leaf of the samples' template: see `columns_of_leaves`.

    The arguments and errors are those of `Pipeline.make_all`.
    """
    assert isinstance(pipeline.maker, ColumnDecoders)
    template = template_here(pipeline)
    arrays = local_arrays(template, len(sample_ids))
    writer = LeafWriter(template, arrays, pairing=exact_pairs, in_place_keys=pipeline.maker.in_place_keys)
    ids = pipeline.make_all(
        sample_ids,
        seed=seed,
        epoch=epoch,
        following=following,
        outs_at=writer.outs,
        store_at=lambda place: partial(writer.store, place),
    )
    kept = None if len(ids) == len(sample_ids) else np.arange(len(ids))
    return columns_of_leaves(template, arrays, kept)


def template_here(pipeline: Pipeline) -> Any:
    """Return the template of the samples. The first call makes a sample to find out.

    Raises:
        SampleError: None of the first few samples could be made.
    """
    maker = pipeline.maker
    assert isinstance(maker, ColumnDecoders)
    failure: SampleError | None = None
    for sample_id in range(min(NUM_PROBED, len(pipeline.index))):
        if maker.template is not None:
            break
        try:
            with pipeline.lent_generators():
                maker.template = template_of_sample(pipeline, sample_id)
        except SampleError as error:
            failure = failure or error
    if maker.template is None and failure is not None:
        raise failure
    return {} if maker.template is None else maker.template


def template_of_sample(pipeline: Pipeline, sample_id: int) -> Any:
    """Make a sample with column decoders, and return its template.

    Raises:
        SampleError: The sample cannot be made.
        ArgumentError: No batch can hold one of its values.
    """
    assert isinstance(pipeline.maker, ColumnDecoders)
    bad: list[Any] = []  # not reported here: they are counted and reported during the epoch
    made = pipeline.sample(pipeline.index[sample_id], seed=0, epoch=0, on_bad=bad.append)
    if made is None:
        raise SampleError(str(bad[0])) from bad[0].error
    return pipeline.maker.template_of(made[1])
