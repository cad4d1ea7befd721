"""What do two large and eight small crops of each photograph cost, compared with a single crop in a DataLoader?

    python benchmarks/bench_views.py [--quick]

Photographs of ImageNet's sizes (about 500 x 375, 105 KB), in the page cache, are delivered by two workers, shuffled, in
batches of 64 samples: DINO's crops, 2 of 224 x 224 pixels and 8 of 96 x 96, or one crop of 224 x 224. All crops are
bilinear and mirrored half of the time.

- mpload: one `Views` decoder.
- PIL: Image.open once, then crop, resize and transpose for each crop, as torchvision does for DINO's own code, in a
  stock DataLoader.
- albumentations: cv2.imdecode once, then RandomResizedCrop and HorizontalFlip for each crop, in a stock DataLoader.
- simplejpeg: decode_jpeg once, then cv2.resize and cv2.flip for each crop, in a stock DataLoader. The least that one
  can write by hand.

The contestants take turns in random order, each in its own process. Their first epoch is checked and not timed: all
shapes must be right. CPU time is that of the process and its workers. Records: benchmarks/records/views.jsonl.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from turns import medians, run_epochs, started, take_turns, told

sys.path.insert(0, str(Path(__file__).parents[1]))

BATCH_SIZE, NUM_WORKERS = 64, 2
SHAPES = {"glob": (2, 224), "local": (8, 96)}
SCALES = {"glob": (0.32, 1.0), "local": (0.05, 0.32)}
Load = Callable[[Path], Iterable[Any]]


def ours(*, has_views: bool) -> Load:
    def start(folder: Path) -> Iterable[Any]:
        import mpload

        def crop(name: str) -> mpload.RandomResizedCrop:
            return mpload.RandomResizedCrop(SHAPES[name][1], scale=SCALES[name])

        decode: Any = mpload.RandomResizedCrop(224)
        if has_views:
            decode = {"crops": mpload.Views(of="image", glob=(2, crop("glob")), local=(8, crop("local")))}
        dataset = mpload.MPDataset(folder / "photos.txt", decode=decode, batch_size=BATCH_SIZE, shuffle=True)
        return mpload.MPLoader(dataset, num_workers=NUM_WORKERS)

    return start


def stock(library: str, *, has_views: bool) -> Load:
    def start(folder: Path) -> Iterable[Any]:
        import torch
        from torch.utils.data import DataLoader, Dataset

        make_crops = {"PIL": with_pil, "albumentations": with_albumentations, "simplejpeg": by_hand}[library](
            has_views=has_views
        )
        paths = sorted(map(str, folder.rglob("*.JPEG")))
        rng = np.random.default_rng()

        class Photos(Dataset[Any]):
            def __len__(self) -> int:
                return len(paths)

            def __getitem__(self, number: int) -> Any:
                made = make_crops(paths[number], rng)
                if not has_views:
                    return torch.from_numpy(made["one"][0]).permute(2, 0, 1)
                stacked = {name: torch.from_numpy(np.stack(crops)) for name, crops in made.items()}
                return {"crops": {name: crops.permute(0, 3, 1, 2) for name, crops in stacked.items()}}

        return DataLoader(
            Photos(),
            batch_size=BATCH_SIZE,
            shuffle=True,
            drop_last=True,
            num_workers=NUM_WORKERS,
            persistent_workers=True,
            worker_init_fn=lambda _: seed(rng),
        )

    return start


def seed(rng: np.random.Generator) -> None:
    """Give a forked worker random numbers and one thread of its own."""
    import cv2
    import torch

    cv2.setNumThreads(0)
    rng.bit_generator.state = np.random.default_rng(torch.initial_seed()).bit_generator.state


def groups(*, has_views: bool) -> dict[str, tuple[int, int, tuple[float, float]]]:
    """Return the number of crops, their side and their scale, by name."""
    if not has_views:
        return {"one": (1, 224, (0.08, 1.0))}
    return {name: (*SHAPES[name], SCALES[name]) for name in SHAPES}


def with_pil(*, has_views: bool) -> Callable[[str, np.random.Generator], dict[str, list[Any]]]:
    from PIL import Image

    from mpload.images.crops import random_crop_box

    wanted = groups(has_views=has_views)

    def make_crops(path: str, rng: np.random.Generator) -> dict[str, list[Any]]:
        with Image.open(path) as file:
            image = file.convert("RGB")

        def crop(side: int, scale: tuple[float, float]) -> Any:
            box = random_crop_box(image.height, image.width, rng, scale=scale)
            edges = (box.left, box.top, box.left + box.width, box.top + box.height)
            made = image.crop(edges).resize((side, side), Image.Resampling.BILINEAR)
            return np.array(made.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else made)

        return {name: [crop(side, scale) for _ in range(count)] for name, (count, side, scale) in wanted.items()}

    return make_crops


def with_albumentations(*, has_views: bool) -> Callable[[str, np.random.Generator], dict[str, list[Any]]]:
    import albumentations  # type: ignore[import-untyped]
    import cv2

    wanted = {
        name: (
            count,
            albumentations.Compose(
                [albumentations.RandomResizedCrop((side, side), scale=scale), albumentations.HorizontalFlip()]
            ),
        )
        for name, (count, side, scale) in groups(has_views=has_views).items()
    }

    def make_crops(path: str, _rng: np.random.Generator) -> dict[str, list[Any]]:
        image = cv2.imread(path, cv2.IMREAD_COLOR_RGB)
        return {name: [crop(image=image)["image"] for _ in range(count)] for name, (count, crop) in wanted.items()}

    return make_crops


def by_hand(*, has_views: bool) -> Callable[[str, np.random.Generator], dict[str, list[Any]]]:
    import cv2
    import simplejpeg  # type: ignore[import-untyped]

    from mpload.images.crops import random_crop_box

    wanted = groups(has_views=has_views)

    def make_crops(path: str, rng: np.random.Generator) -> dict[str, list[Any]]:
        image = simplejpeg.decode_jpeg(Path(path).read_bytes())

        def crop(side: int, scale: tuple[float, float]) -> Any:
            height, width = image.shape[:2]
            box = random_crop_box(height, width, rng, scale=scale)
            made = cv2.resize(box.of(image), (side, side))
            return cv2.flip(made, 1) if rng.random() < 0.5 else made

        return {name: [crop(side, scale) for _ in range(count)] for name, (count, side, scale) in wanted.items()}

    return make_crops


CONTESTANTS: dict[str, Load] = {
    "mpload, 2 + 8 crops": ours(has_views=True),
    "mpload, one crop": ours(has_views=False),
    "DataLoader, PIL, 2 + 8 crops": stock("PIL", has_views=True),
    "DataLoader, PIL, one crop": stock("PIL", has_views=False),
    "DataLoader, albumentations, 2 + 8 crops": stock("albumentations", has_views=True),
    "DataLoader, albumentations, one crop": stock("albumentations", has_views=False),
    "DataLoader, simplejpeg, 2 + 8 crops": stock("simplejpeg", has_views=True),
    "DataLoader, simplejpeg, one crop": stock("simplejpeg", has_views=False),
}


def contest(name: str, folder: Path) -> None:
    """Check the first epoch, then run an epoch for each turn."""
    loader = CONTESTANTS[name](folder)
    shapes = {(BATCH_SIZE, count, 3, side, side) for count, side in SHAPES.values()}
    wanted = shapes if "2 + 8" in name else {(BATCH_SIZE, 3, 224, 224)}
    is_right = all({crops.shape for crops in tensors(batch)} == wanted for batch in loader)
    print(json.dumps({"is_right": is_right}), flush=True)
    run_epochs(loader, lambda _: BATCH_SIZE)


def tensors(batch: Any) -> list[Any]:
    """Return the images of a batch."""
    if isinstance(batch, dict):
        return [*batch["crops"].values()]
    return [batch[0] if isinstance(batch, tuple) else batch]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few photographs; write no record")
    parser.add_argument("--num-photos", type=int, default=640)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        contest(arguments.case[0], Path(arguments.case[1]))
        return
    if arguments.quick:
        arguments.num_photos, arguments.rounds = 128, 1
    from records import write_record

    from tests.support.photos import make_photo_tree

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        make_photo_tree(folder / "train", num_images=arguments.num_photos, num_classes=1, seed=0, grain=10)
        photos = sorted(path.relative_to(folder) for path in folder.rglob("*.JPEG"))
        (folder / "photos.txt").write_text("#mpload 1\n#columns image:path\n" + "".join(f"{path}\n" for path in photos))
        running = {}
        for name in CONTESTANTS:
            running[name] = stack.enter_context(started(__file__, "--case", name, str(folder)))
            if not told(running[name])["is_right"]:
                raise SystemExit(f"{name}: a batch has wrong shapes")
        turns = take_turns(running, arguments.rounds)
    for name, found in turns.items():
        typical = medians(found)
        print(f"{name:42} {typical.samples_per_second:8,.0f} samples/s {typical.cpu_us:8,.0f} us CPU a sample")
        if not arguments.quick:
            case = {
                "contestant": name,
                "num_photos": arguments.num_photos,
                "batch_size": BATCH_SIZE,
                "num_workers": NUM_WORKERS,
            }
            figures = {
                "samples_per_second": [round(each.samples_per_second, 1) for each in found],
                "cpu_us_per_sample": [round(each.cpu_us) for each in found],
            }
            write_record("views", case, figures)


if __name__ == "__main__":
    main()
