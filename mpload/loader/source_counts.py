"""Counts the samples of each source of a mixture that a loader has delivered."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from mpload.index.index import Index
from mpload.index.mixture_index import MixtureIndex
from mpload.telemetry.stats import SourceStats

__all__ = ["SourceCounts"]


@dataclass(slots=True, kw_only=True)
class SourceCounts:
    """The samples delivered and those that failed, by source."""

    names: list[str]
    starts: NDArray[np.int64]
    """The first row of each source, and the number of all rows."""
    samples: NDArray[np.int64] = field(init=False)
    failed: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.samples, self.failed = np.zeros((2, len(self.names)), np.int64)

    @classmethod
    def of(cls, index: Index) -> Self | None:
        """Return counts for the sources of a mixture; None for any other index."""
        if not isinstance(index, MixtureIndex):
            return None
        return cls(names=index.names, starts=np.cumsum([0, *index.lengths]))

    def add(self, sample_ids: NDArray[np.int64], *, failed: Iterable[int] = (), without: Iterable[int] = ()) -> None:
        """Count samples that were delivered, but not those `without`, and samples that failed."""
        self.samples += self._by_source(sample_ids) - self._by_source(np.array([*without], np.int64))
        self.failed += self._by_source(np.array([*failed], np.int64))

    def _by_source(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        sources = np.searchsorted(self.starts, sample_ids % max(1, int(self.starts[-1])), side="right") - 1
        return np.bincount(sources, minlength=len(self.names))

    def stats(self) -> dict[str, SourceStats]:
        """Return the counts by the path of the source. Those of sources with the same path are added up."""
        found: dict[str, SourceStats] = {}
        for name, num_samples, num_failed in zip(self.names, self.samples.tolist(), self.failed.tolist(), strict=True):
            before = found.get(name, SourceStats())
            found[name] = SourceStats(
                num_samples=before.num_samples + num_samples, num_failed=before.num_failed + num_failed
            )
        return found
