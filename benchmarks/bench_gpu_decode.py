"""What do images cost that `GpuDecode` leaves to the GPU: in the training process, and in the decoder?

    python benchmarks/bench_gpu_decode.py [--quick] [--data DIR]

"received" is the CPU time of the training process until it has a batch of 256 files from an `MPLoader`, whose worker is
far ahead: with `GpuDecode`, and with `RawBytes`, whose `bytes` are copies. "decoded" needs a GPU: the decoders of a
`DevicePrefetcher` take turns at the same batches of random crops. Their pixels are compared with those of the CPU.
Figures are medians. Records: benchmarks/records/gpu_decode.jsonl.
"""

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from photographs import photographs, write_listing
from records import write_record

from mpload import GpuDecode, ImageDecoder, MPDataset, MPLoader, RandomResizedCrop, RawBytes, Topology
from mpload.device.jpeg_decoders import DeviceDecoder, EngineDecoder, TorchvisionDecoder
from mpload.images.gpu_decode import EncodedImage

CROP = RandomResizedCrop(224)
RECEIVED: dict[str, Callable[..., Any]] = {
    "GpuDecode": GpuDecode(CROP),
    "GpuDecode, share=0.5": GpuDecode(CROP, share=0.5),
    "RawBytes": RawBytes(),
}
DECODERS: dict[str, Callable[[torch.device], DeviceDecoder]] = {
    "nvImageCodec": EngineDecoder,
    "torchvision": TorchvisionDecoder,
}
BATCH_SAMPLES = 256
AHEAD_SECONDS = 0.4
"""Time in which a worker makes a batch."""


def received(decode: Callable[..., Any], listing: Path, num_batches: int) -> dict[str, float]:
    """Return the time in which the training process takes a batch that is ready."""
    dataset = MPDataset(
        listing, decode=decode, batch_size=BATCH_SAMPLES, shuffle=True, tail="drop", topology=Topology()
    )
    cpu, wall = [], []
    with MPLoader(dataset, num_workers=1) as loader:
        batches = iter(loader)
        for _ in range(num_batches + 2):
            time.sleep(AHEAD_SECONDS)
            start, start_cpu = time.perf_counter(), time.process_time()
            batch = next(batches)
            cpu.append(time.process_time() - start_cpu)
            wall.append(time.perf_counter() - start)
            del batch
    return {
        "cpu_us_per_image": _us_per_image(statistics.median(cpu[2:])),
        "us_per_image": _us_per_image(statistics.median(wall[2:])),
    }


def decoded(folder: Path, num_batches: int) -> dict[str, dict[str, float]]:
    """Return the time that each decoder takes for a batch, and how far its pixels are from those of the CPU."""
    device, rng, decode = torch.device("cuda", torch.cuda.current_device()), np.random.default_rng(0), GpuDecode(CROP)
    paths = sorted(folder.rglob("*.JPEG"))
    batches = [
        [EncodedImage.of(decode(paths[number].read_bytes(), rng)) for number in rng.integers(len(paths), size=256)]
        for _ in range(8)
    ]
    decoders = {name: make(device) for name, make in DECODERS.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in decoders}
    for batch in itertools.islice(itertools.cycle(batches), 4 + num_batches):
        for name, decoder in decoders.items():
            torch.cuda.synchronize()
            start, start_cpu = time.perf_counter(), time.process_time()
            decoder([image.data for image in batch], [image.view.box for image in batch])
            torch.cuda.synchronize()
            times[name].append((time.perf_counter() - start, time.process_time() - start_cpu))
    found = {}
    for name, decoder in decoders.items():
        seconds, cpu_seconds = zip(*times[name][4:], strict=True)
        found[name] = {
            "ms_per_batch": round(1e3 * statistics.median(seconds), 2),
            "cpu_us_per_image": _us_per_image(statistics.median(cpu_seconds)),
            "difference": round(_difference(decoder, batches[0][:64]), 3),
        }
    return found


def _difference(decoder: DeviceDecoder, images: list[EncodedImage]) -> float:
    """Return the mean of absolute differences to the CPU's pixels, from 0 to 255."""
    parts = decoder([image.data for image in images], [image.view.box for image in images])
    differences = []
    for image, part in zip(images, parts, strict=True):
        if part is None:
            raise SystemExit("the decoder refuses a photograph")
        expected = image.view.box.of(ImageDecoder()(bytes(image.data))).astype(int)
        differences.append(abs(part.permute(1, 2, 0).cpu().numpy() - expected).mean())
    return float(np.mean(differences))


def _us_per_image(seconds: float) -> float:
    return round(1e6 * seconds / BATCH_SAMPLES, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few photographs and batches; write no record")
    parser.add_argument("--data", type=Path, help="folder that keeps the photographs; default: a temporary one")
    arguments = parser.parse_args()
    num_photos, num_batches = (64, 2) if arguments.quick else (1024, 15)
    with tempfile.TemporaryDirectory() as temporary:
        folder = photographs((arguments.data or Path(temporary)).absolute(), num_photos)
        listing = write_listing(folder, 1 << 14)
        for name, decode in RECEIVED.items():
            record({"measure": "received", "decode": name}, received(decode, listing, num_batches), arguments.quick)
        if not torch.cuda.is_available():
            print("skipped, because they need a GPU: decoders")
            return
        for name, figures in decoded(folder, num_batches).items():
            case = {"measure": "decoded", "device": torch.cuda.get_device_name(), "decoder": name}
            record(case, figures, arguments.quick)


def record(case: dict[str, Any], figures: dict[str, float], is_quick: bool) -> None:
    case["batch_samples"] = BATCH_SAMPLES
    print(json.dumps({**case, **figures}))
    if not is_quick:
        write_record("gpu_decode", case, figures)


if __name__ == "__main__":
    main()
