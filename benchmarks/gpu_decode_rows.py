"""Tables of images that `GpuDecode` leaves to the GPU, from the records of bench_gpu_decode.py."""

from gpu_records import latest_if_any
from records import Record

__all__ = ["DECODERS_HEADER", "RECEIVED_HEADER", "decoder_rows", "received_rows"]

RECEIVED_HEADER = ["decode=", "training process: CPU µs an image", "until the batch is there, µs an image"]
DECODERS_HEADER = ["decoder", "ms a batch", "CPU µs an image", "difference"]


def received_rows() -> list[list[str]]:
    """Return what the training process takes to receive files."""
    return [
        [record["case"]["decode"], *(f"{record['figures'][key]:.1f}" for key in ("cpu_us_per_image", "us_per_image"))]
        for record in _records("received")
    ]


def decoder_rows() -> list[list[str]]:
    """Return what each decoder on a GPU takes."""
    rows = []
    for record in _records("decoded"):
        figures, difference = record["figures"], record["figures"].get("difference")
        rows.append(
            [
                f"{record['case']['decoder']} ({record['case']['device']})",
                f"{figures['ms_per_batch']:.1f}",
                f"{figures['cpu_us_per_image']:.0f}",
                "-" if difference is None else f"{difference:.2f}",
            ]
        )
    return rows


def _records(measure: str) -> list[Record]:
    records = latest_if_any("gpu_decode", "measure", "decode", "device", "decoder")
    return [record for record in records if record["case"]["measure"] == measure]
