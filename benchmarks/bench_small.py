"""How many lines of 100 bytes does each loader deliver per second, shuffled exactly, and what CPU time does one take?

    python benchmarks/bench_small.py [--environments DIR]
    python benchmarks/bench_small.py --quick

A loader's own work is all that counts here, since nothing is decoded. Each contestant runs in its own process, with two
workers, and delivers batches of 1,024 lines as lists of `str` or `bytes`; all files are in the page cache. mpload reads
the lines of an index itself, and spans of one file. Hugging Face `datasets` reads an Arrow table, with one look-up for
a batch. The mapped file is the dataset that one writes in ten lines: a memory map and an array of offsets. Both run in
a DataLoader whose sampler yields the numbers of whole batches, which is faster than one item at a time.

The contestants take turns in random order. Their first epoch is checked and not timed: it must hold all lines once. CPU
time is that of the process and its workers. `--environments` names the folder of virtual environments that
`bench_peers.py` makes; a peer that is not installed is left out. Records: benchmarks/records/small.jsonl.
"""

import argparse
import json
import math
import mmap
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from turns import medians, run_epochs, started, take_turns, told

LINE_BYTES, BATCH_SIZE, NUM_WORKERS = 100, 1024, 2


def write_lines(folder: Path, num_lines: int) -> None:
    """Write the same lines as an index of lines, and as a file with an index of spans."""
    lines = [b"%099d\n" % number for number in range(num_lines)]
    (folder / "lines.bin").write_bytes(b"".join(lines))
    (folder / "lines.txt").write_bytes(b"#mpload 1\n#columns text:str\n" + b"".join(lines))
    spans = "".join(f"{LINE_BYTES * number}+{LINE_BYTES}@lines.bin\n" for number in range(num_lines))
    (folder / "spans.txt").write_text("#mpload 1\n#columns text:span\n" + spans)


def ours(index: str) -> Callable[[Path], Iterable[Any]]:
    def start(folder: Path) -> Iterable[Any]:
        import mpload

        options: dict[str, Any] = {"decode": mpload.RawBytes()} if index == "spans.txt" else {}
        dataset = mpload.MPDataset(folder / index, batch_size=BATCH_SIZE, tail="ragged", shuffle=True, **options)
        return mpload.MPLoader(dataset, num_workers=NUM_WORKERS)

    return start


def in_dataloader(dataset: Any) -> Iterable[Any]:
    import torch
    from torch.utils.data import DataLoader

    class Batches:
        def __iter__(self) -> Iterator[Any]:
            yield from torch.split(torch.randperm(len(dataset)), BATCH_SIZE)

        def __len__(self) -> int:
            return math.ceil(len(dataset) / BATCH_SIZE)

    return DataLoader(
        dataset, sampler=Batches(), batch_size=None, collate_fn=list, num_workers=NUM_WORKERS, persistent_workers=True
    )


def mapped_file(folder: Path) -> Iterable[Any]:
    import numpy as np

    class Lines:
        def __init__(self) -> None:
            with (folder / "lines.bin").open("rb") as file:
                self.map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            self.offsets = np.arange(0, len(self.map) + 1, LINE_BYTES)

        def __len__(self) -> int:
            return len(self.offsets) - 1

        def __getitem__(self, ids: Any) -> list[bytes]:
            starts, ends = self.offsets[ids].tolist(), self.offsets[ids + 1].tolist()
            return [self.map[start:end] for start, end in zip(starts, ends, strict=True)]

    return in_dataloader(Lines())


def hugging_face(folder: Path) -> Iterable[Any]:
    import datasets

    class Lines:
        def __init__(self) -> None:
            datasets.disable_progress_bars()
            text = datasets.Features({"text": datasets.Value("string")})
            path = folder / "lines.arrow"
            with datasets.arrow_writer.ArrowWriter(path=str(path), features=text) as writer:
                with (folder / "lines.bin").open() as lines:
                    for line in lines:
                        writer.write({"text": line})
                writer.finalize()
            self.table: Any = datasets.Dataset.from_file(str(path)).with_format("arrow")

        def __len__(self) -> int:
            return len(self.table)

        def __getitem__(self, ids: Any) -> Any:
            return self.table[ids.numpy()]["text"].to_pylist()

    return in_dataloader(Lines())


CONTESTANTS: dict[str, tuple[str, Callable[[Path], Iterable[Any]]]] = {
    "mpload, lines of the index": ("own", ours("lines.txt")),
    "mpload, spans of a file": ("own", ours("spans.txt")),
    "DataLoader, mapped file": ("own", mapped_file),
    "DataLoader, Hugging Face datasets": ("hf", hugging_face),
}


def contest(name: str, folder: Path) -> None:
    """Check the first epoch, then run an epoch for each turn."""
    loader = CONTESTANTS[name][1](folder)
    found = [int(line) for batch in loader for line in batch]
    print(json.dumps({"is_whole": sorted(found) == list(range(len(found))), "num_lines": len(found)}), flush=True)
    run_epochs(loader, len)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few lines, no peers; write no record")
    parser.add_argument("--environments", type=Path, help="folder of the peers' virtual environments")
    parser.add_argument("--num-lines", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        contest(arguments.case[0], Path(arguments.case[1]))
        return
    if arguments.quick:
        arguments.num_lines, arguments.rounds = 10_000, 1
    from records import write_record

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_lines(folder, arguments.num_lines)
        running = {}
        for name, (environment, _) in CONTESTANTS.items():
            python = Path(sys.executable)
            if environment != "own":
                python = Path(arguments.environments or "/nowhere") / environment / "bin" / "python"
            if not python.exists():
                print(f"{name}: not installed")
                continue
            running[name] = stack.enter_context(started(__file__, "--case", name, str(folder), python=python))
            first = told(running[name])
            if first != {"is_whole": True, "num_lines": arguments.num_lines}:
                raise SystemExit(f"{name}: the first epoch did not hold every line once: {first}")
        turns = take_turns(running, arguments.rounds)
    for name, found in turns.items():
        figures = {
            "samples_per_second": [round(each.samples_per_second) for each in found],
            "cpu_us_per_sample": [round(each.cpu_us, 3) for each in found],
        }
        typical = medians(found)
        print(f"{name:34} {typical.samples_per_second:12,.0f} samples/s {typical.cpu_us:8.2f} us CPU a sample")
        if not arguments.quick:
            case = {
                "contestant": name,
                "line_bytes": LINE_BYTES,
                "num_lines": arguments.num_lines,
                "batch_size": BATCH_SIZE,
                "num_workers": NUM_WORKERS,
            }
            write_record("small", case, figures)


if __name__ == "__main__":
    main()
