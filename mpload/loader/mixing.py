"""Opens the indexes of a mixture, and turns its weights into orders."""

from collections.abc import Mapping
from typing import Any

from mpload.errors import ArgumentError
from mpload.index.index import Index
from mpload.index.mixture import Mixture, counts_of, flattened, shares_of
from mpload.index.mixture_index import MixtureIndex
from mpload.index.opening import open_index
from mpload.plan.mixture import MixtureOrders
from mpload.plan.order import OrderChoice
from mpload.plan.shares import Shares
from mpload.plan.source_orders import SourceChoices
from mpload.plan.turns import Phase
from mpload.storage.remote import RemoteStorage

__all__ = ["new_shares", "open_mixture", "orders_of"]


def open_mixture(mixture: Mixture, storage: RemoteStorage | None = None) -> MixtureIndex:
    """Open the indexes of a mixture; `storage` has the time limits for copying those at URLs.

    Raises:
        ArgumentError: columns or classes do not fit together.
        IndexFormatError, SidecarError, OSError: an index cannot be opened.
    """
    opened = [
        source if isinstance(source, Index) else open_index(source, storage=storage) for source in flattened(mixture)
    ]
    return MixtureIndex(mixture, opened)


def orders_of(index: MixtureIndex, of_source: OrderChoice | SourceChoices) -> MixtureOrders:
    """Return the orders of all epochs, in which each source goes through its samples as `of_source` says."""
    mixture = index.mixture
    if mixture.repeats:
        counts = counts_of(mixture, index.lengths)
        for part, repeats, count in zip(index.parts, mixture.sources.values(), counts, strict=True):
            if repeats and not count:
                raise ArgumentError(
                    f"{part.path}: {repeats} repeats of {len(part)} samples are less than one sample in an epoch. Pass "
                    "more repeats, or 0"
                )
        return MixtureOrders(
            lengths=index.lengths,
            of_source=of_source,
            epoch_samples=max(1, sum(counts)),
            planned=(Phase(start=0, shares=Shares.exactly(counts)),),
            repeats=True,
        )
    return MixtureOrders(
        lengths=index.lengths,
        of_source=of_source,
        epoch_samples=mixture.epoch_samples or max(1, len(index)),
        planned=tuple(
            Phase(start=start, shares=new_shares(mixture, weights))
            for start, weights in [(0, mixture.sources), *mixture.schedule]
        ),
    )


def new_shares(mixture: Mixture, weights: Mapping[Any, float]) -> Shares:
    """Return the shares of the flattened sources, for weights as in `Mixture.sources`.

    Raises:
        ArgumentError: the weights break one of the rules for them.
    """
    return Shares.of(shares_of(mixture, weights))
