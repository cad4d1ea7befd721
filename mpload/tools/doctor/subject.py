"""What the doctor examines: the user's own dataset, of an index or map-style."""

import copy
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from mpload.errors import FAILURES, ArgumentError
from mpload.index.index import Index
from mpload.index.mixture_index import MixtureIndex
from mpload.index.opening import open_index
from mpload.index.text import format_header, format_line
from mpload.judgement.facts import Change, Facts, Job
from mpload.judgement.model import predict
from mpload.judgement.remedies import resize_to
from mpload.judgement.remedy import Remedy
from mpload.loader.dataset import MPDataset
from mpload.loader.epochs import EpochTable
from mpload.loader.index_run import IndexRun
from mpload.loader.loader import MPLoader
from mpload.memory.machine import MemoryGauge
from mpload.plan.order import BlockShuffle, Sequential
from mpload.plan.topology import Topology
from mpload.samples.cache.choice import CachedForm, PartialCache
from mpload.samples.policy import ErrorAction, ErrorPolicy
from mpload.tools.bounded import BoundedBytes
from mpload.tools.doctor.alternatives import native_decoder, short_side
from mpload.tools.doctor.empty import EmptyDecoder, SameSample, write_empty_index
from mpload.tools.doctor.samples import measure_items, measure_samples
from mpload.tools.doctor.storage import Files, lookup_cost, measure_rates, measure_shards
from mpload.tools.pack.options import JpegForm, PackOptions
from mpload.tools.pack.packing import pack_index

__all__ = ["IndexSubject", "MapSubject", "Subject", "subject_of"]

_SAMPLES_SHARE = 0.5
_MIN_SAMPLES, _MAX_SAMPLES = 64, 1024
_EPOCH_SAMPLES = 16_384
"""An epoch of this many samples lasts longer than a trial."""


def subject_of(dataset: Any) -> "Subject":
    """Return the subject for a dataset as the user has made it.

    Raises:
        ArgumentError: It is no dataset that the doctor can examine.
    """
    if isinstance(dataset, MPDataset) and isinstance(dataset.index, MixtureIndex):
        raise ArgumentError("the doctor measures one index, not a mixture. Pass it a dataset of one of the sources")
    if isinstance(dataset, MPDataset):
        return IndexSubject(dataset)
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        return MapSubject(dataset)
    raise ArgumentError(
        f"a {type(dataset).__name__} is neither an MPDataset nor a map-style dataset, with __getitem__ and __len__. "
        "Look at its running job instead: mpload doctor --pid PID"
    )


@dataclass(frozen=True, slots=True)
class IndexSubject:
    """An `MPDataset`, with its cache, storage, order and error policy."""

    dataset: MPDataset[Any]

    @property
    def _run(self) -> IndexRun:
        return self.dataset._runs.latest  # noqa: SLF001  the same package offers no other way to its parts

    @property
    def root(self) -> str:
        """The folder of the files."""
        return self.dataset.index.root

    @property
    def batch_size(self) -> int | None:
        """The batch size, if the dataset has one."""
        return self.dataset.batch_size

    def measure(self, job: Job, *, seconds: float, seed: int, announce: Callable[[str], None]) -> Facts:
        """Measure the costs of samples and the speed of the storage, in about `seconds`."""
        run, pipeline = self._run, self._run.pipeline
        files = Files(run.index, storage=pipeline.storage, decode=BoundedBytes.like(pipeline.decoders))
        announce("samples: decode and transform")
        costs = measure_samples(pipeline, files, seconds=_SAMPLES_SHARE * seconds, seed=seed)
        announce("storage: cold and warm")
        samples_per_shard, open_seconds = measure_shards(run.index, files, seed=seed + 3)
        rates = measure_rates(run.index, files, seconds=(1 - _SAMPLES_SHARE) * seconds, seed=seed + 1)
        return Facts(
            job=replace(job, reads_blocks=isinstance(run.batching.order, BlockShuffle | Sequential)),
            samples=replace(costs.samples, samples_per_shard=samples_per_shard),
            storage=replace(
                costs.storage, rates=rates, reads_per_worker=files.reads_per_worker, open_seconds=open_seconds
            ),
            decode=costs.decoding.now,
            decode_alone=costs.decoding.alone,
            transform=costs.transform,
            alternatives=costs.decoding.alternatives,
            lookup=lookup_cost(run.index, memory_bytes=MemoryGauge().read().free_bytes, seed=seed + 2),
            kept_share=0.0 if run.cache is None else run.cache.fraction,
            index_path=str(run.index.path),
        )

    def loader(self, job: Job, *, folder: Path) -> MPLoader[Any]:
        """Start a loader of the dataset, which goes on if samples are broken."""
        run = self._run
        cache = None if run.cache is None else run.cache.only_read()
        pipeline = run.pipeline.changed(policy=_lenient(folder), cache=cache)
        dataset = copy.copy(self.dataset)
        changed = replace(
            run,
            pipeline=pipeline,
            batch_size=int(job.batch_size),
            batching=replace(run.batching, batch_size=int(job.batch_size)),
            presenter=replace(run.presenter, pipeline=pipeline),
            epochs=EpochTable(seed=0, topology=Topology()),
        )
        dataset._runs = dataset._runs.replaced(changed)  # noqa: SLF001
        return _loader(dataset, job)

    def empty_loader(self, facts: Facts, job: Job, *, folder: Path) -> MPLoader[Any]:
        """Start a loader of samples of the same form that cost nothing."""
        samples = facts.samples
        shape = samples.output_shape or (round(samples.output_bytes or 1),)
        dataset: MPDataset[Any] = MPDataset(
            open_index(write_empty_index(folder)),
            decode=EmptyDecoder(output_shape=shape, output_dtype=samples.output_dtype),
            **_options(job),
        )
        return _loader(dataset, job)

    def changed(self, facts: Facts, remedy: Remedy, *, seconds: float, folder: Path) -> "IndexSubject":
        """Return the dataset with a change of reading or decoding: some of its samples, if the change takes files.

        Args:
            facts: What is known about the job.
            remedy: The change.
            seconds: About how long samples may be prepared.
            folder: An empty folder for them.

        Raises:
            MploadError: The change cannot be applied.
        """
        pipeline, samples, change = self._run.pipeline, facts.samples, remedy.change
        storage, decode = pipeline.storage, pipeline.decode
        make = partial(
            MPDataset,
            transform=pipeline.transform,
            batch_size=8,
            shuffle=True,
            topology=Topology(),
            on_error=_lenient(folder),
        )
        if change is Change.NATIVE:
            native = native_decoder(decode, short_side(samples.decoded_shape))
            return IndexSubject(make(pipeline.index, decode=native, storage=storage))
        wanted = max(_MIN_SAMPLES, min(int(seconds * predict(facts).total), _MAX_SAMPLES))
        index = _some_samples(pipeline.index, min(len(pipeline.index), wanted), folder / "some.txt")
        if change in {Change.RESIZED, Change.BASELINE}:
            side = short_side(samples.output_shape) if change is Change.RESIZED else None
            options = PackOptions(jpeg=JpegForm.BASELINE) if side is None else PackOptions(resize_short=resize_to(side))
            packed = pack_index(index, folder / "packed", options)
            return IndexSubject(make(packed, decode=decode, epoch_samples=_EPOCH_SAMPLES))
        if change is Change.ROW_INDEX:
            dataset = make(index, decode=decode, storage=storage, row_index=True)
        else:
            what = CachedForm.RESIZED if change is Change.CACHED_RESIZED else CachedForm.BYTES
            cache = PartialCache(folder / "cache", fraction=remedy.fraction, what=what)
            dataset = make(index, decode=decode, storage=storage, cache=cache)
        for _ in range(2 if change is Change.ROW_INDEX else 1):  # the first may only note the tables of small files
            with MPLoader(dataset, num_workers=facts.job.num_workers or 1) as loader:
                for _batch in loader:  # fills a cache or a row index
                    pass
        return IndexSubject(dataset)


