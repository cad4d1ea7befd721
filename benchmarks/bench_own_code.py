"""How fast is a user's own decoder and transform in mpload's workers, and in those of a stock DataLoader?

    python benchmarks/bench_own_code.py [--quick]

Photographs in the page cache are decoded, resized and cropped with Pillow or with OpenCV, to uint8; or the crop is
normalised to float32 with NumPy in addition. Their sizes differ as in ImageNet, or all are of 640 x 480 pixels, as the
frames of a video: then the heap of the C library behaves differently. The code is the same for both loaders: mpload has
it as `decode=` and `transform=` of an `MPDataset`, the DataLoader in a map-style dataset that reads the file first.
None of mpload's decoders takes part. Two workers, shuffled, batches of 64 samples.

A user can have the heap of the C library keep what a sample frees, as mpload's workers do: so the DataLoader also runs
with `MALLOC_TRIM_THRESHOLD_` and `MALLOC_MMAP_THRESHOLD_` in the environment.

The loaders take turns in random order, each in its own process. Their first epoch is checked and not timed. Page faults
are the minor ones of all workers: for each, the kernel clears 4 KiB of memory. `worker_uss_bytes` is the private memory
of the largest worker after the last turn. `training_process_ms_per_batch` is the CPU time of the process that iterates:
what all workers together need there limits how many of them are of use. Records: benchmarks/records/own_code.jsonl.
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray
from turns import Process, Turn, medians, run_epochs, started, told, turn

sys.path.insert(0, str(Path(__file__).parents[1]))

BATCH_SIZE, NUM_WORKERS = 64, 2
SHORT_SIDE, SIDE = 256, 224
KEEPS_MEMORY = "DataLoader that keeps freed memory"
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}
SIZES = ("different", "equal")
MEAN, DEVIATION = np.array([[123.7, 116.3, 103.5], [58.4, 57.1, 57.4]], np.float32)
Image = NDArray[Any]


def with_pillow(data: bytes) -> Image:
    import PIL.Image

    with PIL.Image.open(BytesIO(data)) as file:
        image = file.convert("RGB")
    scale = SHORT_SIDE / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), PIL.Image.Resampling.BILINEAR)
    left, top = (image.width - SIDE) // 2, (image.height - SIDE) // 2
    return np.array(image.crop((left, top, left + SIDE, top + SIDE)))


def with_opencv(data: bytes) -> Image:
    import cv2

    decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    assert decoded is not None
    scale = SHORT_SIDE / min(decoded.shape[:2])
    image = cv2.resize(decoded, None, fx=scale, fy=scale, interpolation=cv2.INTER_LINEAR)
    top, left = (image.shape[0] - SIDE) // 2, (image.shape[1] - SIDE) // 2
    return np.ascontiguousarray(image[top : top + SIDE, left : left + SIDE])


def normalised(image: Image) -> Image:
    result: Image = (image.astype(np.float32) - MEAN) / DEVIATION
    return result


@dataclass(frozen=True)
class Code:
    """What a user wrote."""

    decode: Callable[[bytes], Image]
    transform: Callable[[Image], Image] | None = None


CASES = {
    "Pillow": Code(with_pillow),
    "OpenCV": Code(with_opencv),
    "OpenCV, normalised with NumPy": Code(with_opencv, normalised),
}


class Photos:
    """The map-style dataset that a user writes for a DataLoader."""

    def __init__(self, folder: Path, code: Code) -> None:
        self.paths = sorted(folder.rglob("*.JPEG"))
        self.code = code

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> Image:
        image = self.code.decode(self.paths[number].read_bytes())
        return image if self.code.transform is None else self.code.transform(image)


def mpload_loader(folder: Path, code: Code) -> Iterable[Any]:
    import mpload

    dataset: mpload.MPDataset[Any] = mpload.MPDataset(
        folder / "photos.txt",
        decode=code.decode,
        transform=code.transform,
        batch_size=BATCH_SIZE,
        shuffle=True,
        tail="drop",
    )
    return mpload.MPLoader(dataset, num_workers=NUM_WORKERS)


def stock_loader(folder: Path, code: Code) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    return DataLoader(
        Photos(folder, code),  # type: ignore[arg-type]
        batch_size=BATCH_SIZE,
        shuffle=True,
        drop_last=True,
        num_workers=NUM_WORKERS,
        persistent_workers=True,
        worker_init_fn=use_one_thread,
    )


def use_one_thread(_worker: int) -> None:
    import cv2

    cv2.setNumThreads(1)  # as in mpload's workers


LOADERS = {"mpload": mpload_loader, "DataLoader": stock_loader, KEEPS_MEMORY: stock_loader}


def run(loader_name: str, case: str, folder: Path) -> None:
    """Run a contestant, after a first epoch whose batches are checked."""
    loader = LOADERS[loader_name](folder, CASES[case])
    is_right = all(sorted(images_of(batch).shape) == [3, BATCH_SIZE, SIDE, SIDE] for batch in loader)
    print(json.dumps({"is_right": is_right}), flush=True)
    run_epochs(loader, lambda batch: len(images_of(batch)))


def images_of(batch: Any) -> Any:
    """Return the images: mpload's batches have the photographs' classes too."""
    return batch[0] if isinstance(batch, tuple) else batch


def make_photographs(folder: Path, *, num_images: int, are_equal: bool) -> None:
    """Write photographs and their index."""
    import PIL.Image

    from mpload import build_index
    from tests.support.photos import make_photo_tree

    make_photo_tree(folder, num_images=num_images, num_classes=10, seed=0, grain=10)
    for path in folder.rglob("*.JPEG") if are_equal else ():
        with PIL.Image.open(path) as file:
            resized = file.convert("RGB").resize((640, 480))
        resized.save(path, "JPEG", quality=90)
    build_index(folder, folder / "photos.txt")


def num_faults(process: Process) -> int:
    """Return the minor page faults of all descendants of a process so far."""
    children = psutil.Process(process.pid).children(recursive=True)
    return sum(int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[7]) for child in children)


def compare(case: str, folder: Path, *, num_rounds: int) -> dict[str, dict[str, Any]]:
    """Let the loaders take turns; return the figures of each."""
    num_samples = sum(1 for _ in folder.rglob("*.JPEG")) // BATCH_SIZE * BATCH_SIZE
    turns: dict[str, list[Turn]] = {name: [] for name in LOADERS}
    faults = dict.fromkeys(LOADERS, 0)
    with ExitStack() as stack:
        running = {
            name: stack.enter_context(
                started(
                    __file__, "--run", name, case, "--folder", str(folder), env=MALLOC if name == KEEPS_MEMORY else {}
                )
            )
            for name in LOADERS
        }
        for process in running.values():
            assert told(process)["is_right"]
        for number in range(num_rounds):
            for name in random.Random(number).sample(list(LOADERS), len(LOADERS)):
                before = num_faults(running[name])
                turns[name].append(turn(running[name]))
                faults[name] += num_faults(running[name]) - before
        largest = {
            name: max(child.memory_full_info().uss for child in psutil.Process(process.pid).children(recursive=True))
            for name, process in running.items()
        }
        for process in running.values():
            assert process.stdin is not None
            process.stdin.close()
    return {
        name: {
            "samples_per_second": [round(each.samples_per_second, 1) for each in turns[name]],
            "cpu_us": round(medians(turns[name]).cpu_us),
            "training_process_ms_per_batch": round(medians(turns[name]).own_cpu_ms, 2),
            "page_faults_per_sample": round(faults[name] / num_rounds / num_samples, 1),
            "worker_uss_bytes": largest[name],
        }
        for name in LOADERS
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few photographs and one round; write no record")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        loader, case = options.run
        run(loader, case, options.folder)
        return
    from records import write_record

    num_images = 128 if options.quick else 2000
    for sizes in SIZES:
        with tempfile.TemporaryDirectory() as name:
            make_photographs(Path(name), num_images=num_images, are_equal=sizes == "equal")
            for case in CASES:
                found = compare(case, Path(name), num_rounds=1 if options.quick else options.rounds)
                for loader, figures in found.items():
                    print(f"{case}, {sizes} sizes, {loader}: {figures}", flush=True)
                    if not options.quick:
                        fixed = {"num_workers": NUM_WORKERS, "batch_size": BATCH_SIZE, "num_images": num_images}
                        write_record("own_code", {"contestant": loader, "code": case, "sizes": sizes, **fixed}, figures)


if __name__ == "__main__":
    main()
