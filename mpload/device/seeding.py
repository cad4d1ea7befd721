"""Random numbers of torch that belong to a batch, or to each of its samples."""

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
    """What the random numbers of a batch, or of one of its samples, are a function of."""

    seed: int
    epoch: int
    position: int
    """Tells global batches of an epoch apart: where the epoch stands after it."""
    place: int
    """Of the rank's first sample, or of the sample, in the global batch."""

    def of_sample(self, number: int) -> "BatchKey":
        """Return the key of the rank's sample `number`."""
        return replace(self, place=self.place + number)

    @property
    def torch_seed(self) -> int:
        """A hash of the key, 63 bits."""
        text = b"%d %d %d %d" % (self.seed, self.epoch, self.position, self.place)
        digest = hashlib.blake2b(text, digest_size=8, person=b"mpload device 1").digest()
        return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True, slots=True)
class PerSample:
    """Runs a transform on each image of a batch alone, each with random numbers of its own.

    For transforms that draw once for all that they are given, as torchvision's v2 do. A sample's numbers depend on
    seed, epoch, global batch and its place in that, so not on how ranks share the batch; several images of one sample
    get the same ones. Costs the launch of the transform's kernels for each sample.

    Attributes:
        transform: a callable on [1, C, H, W], as any transform of torchvision v2 or kornia is; returns a tensor
            [1, ...] of one shape for all samples.

    Raises:
        ArgumentError: `transform` cannot be called.
    """

    transform: Callable[[torch.Tensor], torch.Tensor]

    def __post_init__(self) -> None:
        if not callable(self.transform):
            raise ArgumentError(f"transform must be a callable on a tensor [1, C, H, W], got {self.transform!r}")


def transformed(transform: Callable[[Any], Any] | PerSample, batch: Any, *, key: BatchKey, device: torch.device) -> Any:
    """Return what a transform makes of a batch with the torch random numbers of `key`; those outside are untouched."""
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
    """Lend torch's generators, of the CPU and of `device`: yields a function that seeds them."""
    is_cpu = device.type == "cpu"
    module: Any = None if is_cpu else torch.get_device_module(device)

    def seed(key: BatchKey) -> None:
        torch.default_generator.manual_seed(key.torch_seed)
        if module is not None:
            module.manual_seed(key.torch_seed)

    with torch.random.fork_rng(devices=[] if is_cpu else [device.index], device_type=device.type):
        yield seed
