"""The order of a dataset's samples, and the length of its epochs, as its arguments say."""

import os

from mpload.errors import ArgumentError
from mpload.index.bucketing import BoundBuckets, Buckets
from mpload.index.class_batches import PKBatches
from mpload.index.class_order import ClassBatchChoice
from mpload.index.curriculum import Curriculum
from mpload.index.draws import DrawChoice
from mpload.index.index import Index
from mpload.index.mixture_index import MixtureIndex
from mpload.index.weighting import IndexOrder, Weighted
from mpload.loader.mixing import orders_of
from mpload.plan.laps import LapOrders
from mpload.plan.order import OrderChoice, Sequential, Shuffle
from mpload.plan.ranges import MAX_NUM_SAMPLES, check_range
from mpload.plan.source_orders import SourceChoices

__all__ = ["bound_buckets", "epochs_of"]


def epochs_of(
    shuffle: bool | OrderChoice | IndexOrder, index: Index, *, epoch_samples: int | None, batch_size: int | None
) -> tuple[OrderChoice, int]:
    """Return the order of every epoch, and the number of its positions.

    Raises:
        ArgumentError: an argument does not fit the index or another argument.
    """
    if epoch_samples is not None:
        check_range("epoch_samples", epoch_samples, 1, MAX_NUM_SAMPLES)
    if isinstance(index, MixtureIndex):
        if epoch_samples is not None:
            raise ArgumentError("epoch_samples: the epochs of a mixture have their length from it. Pass it to Mixture")
        orders = orders_of(index, _of_sources(shuffle, index))
        return orders, orders.epoch_samples
    order = shuffle.bind(index) if isinstance(shuffle, IndexOrder) else _plain(shuffle)
    if isinstance(order, ClassBatchChoice) and batch_size != order.batch_size:
        raise ArgumentError(
            f"{order!r} makes batches of {order.batch_size} samples, but batch_size is {batch_size}. Pass "
            f"batch_size={order.batch_size}"
        )
    if epoch_samples is None:
        return order, order.epoch_samples if isinstance(order, ClassBatchChoice) else len(index)
    if isinstance(order, ClassBatchChoice | DrawChoice):
        return order.with_epoch(epoch_samples), epoch_samples
    return LapOrders(num_rows=len(index), of_lap=order, epoch_samples=epoch_samples), epoch_samples


def _plain(shuffle: bool | OrderChoice) -> OrderChoice:
    if isinstance(shuffle, bool):
        return Shuffle() if shuffle else Sequential()
    return shuffle


def _of_sources(shuffle: bool | OrderChoice | IndexOrder, index: MixtureIndex) -> OrderChoice | SourceChoices:
    """Return the order in which each source of a mixture goes through its samples, from its own columns if need be."""
    if not isinstance(shuffle, IndexOrder):
        return _plain(shuffle)
    if isinstance(shuffle, PKBatches):
        raise ArgumentError(
            f"{shuffle!r} is for one index: in a mixture, batches could not have both P classes and the shares of the "
            "sources. Make one index of the sources with mpload.merge_indexes"
        )
    file = shuffle.weights if isinstance(shuffle, Weighted) else shuffle.by if isinstance(shuffle, Curriculum) else ""
    if os.fspath(file).endswith(".npy"):
        raise ArgumentError(
            f"{shuffle!r}: a .npy file is for one index, not for the sources of a mixture. Write the numbers to a "
            "column of each source, and name the column"
        )
    choices = tuple(shuffle.bind(part) for part in index.parts)
    are_draws = any(isinstance(choice, DrawChoice) for choice in choices)
    return SourceChoices(choices=choices, shown=repr(shuffle), are_draws=are_draws)


def bound_buckets(
    buckets: Buckets,
    index: Index,
    shuffle: bool | OrderChoice | IndexOrder,
    *,
    batch_size: int | None,
    epoch_samples: int | None,
) -> BoundBuckets:
    """Return the buckets of an index.

    Raises:
        ArgumentError: they cannot be combined with the index or with another argument.
    """
    if isinstance(index, MixtureIndex):
        raise ArgumentError("buckets are for one index, not for a mixture. Merge the indexes: mpload merge")
    if not isinstance(shuffle, bool | Shuffle | Sequential):
        raise ArgumentError(
            f"shuffle={shuffle!r} cannot be combined with buckets, which have their own order. Choose True, which "
            "shuffles each bucket, or False"
        )
    if epoch_samples is not None:
        raise ArgumentError("epoch_samples cannot be combined with buckets, whose epochs visit every sample once")
    return buckets._bind(index, batch_size=batch_size)  # noqa: SLF001  of its own package, but not for users
