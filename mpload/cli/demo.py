"""`mpload demo`: make photos, index them, read three epochs with worker processes, and check the result."""

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

from mpload.cli.endings import ends_cleanly
from mpload.cli.photos import SCENES, make_photos
from mpload.cli.terminal import progress_bar
from mpload.errors import SampleError
from mpload.images.backends import jpeg_backend
from mpload.images.decoders import RandomResizedCrop
from mpload.index.columns import Column, ColumnType
from mpload.index.index import Index
from mpload.index.opening import open_index
from mpload.index.text import format_header, format_line
from mpload.ingest.build import build_index
from mpload.memory.usage import ProcessMemory, tree_memory
from mpload.plan.topology import Topology
from mpload.units import format_bytes, format_count, format_counted, format_seconds

if TYPE_CHECKING:
    from mpload.loader.dataset import MPDataset

__all__ = ["demo"]

_NUM_EPOCHS = 3
_BLOCK_SAMPLES = 4096
_NEXT_STEP = """\
To train on your own images, index them with `mpload index FOLDER -o train.txt`. Then, in Python:

    dataset = mpload.MPDataset("train.txt", decode=mpload.RandomResizedCrop(224), batch_size=256, shuffle=True)
    with mpload.MPLoader(dataset) as loader:
        for images, labels in loader: ..."""


def demo(
    folder: Annotated[
        Path | None, typer.Argument(metavar="FOLDER", help="A folder of images.  [default: generated photos]")
    ] = None,
    *,
    images: Annotated[int, typer.Option(min=1, help="Number of images to make, or to take from FOLDER.")] = 200,
    workers: Annotated[int, typer.Option(min=0, max=64, help="Worker processes.")] = 2,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples per batch.")] = 32,
    keep: Annotated[Path | None, typer.Option(help="Keep the photos and the index in this folder.")] = None,
) -> None:
    """Try mpload on generated photos, or on a folder of images.

    Indexes the images, reads three epochs with worker processes, and shows the memory of each process.

    Exits with 1 if an epoch does not contain every sample exactly once, or if batches depend on the workers.
    """
    with (
        ends_cleanly(),
        tempfile.TemporaryDirectory(prefix="mpload-demo-") if keep is None else nullcontext(str(keep)) as name,
    ):
        place = Path(name)
        place.mkdir(parents=True, exist_ok=True)
        index = _numbered(_index(folder or _photos(place / "photos", images), place), place / "numbered.txt", images)
        _print_line("index", f"{format_counted(len(index), 'sample')}, numbered so that each can be counted")
        _print_line("decoder", jpeg_backend())
        passed = _stream(index, num_workers=workers, batch_size=batch_size)
        if keep is not None:
            _print_line("kept", str(place))
    if not passed:
        raise typer.Exit(1)
    print(f"\n{_NEXT_STEP}")


def _photos(folder: Path, num_images: int) -> Path:
    started = time.monotonic()
    with progress_bar("making photos", unit="photos", total=num_images) as update:
        make_photos(folder, num_images=num_images, seed=0, progress=update)
    classes = format_counted(min(num_images, len(SCENES)), "class")
    seconds = format_seconds(time.monotonic() - started)
    _print_line("photos", f"made {format_counted(num_images, 'photo')} in {classes}, in {seconds}: {folder}")
    return folder


def _index(source: Path, place: Path) -> Index:
    with progress_bar("indexing") as update:
        if (
            source.is_file() and source.suffix != ".tar"
        ):  # a list is used in place, because its paths may be relative to it
            return open_index(source, progress=update)
        return open_index(build_index(source, place / "all.txt", progress=update))


