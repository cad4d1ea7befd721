# ruff: noqa: SLF001  these functions are parts of MPLoader
"""What an `MPLoader` does only for mixtures: it changes their weights while it iterates, and counts by source."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from mpload.errors import ArgumentError
from mpload.loader.index_source import IndexSource
from mpload.telemetry.stats import SourceStats

if TYPE_CHECKING:
    from mpload.loader.epochs import Epoch
    from mpload.loader.iterations import Ahead
    from mpload.loader.source import Source
    from mpload.transport.stream import Stream

__all__ = ["Reweighted", "change_weights", "stats_by_source", "updated_state"]


class Reweighted(Protocol):
    """What a change of weights needs of an `MPLoader`."""

    _source: "Source"
    _epoch: "Epoch | None"
    _num_received: int
    _stream: "Stream | None"
    _rest: "Epoch | None"
    _ahead: "Ahead"


def change_weights(loader: Reweighted, weights: Mapping[Any, float]) -> None:
    """Change the weights from the next batch on; see `MPLoader.set_weights`.

    In the middle of an epoch, the iteration goes on as a resumed run would: from the first batch that the user has not
    received. So the change holds from the same position for any number of workers, and a resumed run repeats it.
    """
    source, epoch = loader._source, loader._epoch
    if not isinstance(source, IndexSource):
        raise ArgumentError(f"{source.name} is not a mixture, so it has no weights. Pass an MPDataset of a Mixture")
    if epoch is None or (not loader._ahead.num_batches and loader._num_received >= source.plan_of(epoch).num_batches):
        source.set_weights(weights)
        return
    if loader._ahead.num_batches is not None:
        raise ArgumentError(
            "a DevicePrefetcher has taken batches ahead, so weights cannot change from the next batch on. Leave the "
            "loop and write: x.load_state_dict(x.state_dict()), then set_weights, then iterate x again. x is what you "
            "iterate: the prefetcher, or the loader with device="
        )
    rest = epoch.after(loader._num_received, source.plan_of(epoch))
    source.set_weights(weights, at=rest)
    if loader._stream is not None:
        loader._stream.close()
        loader._stream = None
    loader._rest = rest


def updated_state(source: "Source", state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return an earlier state of a run with the weights as they are now, so that it does not forget a change."""
    return source.updated_state(state_dict) if isinstance(source, IndexSource) else state_dict


def stats_by_source(source: "Source") -> Callable[[], Mapping[str, SourceStats]]:
    """Return a function that returns the samples of each source; nothing if the dataset is no mixture."""
    counts = source.by_source if isinstance(source, IndexSource) else None
    return dict if counts is None else counts.stats
