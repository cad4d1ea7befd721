"""`mpload demo`: photos, an index, three epochs through worker processes, checked and measured."""

import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from mpload.cli.photos import SCENES, make_photos
from mpload.cli.terminal import progress_bar
from mpload.errors import SampleError
from mpload.images.decoders import RandomResizedCrop
from mpload.images.jpeg import jpeg_backend
from mpload.index.columns import Column, ColumnType
from mpload.index.index import Index
from mpload.index.opening import open_index
from mpload.index.text import format_header, format_line
from mpload.ingest.build import build_index
from mpload.memory.usage import ProcessMemory, tree_memory
from mpload.plan.topology import Topology
from mpload.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from mpload.loader.dataset import MPDataset

__all__ = ["demo"]

_NUM_EPOCHS = 3
_BLOCK_SAMPLES = 4096
_NEXT_STEP = """\
Next: mpload index FOLDER -o train.txt, and in Python:

    dataset = mpload.MPDataset("train.txt", decode=mpload.RandomResizedCrop(224), batch_size=256, shuffle=True)
    with mpload.MPLoader(dataset) as loader:
        for images, labels in loader: ..."""


def demo(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[FOLDER]", help="A folder of images; without it, some are made.")
    ] = None,
    *,
    images: Annotated[int, typer.Option(min=1, help="How many images to make, or to take from FOLDER.")] = 200,
    workers: Annotated[int, typer.Option(min=0, max=64, help="Worker processes.")] = 2,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples in a batch.")] = 32,
    keep: Annotated[Path | None, typer.Option(help="Keep photos and index in this folder.")] = None,
) -> None:
    """Try mpload on generated photos: index, load, check, measure memory.

    Makes photos or takes a folder, streams three epochs through worker processes, and shows each process's memory.

    Exit code 1 if an epoch does not hold every sample exactly once, or if batches depend on the workers.
    """
    with tempfile.TemporaryDirectory(prefix="mpload-demo-") if keep is None else nullcontext(str(keep)) as name:
        place = Path(name)
        place.mkdir(parents=True, exist_ok=True)
        index = _numbered(_index(folder or _photos(place / "photos", images), place), place / "numbered.txt", images)
        _say("index", f"{format_count(len(index))} samples, each with its number in a second column")
        _say("decoder", jpeg_backend())
        passed = _stream(index, num_workers=workers, batch_size=batch_size)
        if keep is not None:
            _say("kept", str(place))
    if not passed:
        raise typer.Exit(1)
    print(f"\n{_NEXT_STEP}")


def _photos(folder: Path, num_images: int) -> Path:
    started = time.monotonic()
    with progress_bar("making photos", unit="photos", total=num_images) as tell:
        make_photos(folder, num_images=num_images, seed=0, progress=tell)
    num_classes = min(num_images, len(SCENES))
    seconds = format_seconds(time.monotonic() - started)
    _say("photos", f"{format_count(num_images)} of {num_classes} classes made in {seconds}: {folder}")
    return folder


def _index(source: Path, place: Path) -> Index:
    with progress_bar("indexing") as tell:
        if source.is_file() and source.suffix != ".tar":  # a list stays where it is: its paths may lead anywhere
            return open_index(source, progress=tell)
        return open_index(build_index(source, place / "all.txt", progress=tell))