def _some_samples(index: Index, number: int, path: Path) -> Index:
    """Write an index of random samples of another one, which may have too many lines to read all of them."""
    chosen = np.sort(np.random.default_rng(0).choice(len(index), size=number, replace=False))
    header = format_header(columns=index.columns, root=index.root, classes=index.classes)
    path.write_bytes(header + b"".join(format_line(record.cells) for record in index.records(chosen)))
    return open_index(path)


@dataclass(frozen=True, slots=True)
class MapSubject:
    """A map-style dataset. Reading, decoding and transform are all in its `__getitem__`."""

    dataset: Any

    @property
    def root(self) -> str:
        """The folder of the files."""
        return str(getattr(self.dataset, "root", ""))

    @property
    def batch_size(self) -> int | None:
        """The batch size, if the dataset has one."""
        return None

    def measure(self, job: Job, *, seconds: float, seed: int, announce: Callable[[str], None]) -> Facts:
        """Measure the costs of samples, in about `seconds`."""
        announce("samples: __getitem__")
        costs = measure_items(self.dataset, seconds=_SAMPLES_SHARE * seconds, seed=seed)
        return Facts(job=job, samples=costs.samples, decode=costs.decoding.now)

    def loader(self, job: Job, *, folder: Path) -> MPLoader[Any]:
        """Start a loader of the dataset, which goes on if samples are broken."""
        return _loader(self.dataset, job, **_options(job), on_error=_lenient(folder))

    def empty_loader(self, facts: Facts, job: Job, *, folder: Path) -> MPLoader[Any]:
        """Start a loader of samples of the same form that cost nothing."""
        del facts, folder
        return _loader(SameSample(self._any_sample(), num_samples=len(self.dataset)), job, **_options(job))

    def _any_sample(self) -> Any:
        """Return the first sample that can be made. Some can: they were measured."""
        last = len(self.dataset) - 1
        for number in range(last):
            with suppress(*FAILURES):
                return self.dataset[number]
        return self.dataset[last]

    def changed(self, facts: Facts, remedy: Remedy, *, seconds: float, folder: Path) -> "Subject":
        """Raise an error: nothing is known about how the dataset reads and decodes."""
        del facts, seconds, folder
        raise ArgumentError(f"{type(self.dataset).__name__} is map-style, so this cannot be tried: {remedy.text}")


Subject: TypeAlias = IndexSubject | MapSubject
"""A dataset that is examined."""


def _lenient(folder: Path) -> ErrorPolicy:
    return ErrorPolicy(action=ErrorAction.SUBSTITUTE, report=folder / "errors.jsonl", max_error_fraction=1.0)


def _loader(dataset: Any, job: Job, **options: Any) -> MPLoader[Any]:
    budget = "auto" if job.memory_budget_bytes is None else job.memory_budget_bytes
    return MPLoader(dataset, num_workers=job.num_workers or 1, memory_budget=budget, **options)


def _options(job: Job) -> dict[str, Any]:
    return {"batch_size": int(job.batch_size), "shuffle": True, "topology": Topology()}
