"""`Mixture`: several indexes with weights, which a dataset reads as one."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from math import inf
from numbers import Real
from typing import Any

from mpload.errors import ArgumentError
from mpload.index.columns import Cell
from mpload.index.index import Index

__all__ = ["Mixture", "counts_of", "flattened", "key_of", "names_of", "shares_of"]

Source = str | os.PathLike[str] | Index
"""What a source may be, besides another mixture."""


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """Several indexes that are mixed by weight: the index of an `MPDataset`.

    The samples of an epoch are divided among the sources so that, from its beginning to any of them, no source
    deviates from its share by a whole sample; then samples change places within windows of 64. Every source goes
    through all of its samples in the order that `shuffle=` names, again and again. An epoch of the mixture may end in
    the middle of that: the next one goes on there. So a small source with a large weight repeats evenly, and no sample
    of a large one is missed in the long run.

    A sample that comes again gets other random numbers, even within an epoch. To begin with, its augmentation differs.

    Args:
        sources: the weight of each source: of the path or URL of an index, an `Index`, or another `Mixture`. Weights
            are at least 0 and need not sum to 1. A share must be 0, or at least 1 in 524,288. Short decimals and whole
            numbers are exact; others are rounded to 1 in 10^12. A mixture that is a source must have weights only.
        epoch_samples: number of samples in an epoch. None means as many as all sources have together.
        schedule: changes of the weights: the number of samples after which each holds, counted over all epochs, and the
            new weights of all sources.
        fill: values for the columns that some sources lack, such as `{"caption": ""}`. Columns of files cannot be
            filled.
        match_classes: whether labels follow the class names of the sources. The classes of the mixture are those of the
            first source, then further ones of the second, and so on. Without it, classes must be the same in all.
        source_column: name of a further column of integers that tells a sample's source: 0 for the first, and so on.
            A mixture within the mixture counts as its sources.
        repeats: whether the numbers are repeats instead of weights: how often an epoch goes through each source, such
            as `{"a.txt": 2, "b.txt": 1}`. Then each epoch has exactly so many samples of each, and its length follows.
            With 0.5, two epochs go through the source once. Numbers of samples are rounded. There can be no
            `epoch_samples` and no `schedule`.

    Raises:
        ArgumentError: a value breaks one of these rules.
    """

    sources: Mapping[Any, float]
    _: KW_ONLY
    epoch_samples: int | None = None
    schedule: Sequence[tuple[int, Mapping[Any, float]]] = ()
    fill: Mapping[str, Cell] | None = None
    match_classes: bool = False
    source_column: str | None = None
    repeats: bool = False

    def __post_init__(self) -> None:
        sources: Any = self.sources
        if not isinstance(sources, Mapping) or not sources:
            raise ArgumentError(
                f"a mixture needs a dict of sources and their weights, got {sources!r:.80}. "
                'Write Mixture({"photos.txt": 0.7, "art.txt": 0.3})'
            )
        length: Any = self.epoch_samples
        if length is not None and (not isinstance(length, int) or length < 1):
            raise ArgumentError(f"epoch_samples must be at least 1, or None, got {length!r}")
        for source in self.sources:
            _check_source(source)
            if self.repeats and isinstance(source, Mixture):
                raise ArgumentError("repeats=True: a source cannot be a mixture. List the sources of that mixture")
        if self.repeats and (length is not None or self.schedule):
            raise ArgumentError(
                "repeats=True determines the length of an epoch and what it holds. Leave out epoch_samples and schedule"
            )
        shares_of(self, self.sources)
        _check_schedule(self)


def _check_schedule(mixture: Mixture) -> None:
    schedule: Any = mixture.schedule
    if not isinstance(schedule, Sequence) or any(not isinstance(each, Sequence) or len(each) != 2 for each in schedule):
        raise ArgumentError(
            f"a schedule must be a list of positions and weights, got {schedule!r:.80}. Write "
            'schedule=[(10_000, {"photos.txt": 0.5, "art.txt": 0.5})]'
        )
    last = 0
    for position, weights in schedule:
        if not isinstance(position, int) or position <= last:
            raise ArgumentError(
                f"the positions of a schedule must be integers that ascend from 1, got {position!r} after {last}"
            )
        last = position
        shares_of(mixture, weights)


def _check_source(source: object) -> None:
    if isinstance(source, Mixture):
        is_plain = source.epoch_samples is None and not source.schedule and not source.fill and not source.repeats
        if not is_plain or source.match_classes or source.source_column is not None:
            raise ArgumentError(
                "a mixture that is a source of another one must have weights only. Pass its other arguments to the "
                "outer mixture"
            )
    elif not isinstance(source, str | os.PathLike | Index):
        raise ArgumentError(
            f"a source must be the path of an index, an Index or a Mixture, got {source!r:.80} of type "
            f"{type(source).__name__}"
        )


def key_of(source: object) -> object:
    """Return what identifies a source of a mixture: paths are compared as text, all others by identity."""
    return os.fspath(source) if isinstance(source, str | os.PathLike) else source


def flattened(mixture: Mixture) -> Iterator[Source]:
    """Yield the sources of a mixture, and those of the mixtures among them."""
    for source in mixture.sources:
        if isinstance(source, Mixture):
            yield from flattened(source)
        elif isinstance(source, str | os.PathLike | Index):
            yield source


def names_of(mixture: Mixture) -> list[str]:
    """Return the names of the flattened sources: their paths."""
    return [str(source.path) if isinstance(source, Index) else os.fspath(source) for source in flattened(mixture)]


def shares_of(mixture: Mixture, weights: Mapping[Any, float]) -> list[Fraction]:
    """Return the share of each flattened source, for these weights of the mixture's own sources.

    Raises:
        ArgumentError: the weights are not those of all sources, or one is negative or no number, or all are 0.
    """
    exact = _exact(mixture, weights)
    total = sum(exact.values())
    if not total:
        raise ArgumentError("all weights are 0. Give at least one source a weight")
    shares: list[Fraction] = []
    for source in mixture.sources:
        share = exact[key_of(source)] / total
        inner = shares_of(source, source.sources) if isinstance(source, Mixture) else [Fraction(1)]
        shares += [share * each for each in inner]
    return shares


def counts_of(mixture: Mixture, lengths: Sequence[int]) -> list[int]:
    """Return the number of samples of each source in an epoch of a mixture with repeats; sources have these lengths."""
    repeats = _exact(mixture, mixture.sources)
    return [round(repeats[key_of(source)] * length) for source, length in zip(mixture.sources, lengths, strict=True)]


def _exact(mixture: Mixture, weights: Mapping[Any, float]) -> dict[object, Fraction]:
    """Return the weight of each source of a mixture, by its key."""
    if not isinstance(weights, Mapping):
        raise ArgumentError(f"weights must be a dict with the weight of each source, got {weights!r:.80}")
    given = {key_of(source): weight for source, weight in weights.items()}
    known = {key_of(source): source for source in mixture.sources}
    if given.keys() != known.keys() or len(known) != len(mixture.sources):
        wrong = [*(known.keys() ^ given.keys()), *mixture.sources][0]
        raise ArgumentError(
            f"weights must name each source of the mixture once: {', '.join(map(repr, known))}. {wrong!r} is missing, "
            "unknown or named twice"
        )
    exact: dict[object, Fraction] = {}
    weight: Any
    for key, weight in given.items():
        is_number = isinstance(weight, Real)
        if not is_number or not 0 <= weight < inf:
            raise ArgumentError(f"weights must be numbers of at least 0, got {weight!r} for {key!r}")
        exact[key] = Fraction(weight) if isinstance(weight, int | Fraction) else Fraction(str(float(weight)))
    return exact
