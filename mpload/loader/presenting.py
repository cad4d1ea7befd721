"""Converts batches to what an `MPDataset` yields: tensors in the containers of a sample, or what `collate` returns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mpload.loader.collate import BatchSeed, Collate, CollateError, Flat, FlatValues, Pad, join_in_workers, join_of
from mpload.loader.forms import Form, Kind, columns_of
from mpload.loader.leaf_tensors import batch_of_columns, joins_of_leaves, samples_of_columns, unstacked
from mpload.loader.tensors import as_tensor, tensors_of
from mpload.samples.batch import Sample
from mpload.samples.column_decoders import ColumnDecoders
from mpload.samples.joins import Join, JoinedColumn
from mpload.samples.leaf_arrays import columns_of_leaves
from mpload.samples.one_decoder import OneDecoder
from mpload.samples.pipeline import Pipeline
from mpload.transport.slots import RaggedField

__all__ = ["Presenter", "SlotPresenter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Presenter:
    """Converts the batches and samples of a pipeline."""

    pipeline: Pipeline
    as_dict: bool
    collate: Collate | None
    """How the samples of a batch become the batch; None stacks those that are alike."""

    @property
    def callable(self) -> Callable[..., Any] | None:
        """The user's callable that makes a batch of samples, if there is one."""
        return self.collate if callable(self.collate) else None

    def present_leaves(self, template: Any, columns: Mapping[str, Any], batch_seed: BatchSeed) -> Any:
        """Convert a batch of column decoders; see `batch_of_columns`.

        Raises:
            CollateError: The user's callable raised an error.
        """
        maker = self.pipeline.maker
        assert isinstance(maker, ColumnDecoders)
        if self.callable is not None:
            samples = samples_of_columns(template, columns, targets=maker.targets)
            return batch_seed.collated(self.callable, samples, self.pipeline.generators_for(self.callable))
        return batch_of_columns(template, columns, targets=maker.targets, collate=self.collate)

    def present(self, columns: Sequence[Any], batch_seed: BatchSeed) -> Any:
        """Convert a batch of one decoder. A column may be a `JoinedColumn`.

        Raises:
            CollateError: The user's callable raised an error.
        """
        if self.callable is None:
            return self._named([self._shown(number, column) for number, column in enumerate(columns)])
        values = []
        for number, column in enumerate(columns):
            is_number = number not in self.pipeline.sources  # or text, which is no tensor
            tensor = as_tensor(column, are_images=self._makes_images, is_batch=True)
            values.append(unstacked(tensor, is_number=is_number))
        rows = [self._named(row) for row in zip(*values, strict=True)]
        return batch_seed.collated(self.callable, rows, self.pipeline.generators_for(self.callable))

    def _shown(self, number: int, column: Any) -> Any:
        """Return a column of one decoder's batch as the dataset yields it."""
        join = self.join_of_column(number)
        if join is not None and not isinstance(column, JoinedColumn) and len(column) and _is_array(column[0]):
            column = JoinedColumn(*join.joined(column, key=f"column {self.pipeline.index.columns[number].name!r}"))
        if not isinstance(column, JoinedColumn):
            return as_tensor(column, are_images=self._makes_images, is_batch=True)
        values = as_tensor(column.values, are_images=self._makes_images, is_batch=True)
        offsets = column.offsets
        return values if offsets is None else FlatValues(values=values, offsets=torch.from_numpy(offsets))

    def join_of_column(self, number: int) -> Pad | Flat | None:
        """Return how the arrays in a column of one decoder are joined; None if they are not."""
        join = join_of(self.collate, self.pipeline.index.columns[number].name)
        may_vary = number in self.pipeline.sources and self.pipeline.output_shape is None
        is_joined = isinstance(join, Pad) or not self._makes_images
        return join if may_vary and is_joined else None

    @property
    def _makes_images(self) -> bool:
        return isinstance(self.pipeline.maker, OneDecoder) and self.pipeline.maker.makes_images

    def present_sample(self, sample: Sample) -> Any:
        """Convert a sample to what the dataset yields."""
        maker = self.pipeline.maker
        if not isinstance(maker, ColumnDecoders):
            return self._named([as_tensor(value, are_images=self._makes_images) for value in sample])
        return {
            key: value
            if key in maker.whole_keys and isinstance(value, list | dict)
            else tensors_of(value, are_images=key in maker.image_keys)
            for key, value in sample.items()
        }

    def _named(self, values: Sequence[Any]) -> Any:
        """Return a value for each column in the form that the dataset yields."""
        columns = self.pipeline.index.columns
        if self.as_dict:
            return {column.name: value for column, value in zip(columns, values, strict=True)}
        return values[0] if len(values) == 1 else tuple(values)


def _is_array(value: Any) -> bool:
    return np.ndim(value) > 0 and not isinstance(value, memoryview)  # an image that the device decodes


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPresenter:
    """Converts the arrays of a slot, in the process of the loader or in a worker."""

    presenter: Presenter
    forms: Sequence[Form]
    """How the columns of one decoder are stored."""
    template: Any
    """The template of the samples that column decoders make; None for one decoder."""

    def joins(self, fields: Mapping[str, Any], *, max_bytes: int) -> list[Join]:
        """Return what workers join; see `joins_of_leaves`."""
        presenter = self.presenter
        if presenter.callable is not None or presenter.collate is None:
            return []
        maker = presenter.pipeline.maker
        if isinstance(maker, ColumnDecoders):
            return joins_of_leaves(
                self.template, fields, targets=maker.targets, collate=presenter.collate, max_bytes=max_bytes
            )
        found = []
        for number, form in enumerate(self.forms):
            join = presenter.join_of_column(number)
            if join is not None and isinstance(form.field, RaggedField) and form.kind is Kind.VARIED:
                found.append(join_in_workers(join, form.field, max_bytes=max_bytes))
        return [join for join in found if join is not None]

    def batch(
        self,
        arrays: Mapping[str, Any],
        kept: NDArray[np.int64] | None,
        batch_seed: BatchSeed,
        *,
        joined: Mapping[str, JoinedColumn],
    ) -> Any:
        """Return the batch of all samples, or of those in `kept`. What is in `joined`, by field, is not joined again.

        Raises:
            CollateError: The user's callable raised an error.
        """
        if self.template is None:
            has_callable = self.presenter.callable is not None  # which may not know what to do with a memoryview
            columns = columns_of(self.forms, arrays, kept, joined=joined, copies_images=has_callable)
            return self.presenter.present(columns, batch_seed)
        leaves = columns_of_leaves(self.template, arrays, kept, but=joined)
        return self.presenter.present_leaves(self.template, {**leaves, **joined}, batch_seed)

    def __call__(
        self, arrays: Mapping[str, Any], kept: NDArray[np.int64] | None, *, seed: int, epoch: int, first_id: int
    ) -> Any:
        """Return what the user's callable makes of the samples in a slot; see `CollateSlot`."""
        try:
            return self.batch(arrays, kept, BatchSeed(seed=seed, epoch=epoch, first_id=first_id), joined={})
        except CollateError as failed:
            raise failed.error from failed.error.__cause__
