"""How much faster do photographs decode that `mpload pack --jpeg baseline` has rewritten, and how large are they?

    python benchmarks/bench_pack.py [--quick]

The photographs have ImageNet's sizes (about 500 x 375, 105 KB). They are measured as they are, and resized to a short
side of 256 pixels as `mpload pack --resize-short 256` does. Pillow makes these forms from the decoded pixels, with the
same quantization, and mpload rewrites them without loss:

- standard: the Huffman tables of the JPEG standard, as the encoder of `mpload pack` writes them.
- optimised: tables made for each photograph.
- progressive: progressive JPEGs.
- restarts: standard, with a restart marker after each row of MCUs.
- rewritten: the standard form, rewritten as `mpload pack --jpeg baseline` does, with tables made for all photographs.
- rewritten_progressive: the same, made from the progressive form.

A random crop is decoded, resized to 224 x 224 and written into an array. The forms take turns of 25 photographs in one
process, so that a disturbance of the machine affects all of them. Times are CPU time of the only thread, in
microseconds: for each turn the best of all rounds, and the median over whole rounds. Ratios are computed from the best
times.

Records: benchmarks/records/pack.jsonl.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from bench_decode import TURN, measure
from PIL import Image
from records import write_record

from mpload.images.baseline import tables_for
from mpload.images.decoders import RandomResizedCrop, jpeg_backend
from mpload.images.image import open_image
from mpload.images.shrink import shrunk_jpeg

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.photos import encode, make_photo_tree

SIZE, SHORT_SIDE, QUALITY = 224, 256, 90


def encoded_again(data: bytes, **options: Any) -> bytes:
    """Return a JPEG with nearly the same coefficients, encoded with other options."""
    with Image.open(BytesIO(data)) as image:
        return encode(image, "JPEG", quality="keep", **options)


def rewritten(files: list[bytes]) -> list[bytes]:
    """Rewrite JPEGs with the tables that suit all of them best."""
    tables = tables_for(files)
    return [tables.rewrite(data) for data in files]


def forms(files: list[bytes]) -> dict[str, list[bytes]]:
    """Return the photographs in each form."""
    progressive = [encoded_again(data, progressive=True) for data in files]
    return {
        "standard": files,
        "optimised": [encoded_again(data, optimize=True) for data in files],
        "progressive": progressive,
        "restarts": [encoded_again(data, restart_marker_rows=1) for data in files],
        "rewritten": rewritten(files),
        "rewritten_progressive": rewritten(progressive),
    }


def crops(files: list[bytes]) -> Callable[[int, int], int]:
    """Return a function that makes crops of some photographs and returns the CPU time in nanoseconds."""
    decode, out = RandomResizedCrop(SIZE), np.zeros((SIZE, SIZE, 3), np.uint8)

    def turn(first: int, last: int) -> int:
        dice = [np.random.default_rng(number) for number in range(first, last)]
        start = time.thread_time_ns()
        for data, rng in zip(files[first:last], dice, strict=True):
            decode(data, rng, out)
        return time.thread_time_ns() - start

    return turn


def check_pixels(found: dict[str, list[bytes]], number: int) -> None:
    """Check that a rewritten photograph has the same pixels as before."""
    pixels = {form: open_image(files[number]).pixels() for form, files in found.items()}
    assert np.array_equal(pixels["standard"], pixels["rewritten"])
    assert np.array_equal(pixels["progressive"], pixels["rewritten_progressive"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer images; write no record")
    arguments = parser.parse_args()
    num_images, rounds = (50, 2) if arguments.quick else (500, 6)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_photo_tree(folder, num_images=num_images, num_classes=1, seed=0, grain=10)
        photos = [path.read_bytes() for path in sorted(folder.rglob("*.JPEG"))]
    small = [shrunk_jpeg(open_image(data), short_side=SHORT_SIDE, quality=QUALITY) for data in photos]
    for size, files in (("original", photos), (f"short side {SHORT_SIDE}", small)):
        found = forms(files)
        for number in range(0, num_images, TURN):
            check_pixels(found, number)
        times = measure({form: crops(each) for form, each in found.items()}, num_images=num_images, rounds=rounds)
        best = {form: each.min(axis=0).mean() for form, each in times.items()}
        for form, each in times.items():
            mean_bytes = statistics.mean(map(len, found[form]))
            figures = {
                "mean_bytes": round(mean_bytes),
                "best_us": round(best[form], 1),
                "median_us": round(statistics.median(each.mean(axis=1)), 1),
                "bytes_of_standard": round(mean_bytes / statistics.mean(map(len, files)), 3),
                "time_of_standard": round(best[form] / best["standard"], 3),
            }
            case = {"photos": size, "form": form, "num_images": num_images, "rounds": rounds, "backend": jpeg_backend()}
            print(json.dumps({**case, **figures}), flush=True)
            if not arguments.quick:
                write_record("pack", case, figures)


if __name__ == "__main__":
    main()
