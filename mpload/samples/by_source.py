"""`BySource`: each source of a mixture has a decoder or a transform of its own."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpload.errors import ArgumentError
from mpload.images.decoders import ImageDecoder
from mpload.index.index import Index
from mpload.index.mixture import flattened, key_of, names_of
from mpload.index.mixture_index import MixtureIndex
from mpload.samples.column_decoders import ColumnDecoders
from mpload.samples.one_decoder import OneDecoder
from mpload.samples.row_index import RowIndex
from mpload.samples.transforms import GlobalGenerators

__all__ = ["BySource", "SourceMakers", "makers_of"]

Maker = OneDecoder | ColumnDecoders


@dataclass(frozen=True, slots=True, eq=False)
class BySource:
    """A decoder or a transform for each source of a `Mixture`.

    Pass it to an `MPDataset` as `decode=`, as `transform=`, or for a column in the dict of decoders. All sources must
    lead to samples of the same form: the same keys, and arrays of the same dtype and number of dimensions. A loader
    with workers makes a sample of each source to check that. Samples are then made one by one: workers do not handle
    whole chunks natively.

    Args:
        choices: the decoder or transform for each source, by the paths or indexes of the `Mixture`. Those of a mixture
            within the mixture are named one by one. None is the default of the argument.

    Raises:
        ArgumentError: a choice is neither None nor callable.
    """

    choices: Mapping[Any, Callable[..., Any] | None]

    def __post_init__(self) -> None:
        choices: Any = self.choices
        if not isinstance(choices, Mapping) or not choices:
            raise ArgumentError(
                f"BySource needs a dict with a choice for each source, got {choices!r:.80}. Write "
                'BySource({"photos.txt": RandomResizedCrop(224), "art.txt": ResizeCenterCrop(224)})'
            )
        for source, choice in choices.items():
            if isinstance(choice, Mapping):
                raise ArgumentError(
                    f"the choice for {key_of(source)!r} is a dict. Give each column its own: "
                    'decode={"image": BySource({...}), ...}'
                )
            if isinstance(choice, type) or not (choice is None or callable(choice)):
                raise ArgumentError(f"the choice for {key_of(source)!r} must be a callable object, got {choice!r:.80}")

    @property
    def output_shape(self) -> tuple[int, ...] | None:
        """The shape of every array, if it is the same for all sources; else None."""
        shapes = {(getattr(each, "output_shape", None), self._dtype_of(each)) for each in self.choices.values()}
        shape: tuple[int, ...] | None = next(iter(shapes))[0]
        return shape if len(shapes) == 1 else None

    @property
    def output_dtype(self) -> np.dtype[Any]:
        """The dtype of every array that has `output_shape`."""
        return self._dtype_of(next(iter(self.choices.values())))

    @staticmethod
    def _dtype_of(choice: object) -> np.dtype[Any]:
        return np.dtype(getattr(choice, "output_dtype", np.uint8))


def _by_sources(choice: BySource, index: Index) -> list[Any]:
    """Return the choice for each source of a mixture.

    Raises:
        ArgumentError: the index is not that of a mixture, or the sources are others.
    """
    if not isinstance(index, MixtureIndex):
        raise ArgumentError(f"BySource is for mixtures, but {index.path} is one index. Pass the decoder itself")
    given = {key_of(source): each for source, each in choice.choices.items()}
    known = [key_of(source) for source in flattened(index.mixture)]
    if given.keys() != set(known):
        wrong = next(iter(given.keys() ^ set(known)))
        raise ArgumentError(
            f"BySource must name each source of the mixture: {', '.join(map(repr, known))}. {wrong!r} is missing or "
            "unknown"
        )
    return [given[key] for key in known]


class SourceMakers:
    """The makers of the sources of a mixture. Sources with the same choices share one.

    Process: may be pickled and forked.

    Raises:
        ArgumentError: the samples of two sources differ in their keys, or in whether their arrays are images.
    """

    def __init__(self, index: MixtureIndex, choices: list[tuple[Any, Any]], make: Callable[[Any, Any], Maker]) -> None:
        self._first_ids = [0, *np.cumsum(index.lengths).tolist()]
        known: dict[tuple[int, ...], Maker] = {}
        self._makers: list[Maker] = []
        """By source."""
        for decode, transform in choices:
            decoders = decode.values() if isinstance(decode, Mapping) else [decode]
            key = (*map(id, decoders), id(transform))
            if key not in known:
                known[key] = make(decode, transform)
            self._makers.append(known[key])
        self.makers = list(known.values())
        """One for each choice."""
        self.names = names = names_of(index.mixture)
        """The names of the sources."""
        for name, maker in zip(names, self._makers, strict=True):
            if (found := _looks(maker)) != (first := _looks(self.makers[0])):
                raise ArgumentError(
                    f"the samples of {name} have {found}, but those of {names[0]} have {first}. Choose decoders and "
                    "transforms that lead to samples of the same form"
                )
        self._agree()

    @property
    def decoders(self) -> list[Callable[..., Any]]:
        """The decoders that files go through."""
        return [decoder for maker in self.makers for decoder in maker.decoders]

    def of(self, sample_id: int) -> Maker:
        """Return what makes a sample."""
        return self._makers[bisect_right(self._first_ids, sample_id % self._first_ids[-1]) - 1]

    def ranges(self) -> Iterator[tuple[int, range]]:
        """Yield a source for each choice, and the sample_ids of it, if there are samples."""
        seen = set()
        for source, maker in enumerate(self._makers):
            rows = range(self._first_ids[source], self._first_ids[source + 1])
            if rows and id(maker) not in seen:
                seen.add(id(maker))
                yield source, rows

    def _agree(self) -> None:
        """Let all makers write only into arrays into which all of them can write, and seed the same generators."""
        reads = all(maker.reads_in_place for maker in self.makers if isinstance(maker, OneDecoder))
        draws, seeds = (any(values) for values in zip(*map(_draws, self.makers), strict=True))
        shapes = [maker.shapes for maker in self.makers if isinstance(maker, ColumnDecoders)]
        in_place = [maker.in_place_keys for maker in self.makers if isinstance(maker, ColumnDecoders)]
        first = shapes[0] if shapes else {}
        fixed = {key for key, shape in first.items() if all(each.get(key) == shape for each in shapes)}
        code = [each for maker in self.makers for each in maker.generators.code]
        generators = GlobalGenerators(seeds=seeds, code=code)
        for maker in self.makers:
            maker.generators, maker.may_draw_globally = generators, draws
            if isinstance(maker, ColumnDecoders):
                maker.fixed_keys = frozenset(fixed)
                maker.in_place_keys = frozenset(fixed).intersection(*in_place)
            else:
                maker.reads_in_place = reads

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._agree()


def _draws(maker: Maker) -> tuple[bool, bool]:
    return maker.may_draw_globally, maker.generators.seeds


def _looks(maker: Maker) -> str:
    """Return what a batch shows of a sample, apart from shapes and dtypes."""
    if isinstance(maker, OneDecoder):
        return "images" if maker.makes_images else "arrays that are not images"
    images = ", ".join(sorted(maker.image_keys)) or "none"
    whole = ", ".join(sorted(maker.whole_keys)) or "none"
    targets = ", ".join(f"{key} as {target}" for key, target in sorted(maker.targets.items()))
    return f"the images {images}, the values in lists {whole}, and for transforms {targets or 'none'}"


def makers_of(
    index: Index, decode: Any, transform: Any, row_index: RowIndex | None
) -> tuple[Maker, SourceMakers | None]:
    """Return what makes a sample, and what makes those of each source if they differ.

    Raises:
        ArgumentError: a decoder or transform does not fit the index.
    """

    def make(decode: Any, transform: Any) -> Maker:
        if isinstance(decode, Mapping):
            return ColumnDecoders(columns=index.columns, decode=decode, transform=transform)
        return OneDecoder(columns=index.columns, decode=decode, transform=transform, row_index=row_index)

    values = [*(decode.values() if isinstance(decode, Mapping) else [decode]), transform]
    choice = next((value for value in values if isinstance(value, BySource)), None)
    if choice is None:
        return make(decode, transform), None
    _by_sources(choice, index)  # checks that there are sources
    assert isinstance(index, MixtureIndex)
    makers = SourceMakers(index, _chosen(index, decode, transform), make)
    return makers.makers[0], makers


def _chosen(index: MixtureIndex, decode: Any, transform: Any) -> list[tuple[Any, Any]]:
    """Return the decoder, or the decoders by column, and the transform of each source."""

    def by_source(value: Any) -> list[Any]:
        return _by_sources(value, index) if isinstance(value, BySource) else [value] * len(index.parts)

    if isinstance(decode, Mapping):
        of_columns = zip(*map(by_source, decode.values()), strict=True)
        decoders: list[Any] = [dict(zip(decode, row, strict=True)) for row in of_columns]
    else:
        default = ImageDecoder()
        decoders = [default if choice is None else choice for choice in by_source(decode)]
    return list(zip(decoders, by_source(transform), strict=True))
