"""`Letterbox`: the whole image, scaled to fit into a rectangle and padded."""

from dataclasses import KW_ONLY, InitVar, dataclass
from typing import ClassVar

import numpy as np

from mpload.images.backends import Backend, check_backend
from mpload.images.checks import check_fill, check_probability, pair, set_max_pixels, set_size
from mpload.images.claims import Claim, unclaimed
from mpload.images.geometry import Geometry, check_rng, decode_as
from mpload.images.jpeg_header import ImageBytes
from mpload.images.limits import Limits
from mpload.images.resize import Box, Pixels, View

__all__ = ["Letterbox"]


@dataclass(frozen=True, slots=True)
class Letterbox:
    """Scale the whole image so that it just fits into `size`, and fill what is left around it, as YOLO does.

    Sizes and positions are those of Ultralytics' `LetterBox`: the image is centred. The resize is bilinear.

    Attributes:
        size: Height and width of the result; one number for both.
        fill: Value of all channels around the image, 0 to 255.
        flip: Probability of mirroring the image left to right, in [0, 1].
        antialias: When the image is downsized, average all its pixels (a triangle filter, as in torchvision), not only
            the four around each centre.
        backend: The JPEG decoder: `"native"`, `"simplejpeg"`, or with `"auto"` the first one that is available.
        exif_orientation: Rotate and mirror the image as its EXIF data says, before anything else.
        limits: Which files are refused, such as too large or truncated ones.
        max_pixels: Short for setting `max_pixels` in `limits`.

    Raises:
        ArgumentError: A number is out of range.
    """

    size: int | tuple[int, int]
    _: KW_ONLY
    fill: int = 114
    flip: float = 0.0
    antialias: bool = False
    backend: Backend = "auto"
    exif_orientation: bool = True
    limits: Limits = Limits()
    max_pixels: InitVar[int | None] = None
    makes_images: ClassVar[bool] = True

    def __post_init__(self, max_pixels: int | None) -> None:
        set_size(self)
        check_fill(self.fill)
        check_probability("flip", self.flip)
        check_backend(self.backend)
        set_max_pixels(self, max_pixels)

    @property
    def output_shape(self) -> tuple[int, int, int]:
        """The shape of every result: (height, width, 3)."""
        return (*pair(self.size), 3)

    def draw_geometry(self, height: int, width: int, rng: np.random.Generator | None = None) -> Geometry:
        """Return the geometry that shows an image of `height` x `width`; with a `flip`, draws one double from `rng`.

        Raises:
            ArgumentError: There is no `rng`, and `flip` is not 0.
        """
        mirror = self.flip > 0 and check_rng(self, rng).random() < self.flip
        rows, columns = pair(self.size)
        scale = min(rows / height, columns / width)
        full = min(rows, max(1, round(height * scale))), min(columns, max(1, round(width * scale)))
        top, left = (
            round((rows - full[0]) / 2 - 0.1),
            round((columns - full[1]) / 2 - 0.1),
        )  # 0.1: as Ultralytics rounds
        window = None if full == (rows, columns) else Box(top=-top, left=-left, height=rows, width=columns)
        if mirror and window is not None:  # the padding stays in place
            window = window._replace(left=left + full[1] - columns)
        whole = Box(top=0, left=0, height=height, width=width)
        view = View(box=whole, full=full, window=window, mirror=mirror, antialias=self.antialias)
        return Geometry(height=height, width=width, view=view, fill=self.fill)

    def __call__(
        self,
        data: ImageBytes,
        rng: np.random.Generator | None = None,
        out: Pixels | None = None,
        claim: Claim = unclaimed,
        geometry: Geometry | None = None,
    ) -> Pixels:
        """Return the whole image with its padding, uint8 RGB `output_shape`.

        Args:
            data: The bytes of one image.
            rng: The generator to draw from: one double, or none with `flip=0`.
            out: The array to write to, C-contiguous uint8 `output_shape`; None creates one.
            claim: As for `open_image`.
            geometry: The geometry to show instead of the whole image. Nothing is drawn then.

        Raises:
            ArgumentError: `flip` is not 0, and there is neither an `rng` nor a `geometry`.
            DecodeError: `data` is not a complete image of a known format, or it exceeds `limits`.
        """
        return decode_as(self, data, rng, out, claim, geometry)
