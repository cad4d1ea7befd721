"""How fast are cheap samples of a map-style dataset in an MPLoader, and in a stock DataLoader?

    python benchmarks/bench_map_style.py [--quick]

The samples are in memory, and `__getitem__` only takes them out. So the loader's own work is nearly all that counts:
seeding the sample's random numbers, which a DataLoader does not do, and making a batch of the samples. Both loaders get
the same dataset, two workers and `shuffle=True`, and make the batches with their default collation.

The loaders take turns in random order, each in its own process. Their first epoch is checked and not timed. CPU time is
that of the process and its workers. Records: benchmarks/records/map_style.jsonl.
"""

import argparse
import json
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from turns import medians, run_epochs, started, take_turns, told

NUM_WORKERS, NUM_KEYS = 2, 20
LOADERS = ("mpload", "DataLoader")


@dataclass(frozen=True)
class Case:
    """A dataset, and the size of its batches."""

    dataset: Callable[[int], Any]
    batch_size: int


class Computed:
    """A map-style dataset whose samples a function returns."""

    def __init__(self, num_samples: int, sample: Callable[[int], Any]) -> None:
        self.num_samples = num_samples
        self.sample = sample

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, number: int) -> Any:
        return self.sample(number)


def rows_of_tensors(num_samples: int) -> Any:
    import torch
    from torch.utils.data import TensorDataset

    return TensorDataset(torch.randn(num_samples, 32), torch.arange(num_samples))


def small_images(num_samples: int) -> Any:
    """Images of 32 x 32 as float32, and their labels."""
    import torch

    images = torch.randint(0, 256, (1000, 3, 32, 32), dtype=torch.uint8)
    return Computed(num_samples, lambda number: (images[number % 1000] / 255, number))


def rows_of_a_table(num_samples: int) -> Any:
    """Dicts of twenty numbers."""
    row = {f"column {number}": number / 7 for number in range(NUM_KEYS - 1)}
    return Computed(num_samples, lambda number: {**row, "number": number})


def texts(num_samples: int) -> Any:
    return Computed(num_samples, lambda number: (f"text number {number} " * 5, number))


CASES = {
    "TensorDataset": Case(rows_of_tensors, 64),
    "TensorDataset, large batches": Case(rows_of_tensors, 4096),
    "images of 32 x 32, float32": Case(small_images, 128),
    "dicts of 20 numbers": Case(rows_of_a_table, 256),
    "texts": Case(texts, 64),
}


def start(name: str, case: Case, num_samples: int) -> Iterable[Any]:
    dataset = case.dataset(num_samples)
    options: dict[str, Any] = {"batch_size": case.batch_size, "num_workers": NUM_WORKERS, "shuffle": True}
    if name == "mpload":
        import mpload

        loader: Iterable[Any] = mpload.MPLoader(dataset, **options)
        return loader
    from torch.utils.data import DataLoader

    return DataLoader(dataset, persistent_workers=True, **options)


def size_of(batch: Any) -> int:
    return len(next(iter(batch.values())) if isinstance(batch, dict) else batch[-1])


def numbers_of(batch: Any) -> list[int]:
    """Return the number of each sample, which is the last value of all."""
    numbers: list[int] = (batch["number"] if isinstance(batch, dict) else batch[-1]).tolist()
    return numbers


def run(loader_name: str, case: str, num_samples: int) -> None:
    """Run a contestant, after a first epoch that is checked."""
    loader = start(loader_name, CASES[case], num_samples)
    is_right = sorted(number for batch in loader for number in numbers_of(batch)) == list(range(num_samples))
    print(json.dumps({"is_right": is_right}), flush=True)
    run_epochs(loader, size_of)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few samples and one round; write no record")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        loader, case, num_samples = options.run
        run(loader, case, int(num_samples))
        return
    from records import write_record

    num_samples = 8192 if options.quick else 81920
    for case, of in CASES.items():
        with ExitStack() as stack:
            running = {
                name: stack.enter_context(started(__file__, "--run", name, case, str(num_samples))) for name in LOADERS
            }
            for process in running.values():
                assert told(process)["is_right"]
            turns = take_turns(running, 1 if options.quick else options.rounds)
            for process in running.values():
                assert process.stdin is not None
                process.stdin.close()
        for name, taken in turns.items():
            figures = {
                "samples_per_second": [round(each.samples_per_second) for each in taken],
                "cpu_us": round(medians(taken).cpu_us, 1),
            }
            print(f"{case}, {name}: {figures}", flush=True)
            if not options.quick:
                fixed = {"num_workers": NUM_WORKERS, "batch_size": of.batch_size, "num_samples": num_samples}
                write_record("map_style", {"contestant": name, "samples": case, **fixed}, figures)


if __name__ == "__main__":
    main()
