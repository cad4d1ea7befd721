"""Every decoder fulfils the contract in `tests.support.decoder_contract`."""

from io import BytesIO
from typing import Any

import numpy as np
import pytest

from mpload.images.arrays import RawArray
from mpload.images.decoders import ImageDecoder, NumpyDecoder, RandomResizedCrop, RawBytes, ResizeCenterCrop
from mpload.images.gpu_decode import GpuDecode
from mpload.images.letterbox import Letterbox
from mpload.images.limits import Limits
from mpload.images.mask import Mask
from mpload.images.patches import RandomCrop
from tests.golden.make_formats import FOLDER
from tests.support.decoder_contract import DecoderContract
from tests.support.value_files import value_files

SMALL = Limits(max_bytes=100_000)


class ImageContract(DecoderContract):
    @pytest.fixture
    def whole(self) -> list[bytes]:
        return [(FOLDER / name).read_bytes() for name in ("jpeg_420.jpg", "jpeg_exif_6.jpg", "png_rgb.png")]


class TestImageDecoder(ImageContract):
    decoder = ImageDecoder(limits=SMALL)


class TestRandomResizedCrop(ImageContract):
    decoder = RandomResizedCrop((24, 32), limits=SMALL)


class TestResizeCenterCrop(ImageContract):
    decoder = ResizeCenterCrop((24, 32), resize=40, limits=SMALL)


class TestLetterbox(ImageContract):
    decoder = Letterbox((24, 40), flip=0.5, limits=SMALL)


class TestRandomCrop(ImageContract):
    decoder = RandomCrop((24, 40), padding=3, upside_down=0.5, limits=SMALL)


class TestGpuDecode(ImageContract):
    decoder = GpuDecode(RandomResizedCrop(24, limits=SMALL))


class TestNumpyDecoder(DecoderContract):
    decoder = NumpyDecoder(max_bytes=100_000)

    @pytest.fixture
    def whole(self) -> list[bytes]:
        files = []
        for array in (np.arange(60.0).reshape(3, 4, 5), np.arange(12, dtype=">i2").reshape(3, 4).T):
            file = BytesIO()
            np.save(file, array)
            files.append(file.getvalue())
        return files


class TestRawArray(DecoderContract):
    decoder = RawArray((3, 4), dtype="float32")

    @pytest.fixture
    def whole(self) -> list[bytes]:
        return [np.arange(first, first + 12, dtype=np.float32).tobytes() for first in (0, 9)]


class TestMask(DecoderContract):
    decoder = Mask(ignore=0, dtype="uint8", limits=SMALL)

    @pytest.fixture
    def whole(self) -> list[bytes]:
        files = value_files(20, 30)
        return [files[name][0] for name in ("png_palette_4", "bmp_P", "tiff_palette_8", "npy_uint8")]


class TestRawBytes(DecoderContract):
    decoder: Any = RawBytes()
    broken = ()

    @pytest.fixture
    def whole(self) -> list[bytes]:
        return [b"any \0 bytes"]


class TestRawBytesInArrays(TestRawBytes):
    decoder = RawBytes(as_array=True)
