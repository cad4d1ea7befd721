"""An albumentations pipeline that draws random numbers in many ways, and digests of its results for a photo."""

import hashlib
from typing import Any

import albumentations as A  # type: ignore[import-untyped]  # noqa: N812  as its users write it
import numpy as np
from numpy.typing import NDArray

from mpload.plan.sample_rng import SampleRng
from mpload.samples.transforms import GlobalGenerators, adapt_transform
from tests.support.photos import photo

Image = NDArray[np.uint8]
PHOTO = photo(48, 64, np.random.default_rng(0))


class Gaussian(A.ImageOnlyTransform):  # type: ignore[misc]
    """Draws one number from Python's `gauss`, which makes numbers in pairs."""

    def get_params(self) -> dict[str, Any]:
        return {"shift": self.py_random.gauss(0, 20)}

    def apply(self, img: Image, shift: float, **_: Any) -> Image:
        return np.asarray(np.clip(img + shift, 0, 255), np.uint8)


def pipeline() -> A.Compose:
    """Return a pipeline that draws from both generators: nested choices, whole arrays, integers and permutations."""
    return A.Compose([
        A.HorizontalFlip(),
        Gaussian(p=0.7),
        A.OneOf([A.RandomBrightnessContrast(p=1.0), A.HueSaturationValue(p=1.0), A.ChannelShuffle(p=1.0)], p=0.9),
        A.SomeOf([A.Affine(rotate=20, p=1.0), A.GaussNoise(p=1.0), A.CoarseDropout(fill="random", p=1.0)], n=2),
        A.RandomGridShuffle(),
        A.RandomCrop(40, 50),
    ])  # fmt: skip


def digest(pixels: Image) -> str:
    return hashlib.blake2b(pixels.tobytes(), digest_size=8).hexdigest()


def digests(transform: Any, sample_ids: list[int], *, seed: int = 1, epoch: int = 2) -> list[str]:
    adapted, rng = adapt_transform(transform), SampleRng(seed=seed, epoch=epoch)
    with GlobalGenerators(seeds=True).lent():
        return [digest(adapted(PHOTO, rng.for_sample(sample_id, stream=1))) for sample_id in sample_ids]
