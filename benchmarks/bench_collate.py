"""What does it take to make batches of images that differ in size, and in which process?

    python benchmarks/bench_collate.py
    python benchmarks/bench_collate.py --quick

The samples are photographs of 330 x 400 to 500 x 640 pixels and JSON files of boxes, in the page cache. A batch is what
detection models take: the images padded to the largest one, a mask of the padding, and the boxes of each image. All
contestants but the first make it with the same function. "In the loop" means that the training process calls it, with
what the loader yields without it. The DataLoader decodes with simplejpeg.

The contestants take turns in random order, each in its own process, with the same number of workers. Their first epoch
is checked and not timed. Nothing is trained, so a training loop would lose the CPU time of the training process.
Records: benchmarks/records/collate.jsonl.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from turns import medians, run_epochs, started, take_turns, told

BATCH_SIZE = 64
HEIGHTS, WIDTHS = (330, 500), (400, 640)
MEAN_OBJECTS, NUM_CLASSES = 7, 80


def padded(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Make a batch for a detection model."""
    import torch

    height, width = (max(sample["image"].shape[axis] for sample in samples) for axis in (1, 2))
    images = torch.zeros(len(samples), height, width, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
    is_padding = torch.ones(len(samples), height, width, dtype=torch.bool)
    for place, sample in enumerate(samples):
        _, own_height, own_width = sample["image"].shape
        images[place, :, :own_height, :own_width] = sample["image"]
        is_padding[place, :own_height, :own_width] = False
    return {"image": images, "is_padding": is_padding, "targets": [sample["boxes"] for sample in samples]}


def ours(
    *, collate: Callable[[Any], Any], finish: Callable[[Any], Any] | None = None
) -> Callable[[Path, int], Iterable[Any]]:
    def start(folder: Path, num_workers: int) -> Iterable[Any]:
        import mpload

        dataset = mpload.MPDataset(
            folder / "typed.txt",
            decode={"image": mpload.ImageDecoder(), "boxes": read_boxes},
            batch_size=BATCH_SIZE,
            tail="ragged",
            shuffle=True,
            collate=collate(mpload),
        )
        loader = mpload.MPLoader(dataset, num_workers=num_workers)
        return loader if finish is None else Finished(loader, finish)

    return start


class Finished:
    """Calls a function on each batch of a loader."""

    def __init__(self, loader: Iterable[Any], finish: Callable[[Any], Any]) -> None:
        self.loader, self.finish = loader, finish

    def __iter__(self) -> Any:
        return map(self.finish, self.loader)


def read_boxes(data: bytes) -> dict[str, Any]:
    """Read the boxes and labels of an image."""
    import numpy as np

    objects = json.loads(data)
    return {
        "boxes": np.array([each["bbox"] for each in objects], np.float32).reshape(-1, 4),
        "labels": np.array([each["category_id"] for each in objects], np.int64),
    }


def joined(mpload: Any) -> Any:
    return {"image": mpload.Pad(0), "boxes": mpload.Flat()}


def samples_of(batch: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the samples in a batch that is not joined."""
    boxes, labels = batch["boxes"]["boxes"], batch["boxes"]["labels"]
    return [
        {"image": image, "boxes": {"boxes": boxes[place], "labels": labels[place]}}
        for place, image in enumerate(batch["image"])
    ]


def dataloader(folder: Path, num_workers: int) -> Iterable[Any]:
    import simplejpeg  # type: ignore[import-untyped]
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Samples(Dataset[Any]):
        def __init__(self) -> None:
            self.lines = (folder / "typed.txt").read_text(encoding="utf-8").splitlines()[2:]

        def __len__(self) -> int:
            return len(self.lines)

        def __getitem__(self, number: int) -> Any:
            image, boxes = (folder / path for path in self.lines[number].split("\t"))
            found = read_boxes(boxes.read_bytes())
            return {
                "image": torch.from_numpy(simplejpeg.decode_jpeg(image.read_bytes())).permute(2, 0, 1),
                "boxes": {key: torch.from_numpy(array) for key, array in found.items()},
            }

    return DataLoader(
        Samples(),
        batch_size=BATCH_SIZE,
        shuffle=True,
        num_workers=num_workers,
        collate_fn=padded,
        persistent_workers=True,
    )


CONTESTANTS: dict[str, Callable[[Path, int], Iterable[Any]]] = {
    "mpload, Pad and Flat": ours(collate=joined),
    "mpload, collate": ours(collate=lambda _: padded),
    "mpload, in the loop": ours(collate=lambda _: None, finish=lambda batch: padded(samples_of(batch))),
    "DataLoader, collate_fn": dataloader,
}


def contest(name: str, folder: Path, num_workers: int) -> None:
    """Check the first epoch, then run an epoch for each turn."""
    import torch

    torch.set_num_threads(1)  # as in workers: waiting threads would count as CPU time
    loader = CONTESTANTS[name](folder, num_workers)
    sizes = [batch["image"].shape for batch in loader]
    print(json.dumps({"num_samples": sum(size[0] for size in sizes), "num_channels": sizes[0][1]}), flush=True)
    run_epochs(loader, lambda batch: len(batch["image"]))


def write_data(folder: Path, num_samples: int) -> None:
    """Write photographs, files of boxes, and an index of them."""
    import numpy as np
    import simplejpeg

    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.support.photos import photo

    rng = np.random.default_rng(0)
    lines = []
    for number in range(num_samples):
        height, width = (int(rng.integers(*sides, endpoint=True)) for sides in (HEIGHTS, WIDTHS))
        jpeg = simplejpeg.encode_jpeg(photo(height, width, rng), quality=90, colorsubsampling="420")
        boxes = rng.integers(1, height // 2, (rng.poisson(MEAN_OBJECTS), 4)).tolist()
        objects = [{"bbox": box, "category_id": place % NUM_CLASSES} for place, box in enumerate(boxes)]
        (folder / f"{number}.jpg").write_bytes(jpeg)
        (folder / f"{number}.json").write_text(json.dumps(objects), encoding="utf-8")
        lines.append(f"{number}.jpg\t{number}.json\n")
    (folder / "typed.txt").write_text(f"#mpload 1\n#columns image:path boxes:path\n{''.join(lines)}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few samples, one round; write no record")
    parser.add_argument("--data", type=Path, help="folder that keeps the samples; default: a temporary one")
    parser.add_argument("--num-samples", type=int, default=1024)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        contest(arguments.case[0], Path(arguments.case[1]), int(arguments.case[2]))
        return
    if arguments.quick:
        arguments.num_samples, arguments.rounds = 128, 1
    from records import write_record

    with ExitStack() as stack:
        folder = arguments.data or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if not (folder / "typed.txt").exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_data(folder, arguments.num_samples)
        running = {}
        for name in CONTESTANTS:
            options = ["--case", name, str(folder), str(arguments.num_workers)]
            running[name] = stack.enter_context(started(__file__, *options))
            first = told(running[name])
            if first != {"num_samples": arguments.num_samples, "num_channels": 3}:
                raise SystemExit(f"{name}: the first epoch did not hold every sample once: {first}")
        turns = take_turns(running, arguments.rounds)
    for name, found in turns.items():
        typical = medians(found)
        print(
            f"{name:24} {typical.samples_per_second:7,.0f} samples/s {typical.own_cpu_ms:7.2f} ms a batch in the loop "
            f"{typical.cpu_us:6.0f} us CPU a sample"
        )
        if not arguments.quick:
            case = {
                "contestant": name,
                "num_samples": arguments.num_samples,
                "batch_size": BATCH_SIZE,
                "num_workers": arguments.num_workers,
            }
            figures = {
                "samples_per_second": [round(each.samples_per_second) for each in found],
                "training_process_cpu_ms_per_batch": [round(each.own_cpu_ms, 3) for each in found],
                "cpu_us_per_sample": [round(each.cpu_us, 1) for each in found],
            }
            write_record("collate", case, figures)


if __name__ == "__main__":
    main()
