"""A sample's randomness depends only on (seed, epoch, sample_id), not on the process, worker or earlier samples."""

import contextlib
import functools
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import albumentations as A  # type: ignore[import-untyped]  # noqa: N812  as its users write it
import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]

from mpload.errors import ArgumentError
from mpload.plan.sample_rng import SampleRng
from mpload.samples.transforms import adapt_transform
from tests.support.augmentations import PHOTO, Gaussian, Image, digest, digests, pipeline

seeds = st.integers(-(2**70), 2**70)
ids = st.integers(0, 2**63 - 1)


# A sample's random numbers


@given(seeds, seeds, ids, st.integers(0, 5))
def test_a_sample_draws_the_same_numbers_whatever_was_drawn_before(
    seed: int, epoch: int, sample_id: int, stream: int
) -> None:
    fresh = SampleRng(seed=seed, epoch=epoch).for_sample(sample_id, stream=stream).random(9)
    used = SampleRng(seed=seed, epoch=epoch)
    other = used.for_sample(sample_id ^ 1, stream=stream)
    other.integers(0, 9, dtype=np.uint32)  # leaves half a word in the generator
    other.standard_normal(5)  # leaves part of a block in the generator
    np.testing.assert_array_equal(used.for_sample(sample_id, stream=stream).random(9), fresh)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), ids, st.integers(0, 1)), min_size=2, unique=True))
def test_seed_epoch_sample_and_stream_each_matter(keys: list[tuple[int, int, int, int]]) -> None:
    drawn = {
        SampleRng(seed=seed, epoch=epoch).for_sample(sample_id, stream=stream).bytes(16)
        for seed, epoch, sample_id, stream in keys
    }
    assert len(drawn) == len(keys)


def test_neighbouring_samples_are_independent_and_uniform() -> None:
    rng = SampleRng(seed=0, epoch=0)
    table = np.array([rng.for_sample(sample_id).random(4) for sample_id in range(5000)])
    for column in table.T:
        assert stats.kstest(column, "uniform").pvalue > 0.001
    integers = [int(rng.for_sample(sample_id).integers(0, 256, dtype=np.uint8)) for sample_id in range(5000)]
    assert stats.chisquare(np.bincount(integers, minlength=256)).pvalue > 0.001
    correlation = np.corrcoef(np.hstack([table[:-1], table[1:]]).T)
    assert np.abs(correlation - np.eye(8)).max() < 0.07


def test_streams_of_samples_never_overlap() -> None:
    """Each stream has 2^64 blocks of its own, so it never runs into another one."""
    rng = SampleRng(seed=0, epoch=0)
    start = rng.for_sample(5).bit_generator.state["state"]["counter"]
    beyond = rng.for_sample(6).bit_generator.state["state"]["counter"]
    other = rng.for_sample(5, stream=1).bit_generator.state["state"]["counter"]
    assert start.tolist() == [0, 5, 0, 0]
    assert beyond.tolist() == [0, 6, 0, 0]
    assert other.tolist() == [0, 5, 1, 0]


def test_the_numbers_of_a_sample_never_change() -> None:
    """These numbers are frozen: if they change, every user's augmentation changes."""
    drawn = SampleRng(seed=7, epoch=3).for_sample(9_000_000_000, stream=1).random(3)
    assert drawn.tolist() == [0.7856489861260961, 0.8876839485749866, 0.8500932924942926]


def test_a_pickled_rng_draws_the_same() -> None:
    rng = SampleRng(seed=-5, epoch=2)
    rng.for_sample(3).random(5)
    copy = pickle.loads(pickle.dumps(rng))
    assert (copy.seed, copy.epoch, repr(copy)) == (-5, 2, "SampleRng(seed=-5, epoch=2)")
    assert copy.for_sample(3).random() == rng.for_sample(3).random()


