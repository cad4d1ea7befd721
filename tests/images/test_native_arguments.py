"""What the native decoder declines, so that simplejpeg decodes it, and which arguments it refuses."""

from typing import Any

import numpy as np
import pytest

from mpload.images import backends
from mpload.images.image import open_image
from mpload.images.jpeg import Jpeg
from mpload.images.resize import Box, View
from tests.golden.make_formats import FOLDER
from tests.support.native import needs_native

JPEGS = {path.name: path.read_bytes() for path in sorted(FOLDER.glob("jpeg*"))}


@needs_native
@pytest.mark.parametrize("name", sorted(JPEGS.keys() - {"jpeg_truncated.jpg"}))
def test_the_native_decoder_declines_only_cmyk_files(name: str) -> None:
    data = JPEGS[name]
    cause = decode_natively(data)
    assert cause == ("its colours are not RGB, YCbCr or gray" if name in {"jpeg_cmyk.jpg", "jpeg_ycck.jpg"} else None)


def decode_natively(data: bytes, out: Any = None, **changes: Any) -> str | None:
    image = open_image(data)
    assert isinstance(image, Jpeg)
    box = Box(top=0, left=0, height=image.height, width=image.width)
    view = image.stored_view(View(box=box, full=(20, 30)))._replace(**changes)
    assert backends.NATIVE is not None
    if out is None:
        out = np.zeros((30, 20, 3) if image.orientation >= 5 else (20, 30, 3), np.uint8)
    cause = backends.NATIVE.decode(data, view, out)
    assert not isinstance(cause, bytes)
    return cause


@needs_native
@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"size": (41, 56)}, "its size is not the expected one"),
        ({"box": (1, 0, 40, 56)}, "the box lies outside of it"),
        ({"box": (0, 2**31 - 1, 40, 56)}, "the box lies outside of it"),
        ({"denominator": 8}, "the box lies outside of it"),
    ],
)
def test_a_view_that_does_not_fit_the_image_is_declined(changes: dict[str, Any], cause: str) -> None:
    assert decode_natively(JPEGS["jpeg_420.jpg"], **changes) == cause


@needs_native
@pytest.mark.parametrize("changes", [{"box": (0, 0, 40)}, {"size": "ab"}, {"full": (20.0, 30)}, {"denominator": None}])
def test_a_view_with_wrong_types_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        decode_natively(JPEGS["jpeg_420.jpg"], **changes)


@needs_native
@pytest.mark.parametrize(
    "changes",
    [
        {"denominator": 3},
        {"denominator": 0},
        {"box": (-1, 0, 40, 56)},
        {"box": (0, 0, 0, 56)},
        {"box": (0, 0, 40, -5)},
        {"full": (19, 30)},
        {"full": (20, 2**31 - 1)},
        {"corner": (1, 0)},
        {"corner": (0, -1)},
        {"size": (40, 70_000)},
    ],
)
def test_a_view_with_numbers_out_of_range_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a number of the view is out of range"):
        decode_natively(JPEGS["jpeg_420.jpg"], **changes)


@needs_native
@pytest.mark.parametrize(
    "out",
    [np.zeros((20, 30), np.uint8), np.zeros((20, 30, 4), np.uint8), np.zeros((20, 30, 3), np.uint16), bytearray(1800)],
)
def test_an_output_of_another_shape_or_type_is_refused(out: Any) -> None:
    with pytest.raises(ValueError, match="out must be uint8"):
        decode_natively(JPEGS["jpeg_420.jpg"], out)


@needs_native
def test_a_read_only_or_strided_output_is_refused() -> None:
    frozen = np.zeros((20, 30, 3), np.uint8)
    frozen.flags.writeable = False
    for out in (frozen, np.zeros((30, 20, 3), np.uint8).transpose(1, 0, 2)):
        with pytest.raises((ValueError, BufferError)):
            decode_natively(JPEGS["jpeg_420.jpg"], out)
