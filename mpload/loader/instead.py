"""What a DataLoader has and an `MPLoader` does not, and what to use instead."""

from collections.abc import Iterable

from mpload.errors import ArgumentError

__all__ = ["check_arguments", "check_attribute"]

_ORDER = "pass shuffle=True or an order, such as BlockShuffle(); for weighted sampling use a DataLoader"
_PINNING = "leave it out: DevicePrefetcher(loader) pins the loader's memory and copies batches to the GPU"

_ARGUMENTS = {
    "batch_sampler": _ORDER,
    "collate_fn": "batches are made as by default_collate: change the samples in the dataset, or use a DataLoader",
    "drop_last": 'pass tail="drop"',
    "generator": "pass seed=",
    "in_order": "leave it out: batches always come in order",
    "multiprocessing_context": "leave it out; options=PoolOptions(starts_fresh=True) starts processes without a fork",
    "persistent_workers": "leave it out: workers live until close()",
    "pin_memory": _PINNING,
    "pin_memory_device": _PINNING,
    "prefetch_factor": "pass memory_budget=, which limits how many batches are made ahead",
    "sampler": _ORDER,
    "timeout": "pass options=PoolOptions(sample_timeout_seconds=...)",
    "worker_init_fn": "leave it out: random numbers are seeded for each sample",
}
_ATTRIBUTES = frozenset({"batch_sampler", "collate_fn", "drop_last", "generator", "pin_memory", "sampler"})
"""Attributes by which frameworks rebuild a DataLoader."""


def check_arguments(unknown: Iterable[str]) -> None:
    """Check that there are no arguments which an `MPLoader` does not have.

    Raises:
        ArgumentError: there are some. The message says what to use instead of each.
    """
    instead = [f"{name}: {_ARGUMENTS.get(name, 'there is no such argument')}" for name in unknown]
    if instead:
        raise ArgumentError(
            f"MPLoader does not take all arguments of a DataLoader. {'. '.join(instead)}. An MPDataset has shuffle, "
            "seed and tail of its own: pass them there. docs/from-dataloader.md compares all options"
        )


def check_attribute(name: str) -> None:
    """Check that frameworks do not look for `name` to rebuild a DataLoader.

    Raises:
        AttributeError: they do. The message says what to do.
    """
    if name in _ATTRIBUTES:
        raise AttributeError(
            f"an MPLoader has no {name!r}, because it cannot be rebuilt from its parts as a DataLoader can: it shards "
            "and resumes by itself. Iterate over it as it is, without skip_first_batches, setup_dataloaders or "
            "prepare_data_loader, and save its state_dict(). See docs/how-to/frameworks.md"
        )
