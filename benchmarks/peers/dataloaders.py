"""Code shared by the contestants that use torch's DataLoader: its options and its epochs."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch.utils.data import default_collate

from peers.crops import as_columns, channels_first
from peers.race import Batch, Contestant, Epoch, Output, Race

__all__ = ["epochs", "on_loader"]


def epochs(loader: Iterable[Any], output: Output) -> Epoch:
    """Return a function that iterates once over a loader of (images, labels)."""

    def epoch(number: int) -> Iterator[Batch]:
        del number
        for images, labels in loader:
            yield (images if output is Output.BYTES else channels_first(images)), labels

    return epoch


def on_loader(
    loader: Callable[..., Iterable[Any]], dataset: Callable[[Race, str], Any], library: str, **options: Any
) -> Contestant:
    """Return a contestant in which `loader`, with its `options`, makes the batches of `dataset`."""

    def start(race: Race) -> Epoch:
        made = loader(
            dataset(race, library),
            batch_size=race.batch_size,
            num_workers=race.num_workers,
            persistent_workers=race.num_workers > 0,
            collate_fn=as_columns if race.output is Output.BYTES else default_collate,
            **options,
        )
        return epochs(made, race.output)

    return Contestant(start=start, library=library)
