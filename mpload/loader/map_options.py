"""The arguments of an `MPLoader` for map-style datasets: those of a DataLoader, and those of an `MPDataset`."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypedDict

import torch

from mpload.errors import ArgumentError, warn
from mpload.index.weighting import IndexOrder
from mpload.loader.instead import check_arguments
from mpload.plan.order import OrderChoice, Sequential, Shuffle
from mpload.plan.plan import Tail
from mpload.plan.ranges import plain_integer
from mpload.plan.topology import Topology
from mpload.samples.data_pipes import is_data_pipe
from mpload.samples.policy import ErrorAction, ErrorPolicy, policy_of
from mpload.transport.batches import PoolOptions
from mpload.transport.forking import Forks

__all__ = ["MapArguments", "MapOptions"]


class MapArguments(TypedDict, total=False):
    """The arguments of an `MPLoader` for map-style datasets, as type checkers see them. `MPLoader` describes them."""

    batch_size: int | None
    shuffle: bool | OrderChoice | None
    seed: int
    tail: Tail | Literal["drop", "pad", "ragged"] | None
    topology: Topology | None
    sampler: Iterable[Any] | None
    batch_sampler: Iterable[Iterable[Any]] | None
    collate_fn: Callable[[Any], Any] | None
    drop_last: bool
    on_error: ErrorPolicy | Literal["raise", "skip", "substitute"]
    worker_init_fn: Callable[[int], object] | None
    generator: torch.Generator | None
    pin_memory: bool
    pin_memory_device: str
    persistent_workers: bool
    prefetch_factor: int | None
    timeout: float
    multiprocessing_context: Any
    in_order: bool


_WITHOUT_MEANING = {
    "in_order": (True, "batches come in order, but those of an iterable dataset when its workers have made them"),
    "pin_memory_device": ("", "torch knows the accelerator"),
}
"""By argument: its default, and why an `MPLoader` does not need it."""

_NOT_OF_STREAMS = ("shuffle", "sampler", "batch_sampler", "tail", "topology", "on_error")
_METHODS = (None, "fork", "spawn", "forkserver")
_OF_ANY_DATASET = {"multiprocessing_context", "persistent_workers", "pin_memory", "prefetch_factor", "timeout"}
"""Arguments that do not change which batches there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapOptions:
    """The arguments of an `MPLoader` for map-style datasets, checked.

    Raises:
        ArgumentError: an argument breaks a rule, or contradicts another one.
    """

    batch_size: int | None = 1
    shuffle: bool | OrderChoice | None = None
    seed: int = 0
    tail: Tail | Literal["drop", "pad", "ragged"] | None = None
    topology: Topology | None = None
    sampler: Iterable[Any] | None = None
    batch_sampler: Iterable[Iterable[Any]] | None = None
    collate_fn: Callable[[Any], Any] | None = None
    drop_last: bool | None = None
    on_error: ErrorPolicy | Literal["raise", "skip", "substitute"] = "raise"
    worker_init_fn: Callable[[int], object] | None = None
    generator: torch.Generator | None = None
    prefetch_factor: int | None = None
    timeout: float = 0
    pin_memory: bool = False
    persistent_workers: bool = False
    multiprocessing_context: Any = None

    @classmethod
    def of(cls, arguments: MapArguments) -> "MapOptions":
        """Return the options, and warn of arguments that have no meaning here.

        Raises:
            ArgumentError: there is no such argument, or one breaks a rule.
        """
        names = {each.name for each in fields(cls)}
        check_arguments(arguments.keys() - names - _WITHOUT_MEANING.keys())
        unused = [
            f"{name}: {why}"
            for name, (default, why) in _WITHOUT_MEANING.items()
            if arguments.get(name, default) != default
        ]
        if unused:
            warn(f"an MPLoader has no use for {'; '.join(unused)}")
        known: dict[str, Any] = {name: value for name, value in arguments.items() if name in names}
        return cls(**known)

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", plain_integer(self.batch_size))
        if self.batch_size is not None and (type(self.batch_size) is not int or self.batch_size < 1):
            raise ArgumentError(f"batch_size must be at least 1, or None for single samples, got {self.batch_size!r}")
        if self.prefetch_factor is not None and self.prefetch_factor < 1:
            raise ArgumentError(f"prefetch_factor must be at least 1, got {self.prefetch_factor}")
        if self.timeout < 0:
            raise ArgumentError(f"timeout must not be negative, got {self.timeout}")
        if self.multiprocessing_context not in _METHODS and not hasattr(
            self.multiprocessing_context, "get_start_method"
        ):
            raise ArgumentError(
                "multiprocessing_context must be None, a context, or one of 'fork', 'spawn' and 'forkserver', got "
                f"{self.multiprocessing_context!r}"
            )
        if self.tail is not None:
            Tail(self.tail)
        if isinstance(self.shuffle, IndexOrder):
            raise ArgumentError(
                f"shuffle: {self.shuffle!r} needs an index, but a map-style dataset has none. Pass "
                "sampler=torch.utils.data.WeightedRandomSampler(...)"
            )
        self._check_pair("sampler", "shuffle")
        for other in ("batch_size", "shuffle", "sampler", "drop_last"):
            self._check_pair("batch_sampler", other)
        self._check_pair("generator", "seed")
        if self.is_sampled:
            for other in ("topology", "tail"):
                self._check_pair("batch_sampler" if self.sampler is None else "sampler", other)
        if self.policy.action is ErrorAction.SKIP and self.batch_size is None:
            raise ArgumentError(
                "on_error='skip' makes batches shorter, but batch_size=None yields single samples. Pass "
                "on_error='substitute', or a batch_size"
            )
        if self.drop_last and self.batch_size is None:
            raise ArgumentError("drop_last=True needs batches, but batch_size=None yields single samples. Leave it out")
        if self.drop_last and self.tail not in {None, Tail.DROP}:
            raise ArgumentError(f"drop_last=True contradicts tail={str(self.tail)!r}. Leave one of them out")

    def _check_pair(self, name: str, other: str) -> None:
        value = getattr(self, other)
        if getattr(self, name) is not None and self._is_given(other):
            raise ArgumentError(
                f"{name}= and {other}= contradict each other, got {other}={value!r:.80}. Leave one of them out"
            )

    def _is_given(self, name: str) -> bool:
        """Whether an argument asks for something else than its default."""
        value = getattr(self, name)
        default = next(each.default for each in fields(self) if each.name == name)
        return (
            value is not None and value is not False and not (isinstance(value, int | float | str) and value == default)
        )

    @property
    def policy(self) -> ErrorPolicy:
        """How samples that cannot be made are handled."""
        return policy_of(self.on_error)

    @property
    def forks(self) -> Forks:
        """Whether workers are forked from this process."""
        context = self.multiprocessing_context
        method = context if isinstance(context, str | None) else context.get_start_method()
        return Forks.IF_SAFE if method is None else Forks.ALWAYS if method == "fork" else Forks.NEVER

    @property
    def is_sampled(self) -> bool:
        """Whether a sampler of the user decides which samples a batch holds."""
        return self.sampler is not None or self.batch_sampler is not None

    @property
    def order(self) -> OrderChoice:
        """The order of the samples, if no sampler decides it."""
        if isinstance(self.shuffle, bool | None):
            return Shuffle() if self.shuffle else Sequential()
        return self.shuffle

    @property
    def chosen_tail(self) -> Tail:
        """What happens to the samples that do not fill the last batch."""
        if self.tail is not None:
            return Tail(self.tail)
        return Tail.DROP if self.drop_last else Tail.PAD

    @property
    def tail_alone(self) -> Tail | None:
        """What happens to them if there is one rank; None if it is the same.

        With `drop_last=False`, the last batch of one rank is shorter. Those of several ranks are filled up, so that all
        have the same size. A `DistributedSampler` adds fewer samples: it only makes their number the same on all ranks.
        """
        return Tail.RAGGED if self.tail is None and self.drop_last is False else None

    @property
    def are_neutral(self) -> bool:
        """Whether no argument asks for anything that a dataset with options of its own decides."""
        asked = {each.name for each in fields(self) if self._is_given(each.name)} - _OF_ANY_DATASET
        return not asked or (asked == {"tail"} and self.tail == Tail.PAD)

    def pool_options(self, options: PoolOptions, *, may_restart: bool) -> PoolOptions:
        """Return `options`, with `timeout` as the limit for a sample if there is one."""
        if not may_restart:
            options = replace(options, max_restarts=0)
        return replace(options, sample_timeout_seconds=self.timeout) if self.timeout else options

    def check_for_stream(self, dataset: object) -> None:
        """Check that no argument asks for samples by number, which an iterable dataset does not have.

        A DataPipe has a `Shuffler` that `shuffle=True` or False turns on or off.

        Raises:
            ArgumentError: one does.
        """
        wrong = [other for other in _NOT_OF_STREAMS if self._is_given(other)]
        if is_data_pipe(dataset) and isinstance(self.shuffle, bool):
            wrong = [other for other in wrong if other != "shuffle"]
        if wrong:
            raise ArgumentError(
                f"{type(dataset).__name__} is an iterable dataset, which decides itself what comes next: leave out "
                f"{', '.join(f'{other}=' for other in wrong)}"
            )

    def drawn_seed(self) -> int:
        """Return the seed, drawn from `generator` if there is one."""
        if self.generator is None:
            return self.seed
        return int(torch.empty((), dtype=torch.int64, device=self.generator.device).random_(generator=self.generator))