@pytest.mark.parametrize(("sample_id", "stream"), [(-1, 0), (1 << 64, 0), (0, -1)])
def test_an_invalid_sample_id_is_refused(sample_id: int, stream: int) -> None:
    with pytest.raises(ArgumentError, match=r"in \[0, 2\^64\)"):
        SampleRng(seed=0, epoch=0).for_sample(sample_id, stream=stream)


def test_numpy_sample_ids_are_accepted() -> None:
    rng = SampleRng(seed=0, epoch=0)
    assert rng.for_sample(np.int64(5)).random() == rng.for_sample(5).random()  # type: ignore[arg-type]


# albumentations


def test_pixels_do_not_depend_on_earlier_samples() -> None:
    forwards = digests(pipeline(), list(range(30)))
    assert digests(pipeline(), list(range(29, -1, -1))) == forwards[::-1]
    assert digests(pipeline(), [17]) == [forwards[17]]
    assert digests(pipeline(), [4, 17, 17]) == [forwards[4], forwards[17], forwards[17]]
    assert len(set(forwards)) == 30


@pytest.mark.slow
@pytest.mark.processes
def test_pixels_do_not_depend_on_the_process() -> None:
    code = "from tests.support.augmentations import digests, pipeline; print(*digests(pipeline(), [8, 3, 25]))"
    root = Path(__file__).parents[2]
    other = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True, timeout=60
    )
    assert other.stdout.split() == digests(pipeline(), [8, 3, 25])


def test_pixels_do_not_depend_on_the_transforms_own_seed() -> None:
    seeded = pipeline()
    seeded.set_random_seed(99)
    assert digests(seeded, [1, 2, 3]) == digests(pipeline(), [1, 2, 3])


def test_pixels_survive_pickling_before_and_after_use() -> None:
    transform = pipeline()
    adapted = adapt_transform(transform)
    expected = digests(pipeline(), [1, 2, 3])
    for _ in range(2):
        for copy in (pickle.loads(pickle.dumps(transform)), pickle.loads(pickle.dumps(adapted))):
            rng = SampleRng(seed=1, epoch=2)
            again = adapt_transform(copy) if isinstance(copy, A.Compose) else copy
            assert [digest(again(PHOTO, rng.for_sample(number, stream=1))) for number in (1, 2, 3)] == expected


def test_transforms_shared_by_two_pipelines_draw_from_the_callers_generator() -> None:
    shared = A.RandomBrightnessContrast(brightness_limit=0.9, p=1.0)
    first, second = adapt_transform(A.Compose([shared])), adapt_transform(A.Compose([A.HorizontalFlip(), shared]))
    expected = digests(A.Compose([shared]), [1, 2, 3])
    mine, theirs = SampleRng(seed=1, epoch=2), SampleRng(seed=5, epoch=5)
    pixels = []
    for sample_id in (1, 2, 3):
        second(PHOTO, theirs.for_sample(sample_id))
        pixels.append(digest(first(PHOTO, mine.for_sample(sample_id, stream=1))))
    assert pixels == expected


@pytest.mark.parametrize(("seed", "epoch"), [(1, 3), (2, 2), (2, 1)])
def test_other_seeds_and_epochs_give_other_pixels(seed: int, epoch: int) -> None:
    here, there = digests(pipeline(), list(range(20))), digests(pipeline(), list(range(20)), seed=seed, epoch=epoch)
    assert not set(here) & set(there)


def test_transforms_within_one_compose_draw_independently() -> None:
    """If both had the same seed, as `set_random_seed` gives them, both flips would always happen together."""
    both = adapt_transform(A.Compose([A.HorizontalFlip(p=0.5), A.VerticalFlip(p=0.5)]))
    rng = SampleRng(seed=0, epoch=0)
    results = [both(PHOTO, rng.for_sample(number)).tobytes() for number in range(400)]
    ways = [PHOTO, PHOTO[:, ::-1], PHOTO[::-1], PHOTO[::-1, ::-1]]
    counts = [results.count(np.ascontiguousarray(way).tobytes()) for way in ways]
    assert sum(counts) == 400
    assert stats.chisquare(counts).pvalue > 0.001


