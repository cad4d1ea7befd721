"""What a DataLoader has and an `MPLoader` does not, and what to use instead."""

from collections.abc import Callable, Iterable, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, Self, SupportsIndex

from torch.utils.data import DataLoader

from mpload.errors import ArgumentError

__all__ = ["Guarded", "check_arguments"]

_ATTRIBUTES = frozenset(
    {
        "batch_sampler",
        "collate_fn",
        "drop_last",
        "generator",
        "in_order",
        "multiprocessing_context",
        "persistent_workers",
        "pin_memory",
        "pin_memory_device",
        "prefetch_factor",
        "sampler",
        "timeout",
        "worker_init_fn",
    }
)
"""Attributes by which frameworks rebuild a DataLoader.

Accelerate takes the defaults for those that a loader lacks, so none of those that it needs may be there: `sampler`,
`batch_sampler`, and `drop_last` of an iterable dataset. Lightning's `overfit_batches` rebuilds what has a `sampler`.
"""
_SET_EPOCH = "Keep the sampler that you passed and call its set_epoch, or call set_epoch of the loader"
_INSTEAD = {"sampler": _SET_EPOCH, "batch_sampler": _SET_EPOCH}
"""What to do instead of reading an attribute."""
_FIXED = _ATTRIBUTES | {"batch_size"}
"""Attributes that are arguments of the loader. A change would have no effect."""


def check_arguments(unknown: Iterable[str]) -> None:
    """Check that there are no arguments which an `MPLoader` does not have.

    Raises:
        ArgumentError: there are some.
    """
    names = ", ".join(f"{name}=" for name in sorted(unknown))
    if names:
        raise ArgumentError(f"MPLoader has no argument {names}: docs/from-dataloader.md lists those that it has")


def _check_unnamed(loader: Callable[..., Any], values: Sequence[Any]) -> None:
    """Check that a loader's constructor takes so many positional arguments. A subclass may take more.

    Raises:
        ArgumentError: it does not.
    """
    try:
        signature(loader).bind_partial(*values)
    except TypeError:
        names = list(signature(DataLoader).parameters)
        named = ", ".join(f"{name}={value!r:.40}" for name, value in zip(names[1:], values[1:], strict=False))
        raise ArgumentError(
            f"an MPLoader takes one positional argument, the dataset, but got {len(values)}. "
            f"Write MPLoader(dataset, {named})"
        ) from None


def _check_assignment(name: str, *, is_set: bool) -> None:
    """Check that an attribute of a loader may be assigned to.

    Raises:
        ArgumentError: it is one of those that decide which batches there are, and that would have no effect.
    """
    if name in _FIXED or (name == "dataset" and is_set):
        raise ArgumentError(f"{name} of an MPLoader cannot be changed. Make a new loader, with another {name}=")


def _check_attribute(name: str) -> None:
    """Check that frameworks do not look for `name` to rebuild a DataLoader.

    Raises:
        AttributeError: they do. The message says what to do.
    """
    if name in _ATTRIBUTES:
        raise AttributeError(
            f"an MPLoader does not show its {name!r}, because frameworks build another DataLoader from such attributes "
            f"and lose its workers and position. {_INSTEAD.get(name, 'Keep the value that you passed')}. If a "
            "framework asks for it, pass the loader as docs/how-to/frameworks.md says, and skip batches by "
            "load_state_dict()"
        )


class Guarded:
    """Refuses attributes by which frameworks rebuild a DataLoader, and assignments that would have no effect.

    It can be copied with `copy.copy` only, as frameworks do. With workers, it refuses to be pickled.
    """

    def __copy__(self) -> Self:
        clone = type(self).__new__(type(self))
        vars(clone).update(vars(self))
        return clone

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        if vars(self).get("_num_workers") != 0:
            raise TypeError(
                "an MPLoader with workers cannot be pickled or copied to another process, because it owns processes "
                "and shared memory. Pass its dataset, and make a loader there"
            )
        return super().__reduce_ex__(protocol)

    if not TYPE_CHECKING:  # otherwise type checkers would accept any arguments, and any attribute name

        def __new__(cls, *arguments: Any, **_: Any) -> Self:
            """Refuse further positional arguments, which a DataLoader takes."""
            if len(arguments) > 1:
                _check_unnamed(cls, arguments)
            return super().__new__(cls)

        def __getattr__(self, name: str) -> Any:
            _check_attribute(name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

        def __setattr__(self, name: str, value: Any) -> None:
            _check_assignment(name, is_set=name in vars(self))
            super().__setattr__(name, value)
