"""Torch random numbers that depend only on the batch, or on each of its samples."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from mpload.device.staging import map_tensors
from mpload.errors import ArgumentError

__all__ = ["BatchKey", "PerSample", "transformed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchKey:
    """The key that determines the random numbers of a batch, or of one of its samples."""

    seed: int
    epoch: int
    position: int
    """Position in the epoch after the batch. It distinguishes the global batches of an epoch."""
    place: int
    """Place in the global batch of this sample, or of the rank's first sample."""

    def of_sample(self, number: int) -> "BatchKey":
        """Return the key of sample `number` of the rank's batch."""
        return replace(self, place=self.place + number)

    @property
    def torch_seed(self) -> int:
        """A 63-bit hash of the key."""
        text = b"%d %d %d %d" % (self.seed, self.epoch, self.position, self.place)
        digest = hashlib.blake2b(text, digest_size=8, person=b"mpload device 1").digest()
        return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True, slots=True)
class PerSample:
    """Applies a transform to each image of a batch separately, with different random numbers for each sample.

    Use it for transforms that draw random numbers once per call, such as those of torchvision v2. The random numbers of
    a sample depend on seed, epoch, global batch and place in the global batch, but not on how ranks split the batch.
    Several images of one sample get the same random numbers. The kernels of the transform are launched once per sample.

    Attributes:
        transform: a callable on a tensor [1, C, H, W], such as any transform of torchvision v2 or kornia. It returns a
            tensor [1, ...] with the same shape for all samples.

    Raises:
        ArgumentError: `transform` cannot be called.
    """

    transform: Callable[[torch.Tensor], torch.Tensor]

    def __post_init__(self) -> None:
        if not callable(self.transform):
            raise ArgumentError(f"transform must be a callable on a tensor [1, C, H, W], got {self.transform!r}")


def transformed(transform: Callable[[Any], Any] | PerSample, batch: Any, *, key: BatchKey, device: torch.device) -> Any:
    """Apply a transform to a batch with the torch random numbers of `key`. The state of torch's generators is kept."""
    with _generators(device) as seed:
        if not isinstance(transform, PerSample):
            seed(key)
            return transform(batch)

        def each(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.ndim != 4 or not len(tensor):
                return tensor
            results = []
            for number, image in enumerate(tensor[:, None]):
                seed(key.of_sample(number))
                results.append(transform.transform(image))
            return torch.cat(results)

        return map_tensors(batch, each)


@contextmanager
def _generators(device: torch.device) -> Iterator[Callable[[BatchKey], None]]:
    """Yield a function that seeds torch's generators, of the CPU and of `device`; restore their state afterwards."""
    is_cpu = device.type == "cpu"
    module: Any = None if is_cpu else torch.get_device_module(device)

    def seed(key: BatchKey) -> None:
        torch.default_generator.manual_seed(key.torch_seed)
        if module is not None:
            module.manual_seed(key.torch_seed)

    with torch.random.fork_rng(devices=[] if is_cpu else [device.index], device_type=device.type):
        yield seed
