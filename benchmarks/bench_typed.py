"""How many samples of an image, a mask and boxes does each loader deliver, beside images alone?

    python benchmarks/bench_typed.py
    python benchmarks/bench_typed.py --quick

The samples are photographs of 500 x 375 pixels, masks of 20 classes as PNGs with a palette, and JSON files of boxes;
all files are in the page cache. A crop of 224 x 224 pixels is drawn as in torchvision, and mirrored half of the time;
mask and boxes follow it. Small masks have half of the height and width. mpload runs with two workers. The DataLoader
does this with albumentations, with the number of workers (2 or 3) that was fastest in a trial. It decodes photographs
with OpenCV or with simplejpeg. Its masks are copies in gray, which OpenCV decodes, since it would turn a palette into
colours. Its boxes are lists of tensors.

The contestants take turns in random order, each in its own process. Their first epoch is checked and not timed: it
must hold all samples once, with the same share of labelled pixels. CPU time is that of a process and its workers.
Records: benchmarks/records/typed.jsonl.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from turns import Process, medians, run_epochs, started, take_turns, told, turn
from typed_data import write_data

BATCH_SIZE, SIZE = 64, 224
NUM_WORKERS, TRIED_WORKERS = 2, (2, 3)
NEAR_LABELLED = 0.03


def ours(index: str, decode: Callable[[Any], Any]) -> Callable[[Path, int], Iterable[Any]]:
    def start(folder: Path, num_workers: int) -> Iterable[Any]:
        import mpload

        dataset = mpload.MPDataset(
            folder / index, decode=decode(mpload), batch_size=BATCH_SIZE, tail="ragged", shuffle=True
        )
        return mpload.MPLoader(dataset, num_workers=num_workers)

    return start


def in_dataloader(library: str) -> Callable[[Path, int], Iterable[Any]]:
    def start(folder: Path, num_workers: int) -> Iterable[Any]:
        import albumentations  # type: ignore[import-untyped]
        import cv2
        import numpy as np
        import simplejpeg  # type: ignore[import-untyped]
        import torch
        from torch.utils.data import DataLoader, Dataset

        cv2.setNumThreads(0)
        transform = albumentations.Compose(
            [
                albumentations.RandomResizedCrop((SIZE, SIZE), mask_interpolation=cv2.INTER_NEAREST),
                albumentations.HorizontalFlip(p=0.5),
            ],
            bbox_params=albumentations.BboxParams(format="coco", label_fields=["labels"], clip=True),
        )

        class Samples(Dataset[Any]):
            def __init__(self) -> None:
                self.lines = (folder / "typed.txt").read_text(encoding="utf-8").splitlines()[2:]

            def __len__(self) -> int:
                return len(self.lines)

            def __getitem__(self, number: int) -> Any:
                image, mask, boxes = (folder / path for path in self.lines[number].split("\t"))
                data = image.read_bytes()
                if library == "simplejpeg":
                    pixels = simplejpeg.decode_jpeg(data)
                else:
                    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
                ids = cv2.imread(str(mask.parents[1] / "gray" / mask.name), cv2.IMREAD_GRAYSCALE)
                objects = json.loads(boxes.read_bytes())
                made = transform(
                    image=pixels,
                    mask=ids,
                    bboxes=[each["bbox"] for each in objects],
                    labels=[each["category_id"] for each in objects],
                )
                left, top, width, height = np.asarray(made["bboxes"], np.float32).reshape(-1, 4).T
                corners = np.stack([left, top, left + width, top + height], axis=1)
                return {
                    "image": torch.from_numpy(made["image"]),
                    "mask": torch.from_numpy(made["mask"].astype(np.int64)),
                    "boxes": torch.from_numpy(corners),
                    "labels": torch.from_numpy(np.asarray(made["labels"], np.int64)),
                }

        def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
            batch: dict[str, Any] = {key: [sample[key] for sample in samples] for key in ("boxes", "labels")}
            return batch | {
                key: torch.utils.data.default_collate([sample[key] for sample in samples]) for key in ("image", "mask")
            }

        return DataLoader(
            Samples(),
            batch_size=BATCH_SIZE,
            shuffle=True,
            num_workers=num_workers,
            collate_fn=collate,
            persistent_workers=True,
        )

    return start


TYPED, IMAGES, AS_DICT = "mpload, image + mask + boxes", "mpload, images", "mpload, images in dicts"
SMALL, SMALL_BYTES = "mpload, image + small mask + boxes", "mpload, image + small mask of bytes + boxes"


def all_columns(mpload: Any, **options: Any) -> dict[str, Any]:
    """Return the decoders of a sample's columns; `options` are those of its mask."""
    return {"image": mpload.RandomResizedCrop(SIZE), "mask": mpload.Mask(**options), "boxes": mpload.Boxes("xywh")}


