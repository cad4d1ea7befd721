"""What training frameworks do with a data loader, and how a loader gets on with it."""

import sys
from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from mpload.errors import SampleError, TooManyBadSamples
from mpload.plan.plan import Plan, Tail

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["AccelerateIteration", "Reader", "is_accelerate_used", "reader", "samples_of_a_batch"]


class Reader(Enum):
    """Who reads a dataset, where that matters."""

    PLAIN = auto()
    AHEAD = auto()
    """It holds a batch back, to know the last one."""
    DEALER = auto()
    """It reads for all ranks, and deals out what it reads."""


_READERS = {
    ("accelerate.data_loader", "DataLoaderDispatcher"): Reader.DEALER,
    ("accelerate.data_loader", "IterableDatasetShard"): Reader.DEALER,
    ("transformers.trainer_pt_utils", "IterableDatasetShard"): Reader.DEALER,
    ("accelerate.data_loader", "DataLoaderShard"): Reader.AHEAD,
}


def reader() -> Reader:
    """Return who is reading now, as the call stack shows it.

    Accelerate, and with it the Hugging Face Trainer, deals out an IterableDataset's samples among the ranks by itself,
    and does not tell the dataset. A DataLoader's workers that were forked still have the stack of their parent.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the documented way to the call stack
    while frame is not None:
        name = frame.f_code.co_qualname.partition(".")[0]
        if found := _READERS.get((frame.f_globals.get("__name__", ""), name)):
            return found
        frame = frame.f_back
    return Reader.PLAIN


def samples_of_a_batch() -> int:
    """Return how many samples the DataLoader that reads now makes a batch of, as the call stack shows it; else 1.

    A DataLoader's worker asks for samples one by one, and makes a batch of what it gets. Only if each worker gets the
    samples of whole batches, there are no more batches than `len` says, which is where frameworks stop.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  the documented way to the call stack
    while frame is not None:
        match frame.f_globals.get("__name__"), frame.f_code.co_qualname:
            case (("accelerate.data_loader" | "transformers.trainer_pt_utils"), "IterableDatasetShard.__iter__"):
                shard = frame.f_locals["self"]  # which makes a batch for all ranks
                is_split = getattr(shard, "split_batches", False)
                return int(shard.batch_size) * (1 if is_split else int(shard.num_processes))
            case "torch.utils.data._utils.fetch", "_IterableDatasetFetcher.fetch":
                wanted = frame.f_locals["possibly_batched_index"]
                return len(wanted) if isinstance(wanted, list) else 1
        frame = frame.f_back
    return 1


def is_accelerate_used() -> bool:
    """Whether the script has made an `Accelerator`."""
    accelerate = sys.modules.get("accelerate.state")
    return accelerate is not None and bool(accelerate.GradientState._shared_state)  # noqa: SLF001


class AccelerateIteration(Iterator[Any]):
    """An iteration that tells Accelerate when it is at an epoch's last batch.

    `accelerator.accumulate` then takes the optimizer's last step, and `gather_for_metrics` leaves padding out.
    """

    def __init__(self, batches: Iterator[Any], plan: Callable[[], Plan]) -> None:
        """Follow an iteration.

        Args:
            batches: of the iteration.
            plan: returns the plan of its epoch; asked after the first batch.
        """
        self._batches = batches
        self._plan = plan
        self._gradients = sys.modules["accelerate.state"].GradientState()
        self._num_left: int | None = None
        self.end_of_dataloader = False
        """Whether the batch that was received last is the epoch's last."""
        self.remainder = -1
        """Samples of the last global batch that are no padding; 0: there is no padding."""

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            self._gradients._remove_dataloader(self)  # noqa: SLF001
            raise
        except (SampleError, TooManyBadSamples):
            self._count()
            raise
        self._count()
        return batch

    def _count(self) -> None:
        if self._num_left is None:
            plan = self._plan()
            self._num_left = plan.num_batches
            padded = plan.tail == Tail.PAD
            self.remainder = (plan.num_samples - plan.start) % plan.global_batch_size if padded else 0
            self._gradients._add_dataloader(self)  # noqa: SLF001  which keeps a weak reference
        self._num_left -= 1
        self.end_of_dataloader = not self._num_left
