"""`Views`: several crops of one image, as self-supervised training wants them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError
from mpload.images.claims import Claim, unclaimed
from mpload.images.crops_of_photo import CropsOfPhoto, DrawnAhead
from mpload.images.geometry import DrawsGeometry, open_as, show
from mpload.images.jpeg_header import ImageBytes
from mpload.images.limits import Limits
from mpload.images.parts import decoded_once
from mpload.images.resize import Pixels
from mpload.samples.transforms import adapt_transform, runs_user_code

__all__ = ["ViewGroup", "Views", "crops_of"]

_Adapted = Callable[[NDArray[Any], np.random.Generator], NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewGroup:
    """Views of an image that are made alike.

    Attributes:
        count: The number of views.
        decode: The decoder that chooses and draws each of them.
        transform: The transform of each view, as `MPDataset` takes one; None for none.

    Raises:
        ArgumentError: There is no view, or `decode` draws no geometry.
    """

    count: int
    decode: DrawsGeometry
    transform: Callable[..., Any] | None = None
    adapted: _Adapted | None = field(init=False, repr=False, compare=False)
    """The transform as a function of a view and its generator."""

    def __post_init__(self) -> None:
        count, decode = cast("tuple[object, object]", (self.count, self.decode))
        if not isinstance(count, int) or count < 1:
            raise ArgumentError(f"the number of views must be a positive integer, got {count!r}")
        if not isinstance(decode, DrawsGeometry) or not self.shape:
            raise ArgumentError(
                f"views are drawn by a decoder that chooses a crop, such as RandomResizedCrop(224), got {decode!r:.80}"
            )
        adapted = None if self.transform is None else adapt_transform(self.transform)
        object.__setattr__(self, "adapted", adapted)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the views before the transform: (count, height, width, 3); () if it varies."""
        shape = getattr(self.decode, "output_shape", None)
        return (self.count, *shape) if isinstance(shape, tuple) else ()  # a class has a property


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Views:
    """Show several crops of one image: two for SimCLR, or two large and eight small ones for DINO.

    ```python
    views = mpload.Views(
        of="image",
        glob=(2, mpload.RandomResizedCrop(224, scale=(0.32, 1.0))),
        local=(8, mpload.RandomResizedCrop(96, scale=(0.05, 0.32)), color_jitter),
    )
    dataset = mpload.MPDataset("train.txt", decode={"crops": views}, batch_size=64)
    batch["crops"]["glob"]   # uint8 [64, 2, 3, 224, 224]
    batch["crops"]["local"]  # uint8 [64, 8, 3, 96, 96]
    ```

    The file is read once. A JPEG is decoded once for each scale that the views need (1, 1/2, 1/4 or 1/8 of its size),
    unless separate decodes of small crops take less work. Views have the same pixels either way. Views of
    `RandomResizedCrop` and `ResizeCenterCrop` take the least time: one native call makes all views of a photo.

    Each view has its own random numbers, which depend on the seed, the epoch, the sample and the view's number. All
    views are drawn one after another, in the order of the groups: the first is the crop that its decoder alone would
    show. Transforms draw from a generator of their own for each view. A sample's other columns do not follow views.

    Args:
        of: The column of the index that holds the images; None means the column with the key of the views.
        groups: By name: the number of views and their decoder, and optionally a transform of each view. Transforms of
            albumentations, torchvision and PyTorch, and callables on an array [H, W, C] are taken. They must return
            the same shape for all views of a group.

    Raises:
        ArgumentError: There are no groups, or their decoders open images differently.
    """

    of: str | None
    groups: tuple[tuple[str, Any], ...]
    """Name and `ViewGroup` of each group."""
    _crops: Any = field(compare=False)
    """A `CropsOfPhoto`, which makes the views of most photos with one call; None if the views are of another kind."""
    makes_images: ClassVar[bool] = True
    target: ClassVar[str] = "views"

    def __init__(self, *, of: str | None = None, **groups: tuple[Any, ...]) -> None:
        object.__setattr__(self, "of", of)
        object.__setattr__(self, "groups", tuple((name, _group(name, given)) for name, given in groups.items()))
        if not groups:
            raise ArgumentError("Views needs a group of views, such as glob=(2, RandomResizedCrop(224))")
        first, *others = (group.decode for _, group in self.groups)
        for name in ("backend", "exif_orientation", "limits"):
            for other in others:
                if getattr(other, name, None) != getattr(first, name, None):
                    raise ArgumentError(
                        f"all views are of one opened image, so their decoders must have the same {name}, got "
                        f"{getattr(first, name, None)!r} and {getattr(other, name, None)!r}"
                    )
        object.__setattr__(self, "_crops", crops_of(self))

    @property
    def output_shape(self) -> dict[str, tuple[int, ...]] | None:
        """The shape of each group's views; None if a transform may change it."""
        if any(group.transform is not None for _, group in self.groups):
            return None
        return {name: group.shape for name, group in self.groups}

    @property
    def runs_user_code(self) -> bool:
        """Whether a transform or a decoder is not mpload's own, so that it may draw from the global generators."""
        return any(group.transform is not None or runs_user_code(group.decode) for _, group in self.groups)

    @property
    def limits(self) -> Limits:
        """Which files are refused."""
        limits: Limits = self.groups[0][1].decode.limits
        return limits

    def __call__(
        self,
        data: ImageBytes,
        rng: np.random.Generator,
        out: Mapping[str, Pixels] | None = None,
        claim: Claim = unclaimed,
    ) -> dict[str, NDArray[Any]]:
        """Return the views of each group, uint8 RGB [count, height, width, 3], or what the group's transform makes.

        Args:
            data: The bytes of one image.
            rng: The generator to draw from.
            out: The array to write each group's views to, by name; None creates them.
            claim: As for `open_image`.

        Raises:
            DecodeError: `data` is not a complete image of a known format, or it exceeds the limits of the decoders.
        """
        shown = {name: np.empty(group.shape, np.uint8) for name, group in self.groups} if out is None else out
        arrays = [shown[name] for name, _ in self.groups]
        if self._crops is None:
            self._show(data, rng, arrays, claim)
        else:
            draws = rng.random(self._crops.num_draws)
            if not self._crops.write(data, draws, arrays):
                self._show(data, DrawnAhead(draws), arrays, claim)
        return {
            name: shown[name] if group.adapted is None else _transformed(name, group.adapted, shown[name], rng)
            for name, group in self.groups
        }

    def _show(self, data: ImageBytes, rng: Any, arrays: Sequence[Pixels], claim: Claim) -> None:
        """Draw the views, and write those of each group to its array."""
        image = open_as(self.groups[0][1].decode, data, claim)
        drawn = [group.decode.draw_geometry(image.height, image.width, rng) for group in self._each()]
        image = decoded_once(image, (geometry.view for geometry in drawn))
        views = chain.from_iterable(arrays)
        for group, geometry, view in zip(self._each(), drawn, views, strict=True):
            show(group.decode, image, geometry, view)

    def _each(self) -> Iterator[ViewGroup]:
        """Yield the group of each view."""
        return (group for _, group in self.groups for _ in range(group.count))

    def __repr__(self) -> str:
        given = [] if self.of is None else [f"of={self.of!r}"]
        for name, group in self.groups:
            transform = () if group.transform is None else (group.transform,)
            given.append(f"{name}={(group.count, group.decode, *transform)!r}")
        return f"Views({', '.join(given)})"


def crops_of(views: Views) -> CropsOfPhoto | None:
    """Return what makes the views of most photos with one call; None if the views are of another kind."""
    return CropsOfPhoto.of([(group.count, group.decode) for _, group in views.groups])


def _group(name: str, given: Any) -> ViewGroup:
    match given:
        case (count, decode):
            return ViewGroup(count=count, decode=decode)
        case (count, decode, transform):
            return ViewGroup(count=count, decode=decode, transform=transform)
    raise ArgumentError(
        f"{name} must be a number of views, their decoder and perhaps a transform, such as "
        f"(2, RandomResizedCrop(224)), got {given!r:.80}"
    )


def _transformed(name: str, transform: _Adapted, views: Pixels, rng: np.random.Generator) -> NDArray[Any]:
    seeds = rng.integers(1 << 63, size=len(views)).tolist()
    made = [
        transform(view, np.random.Generator(np.random.Philox(seed))) for view, seed in zip(views, seeds, strict=True)
    ]
    if len({(view.shape, view.dtype) for view in made}) > 1:
        raise ArgumentError(
            f"the transform of the views {name!r} returned {made[0].dtype}{list(made[0].shape)} for one view, and "
            "another shape or dtype for the next. Return the same for all views"
        )
    return np.stack(made)
