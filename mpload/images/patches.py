"""`RandomCrop`: a patch of the image at its own resolution, as super-resolution and small images are trained on."""

from dataclasses import KW_ONLY, InitVar, dataclass
from typing import ClassVar

import numpy as np

from mpload.errors import ArgumentError
from mpload.images.backends import Backend, check_backend
from mpload.images.checks import check_fill, check_probability, pair, set_max_pixels, set_size
from mpload.images.claims import Claim, unclaimed
from mpload.images.geometry import Geometry, check_rng, decode_as
from mpload.images.jpeg_header import ImageBytes
from mpload.images.limits import Limits
from mpload.images.resize import Box, Pixels, View

__all__ = ["RandomCrop"]


@dataclass(frozen=True, slots=True)
class RandomCrop:
    """Cut a random patch out of the image, without resizing it.

    All places are equally likely. An image that is smaller than the patch lies at a random place in it.

    Pairs of a small and a large image, as super-resolution trains on, get the same patch if each has a `RandomCrop` and
    the ratio of their sizes is that of the images: `{"low": RandomCrop(48), "high": RandomCrop(192)}`. A pair that
    would have to be resized or shifted is an error.

    Attributes:
        size: Height and width of the patch; one number for both.
        padding: Number of pixels by which the patch may extend beyond each side of the image.
        fill: Value of all channels beyond the image, 0 to 255.
        flip: Probability of mirroring the patch left to right, in [0, 1].
        upside_down: Probability of mirroring the patch top to bottom, in [0, 1].
        align: The patch starts at a multiple of this number of pixels. If the larger image of a pair comes first, pass
            how many times as large it is.
        backend: The JPEG decoder: `"native"`, `"simplejpeg"`, or with `"auto"` the first one that is available.
        exif_orientation: Rotate and mirror the image as its EXIF data says, before anything else.
        limits: Which files are refused, such as too large or truncated ones.
        max_pixels: Short for setting `max_pixels` in `limits`.

    Raises:
        ArgumentError: A number is out of range, or `padding` is not smaller than the patch.
    """

    size: int | tuple[int, int]
    _: KW_ONLY
    padding: int = 0
    fill: int = 0
    flip: float = 0.5
    upside_down: float = 0.0
    align: int = 1
    backend: Backend = "auto"
    exif_orientation: bool = True
    limits: Limits = Limits()
    max_pixels: InitVar[int | None] = None
    makes_images: ClassVar[bool] = True
    antialias: ClassVar[bool] = False
    resizes: ClassVar[bool] = False

    def __post_init__(self, max_pixels: int | None) -> None:
        set_size(self)
        check_fill(self.fill)
        check_probability("flip", self.flip)
        check_probability("upside_down", self.upside_down)
        if not 0 <= self.padding < min(pair(self.size)):
            raise ArgumentError(f"padding must be at least 0 and smaller than the patch, got {self.padding}")
        if self.align < 1:
            raise ArgumentError(f"align must be positive, got {self.align}")
        check_backend(self.backend)
        set_max_pixels(self, max_pixels)

    @property
    def output_shape(self) -> tuple[int, int, int]:
        """The shape of every result: (height, width, 3)."""
        return (*pair(self.size), 3)

    def draw_geometry(self, height: int, width: int, rng: np.random.Generator | None) -> Geometry:
        """Choose the patch of an image of `height` x `width` at random; draws 4 doubles from `rng`.

        Raises:
            ArgumentError: There is no `rng`.
        """
        down, right, mirror, upside_down = check_rng(self, rng).random(4).tolist()
        rows, columns = pair(self.size)
        top, left = self._start(down, height, rows), self._start(right, width, columns)
        bottom, end = min(height, top + rows), min(width, left + columns)
        box = Box(top=max(0, top), left=max(0, left), height=bottom - max(0, top), width=end - max(0, left))
        window = Box(top=min(0, top), left=min(0, left), height=rows, width=columns)
        full = box.height, box.width
        view = View(box=box, full=full, window=None if full == (rows, columns) else window, mirror=mirror < self.flip)
        is_upside_down = upside_down < self.upside_down
        return Geometry(height=height, width=width, view=view, upside_down=is_upside_down, fill=self.fill)

    def _start(self, draw: float, side: int, length: int) -> int:
        """Return where the patch starts in the image: negative if it extends beyond it."""
        low, high = sorted((-self.padding, side + self.padding - length))
        first, last = -(-low // self.align), high // self.align
        return (first + int(draw * (last - first + 1))) * self.align if first <= last else low

    def __call__(
        self,
        data: ImageBytes,
        rng: np.random.Generator | None = None,
        out: Pixels | None = None,
        claim: Claim = unclaimed,
        geometry: Geometry | None = None,
    ) -> Pixels:
        """Return a random patch, uint8 RGB `output_shape`.

        Args:
            data: The bytes of one image.
            rng: The generator to draw from, always 4 doubles: equal generators cut the same patch.
            out: The array to write to, C-contiguous uint8 `output_shape`; None creates one.
            claim: As for `open_image`.
            geometry: The geometry to show. Nothing is drawn then, and no `rng` is needed.

        Raises:
            ArgumentError: There is neither an `rng` nor a `geometry`.
            DecodeError: `data` is not a complete image of a known format, exceeds `limits`, or cannot follow `geometry`
                without being resized or shifted.
        """
        return decode_as(self, data, rng, out, claim, geometry)
