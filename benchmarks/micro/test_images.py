"""Header, Huffman codes, crops, the whole image and the resize of one photograph, 353 pixels high and 500 wide."""

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from mpload import ImageDecoder, Limits, RandomResizedCrop, ResizeCenterCrop
from mpload.images.image import open_image
from mpload.images.jpeg_header import read_header
from mpload.images.resize import Box, Pixels, View, resize_into

pytestmark = pytest.mark.benchmark(group="images")

HEIGHT, WIDTH = 353, 500


@pytest.fixture
def out() -> Pixels:
    return np.zeros((224, 224, 3), np.uint8)


def test_header(benchmark: BenchmarkFixture, photo: bytes) -> None:
    assert benchmark(read_header, photo)[:2] == (HEIGHT, WIDTH)


def test_huffman_codes(benchmark: BenchmarkFixture, photo: bytes) -> None:
    """The last 16 x 16 pixels: nearly all of the time goes into the Huffman codes of all the others."""
    image, corner = open_image(photo, limits=Limits()), np.zeros((16, 16, 3), np.uint8)
    view = View(box=Box(top=HEIGHT - 16, left=WIDTH - 16, height=16, width=16), full=(16, 16))
    benchmark(image.draw, view, corner)
    assert corner.any()


@pytest.mark.parametrize("antialias", [False, True])
def test_random_crop(benchmark: BenchmarkFixture, photo: bytes, out: Pixels, *, antialias: bool) -> None:
    decode = RandomResizedCrop(224, scale=(0.8, 1.0), antialias=antialias)
    benchmark(lambda: decode(photo, rng=np.random.default_rng(0), out=out))
    assert out.any()


def test_center_crop(benchmark: BenchmarkFixture, photo: bytes, out: Pixels) -> None:
    benchmark(ResizeCenterCrop(224), photo, out)
    assert out.any()


def test_whole_image(benchmark: BenchmarkFixture, photo: bytes) -> None:
    assert benchmark(ImageDecoder(), photo).shape == (HEIGHT, WIDTH, 3)


@pytest.mark.parametrize("antialias", [False, True])
def test_resize(benchmark: BenchmarkFixture, photo: bytes, out: Pixels, *, antialias: bool) -> None:
    """The resize outside of the native decoder, which has its own."""
    pixels = ImageDecoder()(photo)
    view = View(box=Box(top=0, left=0, height=HEIGHT, width=WIDTH), full=(224, 224), antialias=antialias)
    benchmark(resize_into, out, pixels, view)
    assert out.any()
