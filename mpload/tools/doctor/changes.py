"""Applies a remedy to a sample of a dataset, with its files in a temporary folder, so that it can be tried."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mpload.judgement.facts import Change, Facts
from mpload.judgement.remedies import resize_to
from mpload.judgement.remedy import Remedy
from mpload.loader.dataset import MPDataset
from mpload.loader.loader import MPLoader
from mpload.plan.topology import Topology
from mpload.samples.cache.choice import CachedForm, PartialCache
from mpload.samples.pipeline import Pipeline
from mpload.samples.policy import ErrorPolicy
from mpload.tools.doctor.alternatives import native_decoder, short_side
from mpload.tools.pack.options import JpegForm, PackOptions
from mpload.tools.pack.packing import pack_index

__all__ = ["changed_dataset"]

_MIN_SAMPLES, _MAX_SAMPLES = 64, 1024
_EPOCH_SAMPLES = 16_384
"""So long an epoch of a pack lasts longer than a trial."""


def changed_dataset(
    pipeline: Pipeline, facts: Facts, remedy: Remedy, *, num_samples: int, folder: Path, policy: ErrorPolicy
) -> MPDataset[Any]:
    """Return a dataset with a change of reading or decoding: of some of the samples, or of all if that takes no files.

    Args:
        pipeline: How samples are made now.
        facts: What is known about the job.
        remedy: The change.
        num_samples: How many samples can be prepared in the time that there is.
        folder: An empty folder.
        policy: What is done about samples that cannot be made.

    Raises:
        MploadError: The change cannot be applied.
    """
    samples, storage = facts.samples, pipeline.storage
    make = partial(
        MPDataset, transform=pipeline.transform, batch_size=8, shuffle=True, topology=Topology(), on_error=policy
    )
    if remedy.change is Change.NATIVE:
        native = native_decoder(pipeline.decode, short_side(samples.decoded_shape))
        return make(pipeline.index, decode=native, storage=storage)
    number = min(len(pipeline.index), max(_MIN_SAMPLES, min(num_samples, _MAX_SAMPLES)))
    chosen = np.random.default_rng(0).choice(len(pipeline.index), size=number, replace=False)
    index = pipeline.index.select(folder / "some.txt", sample_ids=chosen)
    if remedy.change in {Change.RESIZED, Change.BASELINE}:
        side = short_side(samples.output_shape) if remedy.change is Change.RESIZED else None
        options = PackOptions(jpeg=JpegForm.BASELINE) if side is None else PackOptions(resize_short=resize_to(side))
        packed = pack_index(index, folder / "packed", options)
        return make(packed, decode=pipeline.decode, epoch_samples=_EPOCH_SAMPLES)
    if remedy.change is Change.ROW_INDEX:
        dataset = make(index, decode=pipeline.decode, storage=storage, row_index=True)
        _read_all(dataset, facts)  # the tables of a small file are only noted when they come first
    else:
        what = CachedForm.RESIZED if remedy.change is Change.CACHED_RESIZED else CachedForm.BYTES
        cache = PartialCache(folder / "cache", fraction=remedy.fraction, what=what)
        dataset = make(index, decode=pipeline.decode, storage=storage, cache=cache)
    _read_all(dataset, facts)
    return dataset


def _read_all(dataset: MPDataset[Any], facts: Facts) -> None:
    """Read an epoch, which fills a cache or a row index."""
    with MPLoader(dataset, num_workers=facts.job.num_workers or 1) as loader:
        for _ in loader:
            pass
