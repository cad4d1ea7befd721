"""What a DataLoader has and an `MPLoader` does not, and what to use instead."""

from collections.abc import Iterable

from mpload.errors import ArgumentError

__all__ = ["check_arguments", "check_attribute"]

_ATTRIBUTES = frozenset({"batch_sampler", "collate_fn", "drop_last", "generator", "pin_memory", "sampler"})
"""Attributes by which frameworks rebuild a DataLoader."""


def check_arguments(unknown: Iterable[str]) -> None:
    """Check that there are no arguments which an `MPLoader` does not have.

    Raises:
        ArgumentError: there are some.
    """
    names = ", ".join(f"{name}=" for name in sorted(unknown))
    if names:
        raise ArgumentError(f"MPLoader has no argument {names}: docs/from-dataloader.md lists those that it has")


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