def test_a_single_transform_needs_no_compose() -> None:
    first, second = digests(A.RandomBrightnessContrast(p=1.0), [1, 2])
    assert first != second
    assert digests(Gaussian(p=1.0), [2, 1]) == digests(Gaussian(p=1.0), [1, 2])[::-1]


def test_pythons_generator_draws_uniformly_from_the_samples() -> None:
    class Draws(A.ImageOnlyTransform):  # type: ignore[misc]
        def get_params(self) -> dict[str, Any]:
            drawn.append(
                [
                    self.py_random.random(),
                    self.py_random.randint(0, 999) / 1000,
                    (self.py_random.getrandbits(200) >> 100) / (1 << 100),
                    self.py_random.choice(range(1000)) / 1000,
                ]
            )
            return {}

        def apply(self, img: Image, **_: Any) -> Image:
            return img

    drawn: list[list[float]] = []
    digests(Draws(p=1.0), list(range(2000)))
    table = np.array(drawn)
    for column in table.T:
        assert stats.kstest(column, "uniform").pvalue > 0.001
    assert np.abs(np.corrcoef(table.T) - np.eye(4)).max() < 0.1


def test_albumentations_does_not_change_the_global_generators() -> None:
    python, numpy = random.getstate(), np.random.get_state(legacy=False)  # noqa: NPY002
    digests(pipeline(), list(range(10)))
    assert random.getstate() == python
    after = np.random.get_state(legacy=False)  # noqa: NPY002
    np.testing.assert_equal(after, numpy)


def test_a_transform_that_returns_no_array_gets_an_error_with_the_remedy() -> None:
    class ToTensor(A.ImageOnlyTransform):  # type: ignore[misc]
        def apply(self, img: Image, **_: Any) -> Any:
            return img.tolist()

    with pytest.raises(
        ArgumentError, match=r"returned list, not a NumPy array\. Return the array.* leave out ToTensorV2"
    ):
        digests(lambda image: image.tolist(), [0])
    with pytest.raises(ArgumentError, match="returned"):
        digests(ToTensor(p=1.0), [0])


# Other callables


class Noise:
    """A callable object with a generator."""

    def __call__(self, image: Image, *, rng: np.random.Generator) -> Image:
        return image ^ rng.integers(0, 256, image.shape, dtype=np.uint8)


def noise(image: Image, rng: np.random.Generator, strength: int = 1) -> Image:
    return image ^ rng.integers(0, 256, image.shape, dtype=np.uint8) * np.uint8(strength)


@pytest.mark.parametrize("transform", [Noise(), noise, functools.partial(noise, strength=3)])
def test_a_callable_with_rng_gets_the_samples_generator(transform: Any) -> None:
    forwards = digests(transform, [1, 2, 3])
    assert len(set(forwards)) == 3
    assert digests(pickle.loads(pickle.dumps(transform)), [3, 2, 1]) == forwards[::-1]


@pytest.mark.parametrize(
    "transform",
    [lambda image: image[::-1], np.flipud, functools.partial(cv2.flip, flipCode=0), lambda image, **rng: image[::-1]],
)
def test_a_callable_without_rng_is_called_with_the_array_alone(transform: Any) -> None:
    assert digests(transform, [1]) == [digest(PHOTO[::-1])]


def from_all_generators(image: Image) -> Image:
    """Draw two numbers from each of the three global generators."""
    import torch

    parts = np.random.rand(2), [random.random(), random.gauss()], torch.rand(2).numpy()  # noqa: NPY002
    return np.concatenate(parts)


def test_global_generators_give_each_sample_its_own_numbers() -> None:
    forwards = digests(from_all_generators, list(range(20)))
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    assert digests(from_all_generators, list(range(19, -1, -1))) == forwards[::-1]
    assert len(set(forwards)) == 20
    assert not set(forwards) & set(digests(from_all_generators, list(range(20)), epoch=9))