def _numbered(index: Index, path: Path, max_samples: int) -> Index:
    """Write an index of at most `max_samples` samples, spread over `index`, that holds each one's number: the proof."""
    num_samples = min(len(index), max_samples)
    columns = (*index.columns, Column(name="number", type=ColumnType.INT))
    with path.open("wb") as file:
        file.write(format_header(columns=columns, root=index.root, classes=index.classes))
        for first in range(0, num_samples, _BLOCK_SAMPLES):
            numbers = range(first, min(first + _BLOCK_SAMPLES, num_samples))
            records = index.records([number * len(index) // num_samples for number in numbers])
            for number, record in zip(numbers, records, strict=True):
                file.write(format_line((*record.cells, number)))
    return open_index(path, allow_outside_root=index.allow_outside_root)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Epoch:
    """What came in one epoch."""

    numbers: NDArray[np.int64]
    """int64 [n]: the samples' numbers, in the order they came."""
    num_samples: int
    """How many there are."""
    first: tuple[NDArray[Any], ...]
    """The first batch, column by column."""
    seconds: float

    @property
    def is_once(self) -> bool:
        """Whether every sample came exactly once."""
        return bool((np.bincount(self.numbers, minlength=self.num_samples) == 1).all())

    def __str__(self) -> str:
        rate = format_count(round(len(self.numbers) / self.seconds))
        return f"{format_count(len(self.numbers))} samples in {format_seconds(self.seconds)}, {rate} images/s"


def _stream(index: Index, *, num_workers: int, batch_size: int) -> bool:
    """Read three epochs, tell what happened, and return whether all was as it must be."""
    from mpload.loader.dataset import MPDataset  # noqa: PLC0415  torch is loaded here and not before

    def dataset() -> "MPDataset":
        decode = RandomResizedCrop(224)
        return MPDataset(
            index, decode=decode, batch_size=batch_size, shuffle=True, seed=0, tail="ragged", topology=Topology()
        )

    epochs = []
    with _loader(dataset(), num_workers=num_workers) as loader:
        for number in range(_NUM_EPOCHS):
            epochs.append(_read(loader, num_samples=len(index)))
            _say(f"epoch {number}", str(epochs[-1]))
        memory = tree_memory(os.getpid())
    images = epochs[0].first[0]
    _say("batch", f"{images.dtype} {list(images.shape)} and {', '.join(str(column) for column in index.columns[1:])}")

    alone = _as_arrays(next(iter(dataset())))
    checks = {
        "every epoch held every sample exactly once": all(epoch.is_once for epoch in epochs),
        "its first batch is that of a single process, bit for bit": all(
            np.array_equal(one, other) for one, other in zip(alone, epochs[0].first, strict=True)
        ),
    }
    if len(index) >= 8:  # fewer may well come in the same order twice
        orders = {epoch.numbers.tobytes() for epoch in epochs}
        checks["every epoch had an order of its own"] = len(orders) == len(epochs)
    for check, holds in checks.items():
        _say("checked" if holds else "FAILED", check)
    print()
    _print_memory(memory)
    return all(checks.values())


@contextmanager
def _loader(dataset: "MPDataset", *, num_workers: int) -> Iterator[Any]:
    """Give an `MPLoader`; where its workers cannot run, a stock DataLoader."""
    if sys.platform == "linux":
        from mpload.loader.loader import MPLoader  # noqa: PLC0415  imports torch

        with MPLoader(dataset, num_workers=num_workers) as loader:
            yield loader
    else:
        from torch.utils.data import DataLoader  # noqa: PLC0415

        # Whoever asks for more workers than cores gets them, without a lecture.
        warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
        yield DataLoader(
            dataset,
            batch_size=None,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            worker_init_fn=_ignore_interrupts if num_workers else None,
        )


def _read(loader: Any, *, num_samples: int) -> _Epoch:
    started = time.monotonic()
    numbers: list[NDArray[np.int64]] = []
    first: tuple[NDArray[Any], ...] = ()
    num_read = 0
    try:
        with progress_bar("streaming", unit="images", total=num_samples) as tell:
            with _interrupts_held():
                batches = iter(loader)
            for batch in batches:
                columns = _as_arrays(batch)
                first = first or columns
                numbers.append(columns[-1])
                num_read += len(columns[-1])
                tell(num_read)
    except SampleError as error:
        # a DataLoader puts the worker's traceback in front
        raise SampleError(str(error).strip().splitlines()[-1].removeprefix("mpload.errors.SampleError: ")) from error
    return _Epoch(
        numbers=np.concatenate(numbers), num_samples=num_samples, first=first, seconds=time.monotonic() - started
    )


def _as_arrays(batch: Any) -> tuple[NDArray[Any], ...]:
    return tuple(np.asarray(column) for column in batch)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Let Ctrl-C wait: workers that are forked meanwhile never see one, and leave ending to their parent."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ignore_interrupts(_: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _print_memory(processes: Sequence[ProcessMemory]) -> None:
    table = Table("process", "private (USS)", "and its share of the rest (PSS)", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for number, process in enumerate(processes):
        table.add_row(
            process.name.removeprefix("mpload-") if number else "main",
            format_bytes(process.uss_bytes),
            format_bytes(process.pss_bytes),
        )
    Console(highlight=False).print(table)


def _say(what: str, told: str) -> None:
    print(f"{what:9}{told}", flush=True)
