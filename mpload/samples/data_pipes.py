"""DataPipes of torch: each worker reads its share, in the same shuffled order as the others."""

import sys
from typing import Any

from mpload.plan.sample_rng import SampleRng

__all__ = ["is_data_pipe", "shared_pipe"]

_STREAM = 6  # of randomness; samples use 2, and batches 4


def is_data_pipe(dataset: object) -> bool:
    """Return whether this is an `IterDataPipe`."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(dataset, data.IterDataPipe)


def shared_pipe(pipe: Any, *, seed: int, epoch: int, worker: int = 0, num_workers: int = 1) -> Any:
    """Return the DataPipe for one worker: a `Shuffler` draws the same in all workers, a `ShardingFilter` divides."""
    torch = sys.modules["torch"]
    settings: Any = sys.modules["torch.utils.data.graph_settings"]
    generator = torch.Generator()
    generator.manual_seed(int(SampleRng(seed=seed, epoch=epoch).for_sample(0, stream=_STREAM).integers(1 << 62)))
    settings.apply_sharding(pipe, num_workers, worker)
    return settings.apply_random_seed(pipe, generator)
