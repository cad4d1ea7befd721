"""How training frameworks treat a data loader, and how a loader adapts to them."""

import sys
from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from mpload.errors import OutageError, SampleError, TooManyBadSamples
from mpload.plan.batching import AnyPlan

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["Reader", "is_accelerate_used", "reader", "samples_of_a_batch", "stacks_batches", "told_of_end"]


class Reader(Enum):
    """The kind of code that iterates over a dataset."""

    PLAIN = auto()
    """Anything else: it reads for its own rank, and passes each batch on at once."""
    AHEAD = auto()
    """It holds one batch back, in order to recognise the last one."""
    DEALER = auto()
    """It reads for all ranks, and deals the samples out to them."""


_READERS = {
    ("accelerate.data_loader", "DataLoaderDispatcher"): Reader.DEALER,
    ("accelerate.data_loader", "IterableDatasetShard"): Reader.DEALER,
    ("transformers.trainer_pt_utils", "IterableDatasetShard"): Reader.DEALER,
    ("accelerate.data_loader", "DataLoaderShard"): Reader.AHEAD,
}


def reader() -> Reader:
    """Return the kind of the current reader, found in the call stack.

    Accelerate, and therefore the Hugging Face Trainer, splits the samples of an IterableDataset among the ranks without
    telling the dataset. Forked workers of a DataLoader still have the call stack of their parent.
    """
    for module, function, _ in _callers():
        if found := _READERS.get((module, function.partition(".")[0])):
            return found
    return Reader.PLAIN


def samples_of_a_batch() -> int:
    """Return the batch size of the DataLoader that is reading, found in the call stack; 1 if there is none.

    A DataLoader worker requests samples one by one and collects them into batches. Each worker must get the samples of
    whole batches: otherwise there would be more batches than `len` says, and frameworks stop at `len`.
    """
    for module, function, frame in _callers():
        match module, function:
            case (("accelerate.data_loader" | "transformers.trainer_pt_utils"), "IterableDatasetShard.__iter__"):
                shard = frame.f_locals["self"]  # it collects a batch for all ranks
                is_split = getattr(shard, "split_batches", False)
                return int(shard.batch_size) * (1 if is_split else int(shard.num_processes))
            case "torch.utils.data._utils.fetch", "_IterableDatasetFetcher.fetch":
                wanted = frame.f_locals["possibly_batched_index"]
                return len(wanted) if isinstance(wanted, list) else 1
    return 1


def stacks_batches() -> bool:
    """Return whether a DataLoader is opening this dataset that will stack its items with the default `collate_fn`."""
    for module, function, frame in _callers():
        if (module, function) == ("torch.utils.data._utils.fetch", "_IterableDatasetFetcher.__init__"):
            is_default = frame.f_locals["collate_fn"].__module__ == "torch.utils.data._utils.collate"
            return is_default and bool(frame.f_locals["auto_collation"])
    return False


def _callers() -> "Iterator[tuple[str, str, FrameType]]":
    """Yield the module, the function and the frame of each caller, the innermost first."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the documented way to the call stack
    while frame is not None:
        yield frame.f_globals.get("__name__", ""), frame.f_code.co_qualname, frame
        frame = frame.f_back


def is_accelerate_used() -> bool:
    """Return whether the script has created an `Accelerator`."""
    accelerate = sys.modules.get("accelerate.state")
    return accelerate is not None and bool(accelerate.GradientState._shared_state)  # noqa: SLF001


def told_of_end(batches: Iterator[Any], plan: Callable[[], AnyPlan]) -> Iterator[Any]:
    """Return an iteration that tells Accelerate when it has reached the last batch, if the script uses Accelerate.

    Args:
        batches: the iterator of batches.
        plan: returns the plan of the epoch; called after the first batch.
    """
    return AccelerateIteration(batches, plan) if is_accelerate_used() else batches


class AccelerateIteration(Iterator[Any]):
    """An iteration that tells Accelerate when it has reached the last batch of an epoch.

    `accelerator.accumulate` can then take the last optimizer step, and `gather_for_metrics` can omit the padding.
    """

    def __init__(self, batches: Iterator[Any], plan: Callable[[], AnyPlan]) -> None:
        """Wrap an iteration.

        Args:
            batches: the iterator of batches.
            plan: returns the plan of the epoch; called after the first batch.
        """
        self._batches = batches
        self._plan = plan
        self._gradients = sys.modules["accelerate.state"].GradientState()
        self._num_left: int | None = None
        self.end_of_dataloader = False
        """Whether the most recent batch is the last one of the epoch."""
        self.remainder = -1
        """Number of samples in the last global batch that are not padding; 0 if there is no padding."""

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            self._gradients._remove_dataloader(self)  # noqa: SLF001
            raise
        except (SampleError, TooManyBadSamples) as error:
            if not isinstance(error.__cause__, OutageError):  # after an outage the same batch is made again
                self._count()
            raise
        self._count()
        return batch

    def _count(self) -> None:
        if self._num_left is None:
            plan = self._plan()
            self._num_left = plan.num_batches
            self.remainder = plan.remainder
            self._gradients._add_dataloader(self)  # noqa: SLF001  Accelerate keeps a weak reference
        self._num_left -= 1
        self.end_of_dataloader = not self._num_left
