"""Does a network reach the same accuracy with mpload as with a stock DataLoader?

    python benchmarks/bench_accuracy.py [--quick] [--channels N]

Trains the ResNet-18 of examples/train_resnet18.py from the three feeds of that example, on the GPU if there is one.
`--channels` is the width of its first stage, 64 for a whole ResNet-18; without a GPU, 8 channels take ten minutes on
two cores. Records: benchmarks/records/accuracy.jsonl. Needs `pip install '.[test]'`, for mlxtend and Pillow.
"""

import argparse
import sys
from dataclasses import replace
from itertools import chain
from pathlib import Path

import torch
from records import write_record

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from train_resnet18 import FULL, QUICK, SEED, Run, Setup, check, compare, print_table


def num_same_steps(run: Run, first: Run) -> int:
    """Return the number of steps whose loss is exactly that of the same step in the first run."""
    pairs = zip(chain(*run.step_losses), chain(*first.step_losses), strict=True)
    return sum(loss == other for loss, other in pairs)


def record(runs: dict[str, Run], setup: Setup, device: str) -> None:
    first = next(iter(runs.values()))
    for feed, run in runs.items():
        case = {
            "device": device,
            "network": "resnet18",
            "channels": setup.channels,
            "feed": feed,
            "num_epochs": setup.num_epochs,
            "num_train": setup.num_train,
            "num_val": setup.num_val,
            "batch_samples": setup.batch_size,
            "seed": SEED,
        }
        figures = {
            "losses": run.losses,
            "accuracies": run.accuracies,
            "num_steps": sum(map(len, run.step_losses)),
            "num_steps_with_loss_of_first_feed": num_same_steps(run, first),
            "seconds": round(run.seconds, 1),
        }
        write_record("accuracy", case, figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one epoch of few digits; write no record")
    parser.add_argument("--channels", type=int, default=FULL.channels, metavar="N", help="channels of the first stage")
    arguments = parser.parse_args()
    has_gpu = torch.cuda.is_available()
    setup = replace(FULL, channels=arguments.channels)
    if arguments.quick:
        setup = replace(QUICK, num_epochs=1, num_train=640, num_val=200, accuracy=0.0)
    runs = compare(setup, torch.device("cuda" if has_gpu else "cpu"))
    print_table(runs)
    if not arguments.quick:
        record(runs, setup, torch.cuda.get_device_name() if has_gpu else "cpu")
    check(runs, setup)


if __name__ == "__main__":
    main()
