"""Views: several crops of one image, each with random numbers of its own."""

import copy
import pickle
from typing import Any

import albumentations  # type: ignore[import-untyped]
import numpy as np
import pytest
from numpy.typing import NDArray

import mpload
from mpload import (
    ArgumentError,
    DecodeError,
    ImageDecoder,
    Letterbox,
    Limits,
    RandomResizedCrop,
    RawBytes,
    ResizeCenterCrop,
    Views,
)
from tests.support.jpegs import make

DATA = make("420", 203, 301, seed=0)
LARGE, SMALL = RandomResizedCrop((50, 60), scale=(0.3, 1.0)), RandomResizedCrop(24, scale=(0.05, 0.3), antialias=True)
VIEWS = Views(glob=(2, LARGE), local=(5, SMALL))


def brighter(view: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.float32]:
    return view.astype(np.float32) + rng.random(dtype=np.float32)


def test_each_view_shows_what_its_decoder_shows_with_the_next_random_numbers() -> None:
    views = VIEWS(DATA, np.random.default_rng(1))
    rng = np.random.default_rng(1)
    assert [*views] == ["glob", "local"]
    for name, decode, count in (("glob", LARGE, 2), ("local", SMALL, 5)):
        assert views[name].shape == (count, *decode.output_shape)
        for view in views[name]:
            np.testing.assert_array_equal(view, decode(DATA, rng))
    assert len({view.tobytes() for view in views["local"]}) == 5


def test_decoders_of_several_kinds_may_be_mixed() -> None:
    kinds = [ResizeCenterCrop(30), Letterbox(40), LARGE]
    views = Views(middle=(1, kinds[0]), whole=(1, kinds[1]), random=(1, LARGE))(DATA, np.random.default_rng(1))
    for made, decode in zip(views.values(), kinds, strict=True):
        rng = {"rng": np.random.default_rng(1)} if decode is LARGE else {}
        np.testing.assert_array_equal(made[0], decode(DATA, **rng))  # type: ignore[operator]


def test_views_are_written_to_out() -> None:
    out = {name: np.zeros(shape, np.uint8) for name, shape in (VIEWS.output_shape or {}).items()}
    made = VIEWS(DATA, np.random.default_rng(1), out)
    for name, expected in VIEWS(DATA, np.random.default_rng(1)).items():
        assert made[name] is out[name]
        np.testing.assert_array_equal(out[name], expected)


def test_views_are_a_value() -> None:
    for views in (VIEWS, Views(of="image", only=(1, ResizeCenterCrop(20), brighter))):
        assert pickle.loads(pickle.dumps(views)) == views
        assert hash(copy.copy(views)) == hash(views)
    named = Views(of="image", glob=(2, LARGE))
    assert eval(repr(named), {name: getattr(mpload, name) for name in mpload.__all__}) == named != VIEWS


def test_each_view_is_transformed_with_a_generator_of_its_own() -> None:
    plain = VIEWS(DATA, np.random.default_rng(1))
    changed = Views(glob=(2, LARGE), local=(5, SMALL, brighter))(DATA, np.random.default_rng(1))
    np.testing.assert_array_equal(changed["glob"], plain["glob"])
    added = changed["local"] - plain["local"]
    assert changed["local"].dtype == np.float32
    assert len(np.unique(added.round(4))) == 5
    again = Views(glob=(2, LARGE), local=(5, SMALL, brighter))(DATA, np.random.default_rng(1))
    np.testing.assert_array_equal(again["local"], changed["local"])


def test_albumentations_transforms_views() -> None:
    flip = albumentations.HorizontalFlip(p=0.5)
    plain = VIEWS(DATA, np.random.default_rng(1))["local"]
    changed = Views(glob=(2, LARGE), local=(5, SMALL, flip))(DATA, np.random.default_rng(1))["local"]
    flips = [np.array_equal(new, old[:, ::-1]) for new, old in zip(changed, plain, strict=True)]
    assert flips == [not np.array_equal(new, old) for new, old in zip(changed, plain, strict=True)]
    assert 0 < sum(flips) < 5


@pytest.mark.parametrize(
    ("make_views", "message"),
    [
        (Views, "needs a group of views"),
        (
            lambda: Views(glob=LARGE),  # type: ignore[arg-type]
            r"glob must be a number of views, their decoder and perhaps a transform, such as",
        ),
        (lambda: Views(glob=(0, LARGE)), "the number of views must be a positive integer, got 0"),
        (lambda: Views(glob=(2, RawBytes())), r"a decoder that chooses a crop, such as RandomResizedCrop\(224\), got"),
        (lambda: Views(glob=(2, ImageDecoder())), "a decoder that chooses a crop"),
        (lambda: Views(glob=(2, RandomResizedCrop)), "a decoder that chooses a crop"),
        (lambda: Views(glob=(2, LARGE, 7)), "transform must be a callable"),
        (
            lambda: Views(glob=(2, LARGE), local=(2, RandomResizedCrop(8, exif_orientation=False))),
            "must have the same exif_orientation, got True and False",
        ),
        (lambda: Views(glob=(2, LARGE), local=(2, RandomResizedCrop(8, max_pixels=9))), "must have the same limits"),
    ],
)
def test_views_that_cannot_be_made_are_refused(make_views: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make_views()


def test_transforms_that_return_different_shapes_are_refused() -> None:
    def cut(view: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        return view[: int(rng.integers(10, 24))]

    with pytest.raises(ArgumentError, match="transform of the views 'local' returned uint8"):
        Views(local=(6, SMALL, cut))(DATA, np.random.default_rng(0))


def test_bad_images_are_decode_errors() -> None:
    small = RandomResizedCrop(8, limits=Limits(max_pixels=100))
    for views, data in ((VIEWS, b"no image"), (VIEWS, DATA[: len(DATA) // 2]), (Views(only=(2, small)), DATA)):
        with pytest.raises(DecodeError):
            views(data, np.random.default_rng(0))
    assert Views(only=(2, small)).limits.max_pixels == 100