def test_global_generators_give_independent_uniform_numbers() -> None:
    rng, adapted = SampleRng(seed=3, epoch=0), adapt_transform(from_all_generators)
    table = np.array([adapted(PHOTO, rng.for_sample(number))[[0, 1, 2, 4, 5]] for number in range(2000)])
    for column in table.T:
        assert stats.kstest(column, "uniform").pvalue > 0.001
    assert np.abs(np.corrcoef(table.T) - np.eye(5)).max() < 0.1


@pytest.mark.parametrize("fails", [False, True])
def test_global_generators_are_restored_after_a_sample(fails: bool) -> None:
    import torch

    def transform(image: Image) -> Image:
        from_all_generators(image)
        if fails:
            raise ValueError("on purpose")
        return image

    states = random.getstate(), np.random.get_state(legacy=False), torch.random.get_rng_state()  # noqa: NPY002
    with pytest.raises(ValueError, match="on purpose") if fails else contextlib.nullcontext():
        digests(transform, [1, 2, 3])
    assert random.getstate() == states[0]
    np.testing.assert_equal(np.random.get_state(legacy=False), states[1])  # noqa: NPY002
    assert torch.equal(torch.random.get_rng_state(), states[2])


def mirror_and_noise() -> Any:
    """Return a module like torchvision's, which maps [C, H, W] to [C, H, W] and draws from torch's global generator."""
    import torch

    class MirrorAndNoise(torch.nn.Module):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            assert image.shape == (3, *PHOTO.shape[:2])
            image = image.flip(-1) if torch.rand(1) < 0.5 else image
            return image ^ torch.randint(0, 2, image.shape, dtype=torch.uint8)

    return MirrorAndNoise()


def test_a_torch_module_gets_a_tensor_and_the_samples_numbers() -> None:
    adapted = adapt_transform(mirror_and_noise())
    rng = SampleRng(seed=1, epoch=2)
    results = [adapted(PHOTO, rng.for_sample(number, stream=1)) for number in range(30)]
    again = [adapted(PHOTO, rng.for_sample(number, stream=1)) for number in range(29, -1, -1)]
    for result, other in zip(results, again[::-1], strict=True):
        np.testing.assert_array_equal(result, other)
        assert (result.shape, str(result.dtype), result.flags.c_contiguous) == (PHOTO.shape, "uint8", True)
    mirrored = [bool((result >> 1 == PHOTO[:, ::-1] >> 1).all()) for result in results]
    plain = [bool((result >> 1 == PHOTO >> 1).all()) for result in results]
    assert [not other for other in plain] == mirrored
    assert 5 < sum(mirrored) < 25


def test_a_torch_module_may_change_shape_and_dtype() -> None:
    import torch

    adapted = adapt_transform(torch.nn.Sequential(torch.nn.AvgPool2d(2)))
    frozen = PHOTO.astype(np.float32)
    frozen.flags.writeable = False
    result = adapted(frozen, np.random.default_rng(0))
    assert (result.shape, str(result.dtype)) == ((PHOTO.shape[0] // 2, PHOTO.shape[1] // 2, 3), "float32")
    with pytest.raises(ArgumentError, match="returned list, not a tensor"):
        adapt_transform(type("Lists", (torch.nn.Module,), {"forward": lambda self, image: image.tolist()})())(
            PHOTO, np.random.default_rng(0)
        )


def test_a_transform_that_cannot_be_called_or_seeded_is_refused() -> None:
    with pytest.raises(ArgumentError, match="transform must be a callable on an array, got 'flip'"):
        adapt_transform("flip")  # type: ignore[arg-type]
    old = type("OldCompose", (), {"__module__": "albumentations.core", "__call__": lambda self, image: image})
    with pytest.raises(ArgumentError, match="OldCompose cannot be seeded: it needs albumentations 2"):
        adapt_transform(old())


@pytest.mark.processes
def test_albumentations_is_not_imported_unless_it_is_used() -> None:
    code = (
        "import sys, mpload.samples.transforms as augment; augment.adapt_transform(len);"
        "print([name for name in ('albumentations', 'torch') if name in sys.modules])"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