def _numbered(index: Index, path: Path, max_samples: int) -> Index:
    """Write an index of up to `max_samples` samples, spread over `index`, with a column that numbers them."""
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
    """The samples that one epoch delivered."""

    numbers: NDArray[np.int64]
    """int64 [n]: the numbers of the samples, in the order of delivery."""
    num_samples: int
    """The number of samples in the index."""
    first: tuple[NDArray[Any], ...]
    """The columns of the first batch."""
    seconds: float

    @property
    def is_once(self) -> bool:
        """Whether every sample was delivered exactly once."""
        return bool((np.bincount(self.numbers, minlength=self.num_samples) == 1).all())

    def __str__(self) -> str:
        rate = format_count(round(len(self.numbers) / self.seconds))
        return f"{format_counted(len(self.numbers), 'sample')} in {format_seconds(self.seconds)}, {rate} images/s"


def _stream(index: Index, *, num_workers: int, batch_size: int) -> bool:
    """Read three epochs, print what they delivered, and return whether all checks passed."""
    from mpload.loader.dataset import MPDataset  # noqa: PLC0415  imports torch, as late as possible

    def dataset() -> "MPDataset":
        decode = RandomResizedCrop(224)
        return MPDataset(
            index, decode=decode, batch_size=batch_size, shuffle=True, seed=0, tail="ragged", topology=Topology()
        )

    epochs = []
    with _loader(dataset(), num_workers=num_workers) as loader:
        for number in range(_NUM_EPOCHS):
            epochs.append(_read(loader, num_samples=len(index)))
            _print_line(f"epoch {number}", str(epochs[-1]))
        memory = tree_memory(os.getpid())
    images = epochs[0].first[0]
    others = ", ".join(str(column) for column in index.columns[1:])
    _print_line("batch", f"images {images.dtype} {list(images.shape)}, and columns {others}")

    in_this_process = _as_arrays(next(iter(dataset())))
    checks = {
        "every epoch contained every sample exactly once": all(epoch.is_once for epoch in epochs),
        "the first batch equals, bit for bit, the one made without workers": all(
            np.array_equal(one, other) for one, other in zip(in_this_process, epochs[0].first, strict=True)
        ),
    }
    if len(index) >= 8:  # fewer samples may have the same order twice by chance
        orders = {epoch.numbers.tobytes() for epoch in epochs}
        checks["every epoch had a different order"] = len(orders) == len(epochs)
    for check, holds in checks.items():
        _print_line("passed" if holds else "FAILED", check)
    print()
    _print_memory(memory)
    return all(checks.values())


@contextmanager
def _loader(dataset: "MPDataset", *, num_workers: int) -> Iterator[Any]:
    """Yield an `MPLoader`, or a stock DataLoader on systems where an MPLoader cannot run workers."""
    if sys.platform == "linux":
        from mpload.loader.loader import MPLoader  # noqa: PLC0415  imports torch

        with MPLoader(dataset, num_workers=num_workers) as loader:
            yield loader
    else:
        from torch.utils.data import DataLoader  # noqa: PLC0415

        # The user may ask for more workers than cores. PyTorch warns about that.
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
        with progress_bar("streaming", unit="images", total=num_samples) as update:
            with _interrupts_held():
                batches = iter(loader)
            for batch in batches:
                columns = _as_arrays(batch)
                first = first or columns
                numbers.append(columns[-1])
                num_read += len(columns[-1])
                update(num_read)
    except SampleError as error:
        # a DataLoader prepends the worker's traceback to the message
        raise SampleError(str(error).strip().splitlines()[-1].removeprefix("mpload.errors.SampleError: ")) from error
    return _Epoch(
        numbers=np.concatenate(numbers), num_samples=num_samples, first=first, seconds=time.monotonic() - started
    )


def _as_arrays(batch: Any) -> tuple[NDArray[Any], ...]:
    return tuple(np.asarray(column) for column in batch)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Block SIGINT inside the block. Workers forked there inherit that, so Ctrl-C reaches only their parent."""
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
    table = Table("process", "private memory (USS)", "with its share of shared memory (PSS)", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for number, process in enumerate(processes):
        table.add_row(
            process.name.removeprefix("mpload-") if number else "training process",
            format_bytes(process.uss_bytes),
            format_bytes(process.pss_bytes),
        )
    Console(highlight=False).print(table)


def _print_line(heading: str, text: str) -> None:
    print(f"{heading:9}{text}", flush=True)