CONTESTANTS: dict[str, Callable[[Path, int], Iterable[Any]]] = {
    IMAGES: ours("images.txt", lambda mpload: mpload.RandomResizedCrop(SIZE)),
    AS_DICT: ours("images.txt", lambda mpload: {"image": mpload.RandomResizedCrop(SIZE)}),
    TYPED: ours("typed.txt", all_columns),
    SMALL: ours("small.txt", all_columns),
    SMALL_BYTES: ours("small.txt", lambda mpload: all_columns(mpload, dtype="uint8")),
    "DataLoader, OpenCV + albumentations, image + mask + boxes": in_dataloader("opencv"),
    "DataLoader, simplejpeg + albumentations, image + mask + boxes": in_dataloader("simplejpeg"),
}


def contest(name: str, folder: Path, num_workers: int) -> None:
    """Check the first epoch, then run an epoch for each turn."""
    loader = CONTESTANTS[name](folder, num_workers)
    shares = []
    num_samples = 0
    for batch in loader:
        num_samples += size_of(batch)
        if isinstance(batch, dict) and "mask" in batch:
            shares += ((batch["mask"] != 0).float().mean(dim=(1, 2))).tolist()
    print(json.dumps({"num_samples": num_samples, "labelled": statistics.mean(shares) if shares else None}), flush=True)
    run_epochs(loader, size_of)


def size_of(batch: Any) -> int:
    return len(batch["image"] if isinstance(batch, dict) else batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few samples, one round; write no record")
    parser.add_argument("--data", type=Path, help="folder that keeps the samples; default: a temporary one")
    parser.add_argument("--num-samples", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=7)
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
        running, workers, labelled = {}, {}, {}
        for name in CONTESTANTS:
            workers[name] = NUM_WORKERS
            if name.startswith("DataLoader") and not arguments.quick:
                rates = {count: trial(name, folder, count) for count in TRIED_WORKERS}
                workers[name] = max(rates, key=rates.__getitem__)
            running[name] = stack.enter_context(started_case(name, folder, workers[name]))
            first = told(running[name])
            labelled[name] = first["labelled"]
            if first["num_samples"] != arguments.num_samples:
                raise SystemExit(f"{name}: the first epoch did not hold every sample once: {first}")
        shares = [share for share in labelled.values() if share is not None]
        if not arguments.quick and max(shares) - min(shares) > NEAR_LABELLED:
            raise SystemExit(f"not the same work: the labelled shares of the masks are {labelled}")
        turns = take_turns(running, arguments.rounds)
    for name, found in turns.items():
        typical = medians(found)
        print(
            f"{name:62} {workers[name]} workers {typical.samples_per_second:8,.0f} samples/s "
            f"{typical.cpu_us:8.0f} us CPU a sample"
        )
        if not arguments.quick:
            case = {
                "contestant": name,
                "num_samples": arguments.num_samples,
                "batch_size": BATCH_SIZE,
                "num_workers": workers[name],
            }
            figures = {
                "samples_per_second": [round(each.samples_per_second) for each in found],
                "ratio_to_images": [
                    round(each.samples_per_second / images.samples_per_second, 3)
                    for each, images in zip(found, turns[IMAGES], strict=True)
                ],
                "cpu_us_per_sample": [round(each.cpu_us, 1) for each in found],
            }
            write_record("typed", case, figures)


def started_case(name: str, folder: Path, num_workers: int) -> Process:
    """Start the process of a contestant."""
    return started(__file__, "--case", name, str(folder), str(num_workers))


def trial(name: str, folder: Path, num_workers: int) -> float:
    """Return the samples per second of an epoch, after one that is not timed."""
    with started_case(name, folder, num_workers) as process:
        told(process)
        return max(turn(process).samples_per_second for _ in range(2))


if __name__ == "__main__":
    main()
