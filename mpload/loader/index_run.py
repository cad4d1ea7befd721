"""`IndexRun`: how a run reads an index, and the position of the run."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import get_worker_info

from mpload.errors import ArgumentError, StateError
from mpload.index.columns import format_columns
from mpload.index.index import Index
from mpload.index.mixture_index import MixtureIndex
from mpload.loader.collate import BatchSeed, CollateError
from mpload.loader.epochs import Epoch, EpochTable
from mpload.loader.frameworks import Reader, reader
from mpload.loader.mixing import new_shares
from mpload.loader.presenting import Presenter
from mpload.plan.batch_number import BatchNumber
from mpload.plan.batching import AnyPlan, Batching
from mpload.plan.bucket_plan import BucketPlan, position_of
from mpload.plan.checkpoint import State
from mpload.plan.mixture import MixtureOrders
from mpload.plan.order import Order
from mpload.plan.turns import Phase
from mpload.samples.batch import listed_samples
from mpload.samples.cache.opened import OpenCache
from mpload.samples.column_batches import batch_of_columns
from mpload.samples.column_decoders import ColumnDecoders
from mpload.samples.leaf_batches import batch_of_leaves, template_here
from mpload.samples.pipeline import Pipeline
from mpload.units import format_count

__all__ = ["IndexRun"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRun:
    """The parts of an `MPDataset`, shared by its own iterator and an `MPLoader`."""

    pipeline: Pipeline
    cache: OpenCache | None
    batching: Batching
    batch_size: int | None
    """Number of samples in a batch of this rank; None yields samples one by one."""
    presenter: Presenter
    epochs: EpochTable

    @property
    def index(self) -> Index:
        """The index whose samples are read."""
        return self.pipeline.index

    @property
    def name(self) -> str:
        """Name of the index for messages: its path."""
        return str(self.index.path)

    def facts(self) -> dict[str, str]:
        """Return facts about the dataset for `repr` and notebooks."""
        facts = {
            "samples": format_count(len(self.index)),
            "columns": format_columns(self.index.columns),
            "batch size": self._shown_batch_size(),
            "order": repr(self.batching.order),
            "tail": str(self.batching.tail),
            "epoch": str(self.epochs.next.number),
        }
        if isinstance(self.batching.order, MixtureOrders) or self.batching.num_samples != len(self.index):
            facts["samples of an epoch"] = format_count(self.batching.num_samples)
        return facts if self.cache is None else {**facts, "cached": f"{self.cache.fraction:.0%}"}

    def _shown_batch_size(self) -> str:
        if self.batch_size is None:
            return "none, samples one by one"
        buckets = self.batching.buckets
        least = self.batch_size if buckets is None else min(buckets.batch_sizes)
        largest = format_count(self.batch_size)
        return largest if least == self.batch_size else f"{format_count(least)} to {largest}, by bucket"

    def order_of(self, epoch: Epoch) -> Order:
        """Return the order of an epoch."""
        return self.batching.order_of(seed=epoch.seed, epoch=epoch.number)

    def plan_of(self, epoch: Epoch) -> AnyPlan:
        """Return this rank's plan of an epoch."""
        return self.batching.plan_of(
            topology=epoch.topology or self.epochs.topology,
            start=epoch.position,
            seed=epoch.seed,
            epoch=epoch.number,
            segments=epoch.segments,
        )

    def batch(
        self, sample_ids: NDArray[np.int64], *, seed: int, epoch: int, following: Callable[[], Any] | None = None
    ) -> Any:
        """Make a batch in this process and convert it to what the dataset yields; see `Pipeline.make_all`.

        What `collate` raises is raised unchanged, because a DataLoader makes an error of the same class of it.
        """
        try:
            return self.collated(sample_ids, seed=seed, epoch=epoch, following=following)
        except CollateError as failed:
            failed.error.add_note(f"This error is from {self.collate_on(sample_ids)}")
            raise failed.error from failed.error.__cause__

    def use_batch(self, plan: AnyPlan, batch: int) -> None:
        """Prepare to make a batch of a plan: with buckets, its samples have the form of their bucket."""
        if isinstance(plan, BucketPlan):
            self.pipeline.makers.use_bucket(plan.task(batch)[1])

    def unpacked(self, number: BatchNumber, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """Prepare for a batch, and return the arrays of its slot in the shape that its samples have."""
        if self.batching.buckets is None:
            return arrays
        self.pipeline.makers.use_bucket(number.batch)
        return self.pipeline.makers.unpacked(arrays)

    def collate_on(self, sample_ids: NDArray[np.int64]) -> str:
        """Return what made a batch fail if `collate` did, for messages."""
        return f"collate on {listed_samples((sample_ids % max(1, len(self.index))).tolist())} of {self.name}"

    def collated(
        self, sample_ids: NDArray[np.int64], *, seed: int, epoch: int, following: Callable[[], Any] | None = None
    ) -> Any:
        """Make the same batch as `batch`.

        Raises:
            CollateError: `collate` raised an error.
        """
        pipeline = self.pipeline
        batch_seed = BatchSeed(seed=seed, epoch=epoch, first_id=int(sample_ids[0]) if len(sample_ids) else 0)
        if isinstance(pipeline.maker, ColumnDecoders):
            columns = batch_of_leaves(pipeline, sample_ids, seed=seed, epoch=epoch, following=following)
            return self.presenter.present_leaves(template_here(pipeline), columns, batch_seed)
        made = batch_of_columns(pipeline, sample_ids, seed=seed, epoch=epoch, following=following)
        return self.presenter.present(made.columns, batch_seed)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration reads; see `MPDataset.set_epoch`."""
        following = self.epochs.next
        if epoch != following.number and following.position and reader() is not Reader.PLAIN:
            raise StateError(
                f"load_state_dict() restored a position in epoch {following.number}, but Accelerate begins epoch "
                f"{epoch}: the rest of epoch {following.number} would be missed. Call the prepared loader's "
                f"set_epoch({following.number}) first"
            )
        self.order_of(Epoch(seed=following.seed, number=epoch))  # checks the number
        self.epochs.set_number(epoch)

    def state_at(self, epoch: Epoch) -> dict[str, Any]:
        """Return the state of a run that continues an epoch from its position."""
        return epoch.state(
            fingerprint=self.index.fingerprint,
            order=self.batching.order.spec,
            changes=self.changes_of_weights,
            num_samples=None if isinstance(self.index, MixtureIndex) else len(self.index),
        )

    def restored(self, state: State) -> Epoch:
        """Restore the weights of a saved state, and return its epoch and position.

        Raises:
            StateError: the state does not fit.
        """
        orders = self._checked(state)
        if isinstance(self.batching.order, MixtureOrders) and orders is not None:
            self.batching.order.adopt(orders.changes)
            self._note_weights()
        return Epoch(
            seed=state.seed,
            number=state.epoch,
            position=state.position,
            num_samples=0 if isinstance(self.index, MixtureIndex) else len(self.index),
            segments=state.segments,
        )

    def _checked(self, state: State) -> MixtureOrders | None:
        """Check that a saved state fits, and return the orders of a mixture with its weights."""
        order = self.batching.order
        state.check_fits(fingerprint=self.index.fingerprint, order=order.spec, num_samples=self.batching.num_samples)
        if not isinstance(order, MixtureOrders):
            self._check_segments(state)
            return None
        try:
            order.position_of(epoch=state.epoch, position=state.position)  # checks the epoch
            return order.with_changes(tuple(Phase.of_state(*change) for change in state.changes))
        except ArgumentError as error:
            raise StateError(f"the checkpoint is damaged: {error}. Use an earlier one") from error

    def _check_segments(self, state: State) -> None:
        """Check that the segments of a state lead to its position."""
        buckets = self.batching.buckets
        try:
            position = state.position if buckets is None and not state.segments else -1
            if buckets is not None:
                position = position_of(buckets, state.segments, seed=state.seed, epoch=state.epoch)
            if position != state.position:
                raise StateError(
                    f"the checkpoint is damaged: its segments {state.segments!r:.200} do not lead to its position "
                    f"{state.position}. Use an earlier one"
                )
        except ArgumentError as error:
            raise StateError(f"the checkpoint is damaged: {error}. Use an earlier one") from error

    def source_counts(self, state_dict: Mapping[str, Any]) -> dict[str, int]:
        """Return the number of samples of each source before a state; see `MPDataset.source_counts`."""
        state = State.from_dict(state_dict)
        orders = self._checked(state)
        if orders is None or not isinstance(self.index, MixtureIndex):
            raise self._no_mixture()
        counts = orders.counts_before(seed=state.seed, epoch=state.epoch, position=state.position)
        found = dict.fromkeys(self.index.names, 0)
        for name, count in zip(self.index.names, counts, strict=True):
            found[name] += count
        return found

    def _no_mixture(self) -> ArgumentError:
        return ArgumentError(f"{self.name}: is not a mixture, so it has no weights. Pass a Mixture to MPDataset")

    @property
    def changes_of_weights(self) -> tuple[Phase, ...]:
        """The changes of a mixture's weights during the run."""
        order = self.batching.order
        return order.changes if isinstance(order, MixtureOrders) else ()

    def updated_state(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return an earlier state of this run with the weights as they are now."""
        now = self.state_at(self.epochs.next)
        return {**state_dict, "changes": now["changes"]} if "changes" in now else state_dict

    def set_weights(self, weights: Mapping[Any, float], *, at: Epoch | None = None) -> None:
        """Change the weights of a mixture from a position on, or from the next epoch on if `at` is None.

        See `MPDataset.set_weights`.
        """
        order, index = self.batching.order, self.index
        if not isinstance(order, MixtureOrders) or not isinstance(index, MixtureIndex):
            raise self._no_mixture()
        self.check_weights(_worker_number())
        following = self.epochs.next if at is None else at
        start = order.position_of(epoch=following.number, position=following.position)
        order.adopt(order.changed(start, new_shares(index.mixture, weights), seed=following.seed).changes)
        self._note_weights()

    def check_weights(self, worker: int) -> None:
        """Raise `StateError` if the weights were changed in a process whose changes do not reach this one."""
        if not self.epochs.weights_are(self._weights_number(), worker=worker):
            raise StateError(
                "the weights of the mixture were changed in another process. If set_weights did it, persistent workers "
                "of a DataLoader keep the old ones: use persistent_workers=False, or an MPLoader. If the workers of a "
                "StatefulDataLoader restored them, restore them here too: dataset.load_state_dict, with a state of the "
                "dataset, before that of the loader"
            )

    def _note_weights(self) -> None:
        info = get_worker_info()
        self.epochs.note_weights(self._weights_number(), worker=None if info is None else info.id)

    def _weights_number(self) -> int:
        """Return a number that stands for the changes of weights; 0 if there are none."""
        if not self.changes_of_weights:
            return 0
        words = repr([change.in_state() for change in self.changes_of_weights]).encode()
        return int.from_bytes(hashlib.blake2b(words, digest_size=7).digest(), "little")


def _worker_number() -> int:
    info = get_worker_info()
    return 0 if info is None else info.id
