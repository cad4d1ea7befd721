"""Small videos and audio files."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FPS", "NUM_FRAMES", "RATE", "audio", "frame_number", "video", "write_clips"]

NUM_FRAMES, FPS, RATE = 50, 10, 8000
_HEIGHT, _WIDTH = 48, 64


def video(*, num_frames: int = NUM_FRAMES, codec: str = "mpeg4", kind: str = "mp4", tint: int = 0) -> bytes:
    """Return a video whose frames show their number: the left half is 4 * number bright, the right half `tint`."""
    import av

    file = BytesIO()
    with av.open(file, "w", format=kind) as container:
        stream: Any = container.add_stream(codec, rate=FPS)
        stream.width, stream.height, stream.pix_fmt = _WIDTH, _HEIGHT, "yuv420p"
        stream.bit_rate = 2_000_000
        stream.codec_context.gop_size = 12
        for number in range(num_frames):
            pixels = np.full((_HEIGHT, _WIDTH, 3), tint, np.uint8)
            pixels[:, : _WIDTH // 2] = 4 * number
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


def frame_number(frame: NDArray[np.uint8]) -> int:
    """Return the number that a frame [H, W, 3] of `video` shows."""
    return round(float(frame[4:-4, 4 : frame.shape[1] // 2 - 4].mean()) / 4)


def audio(*, seconds: float = 2.0, channels: int = 2) -> bytes:
    """Return a WAV file in which channel c of sample n is n / 32768 + c / 4."""
    import soundfile  # type: ignore[import-untyped]

    file = BytesIO()
    ramp = np.arange(int(seconds * RATE))[:, None] / 32768 + np.arange(channels) / 4
    soundfile.write(file, ramp, RATE, format="WAV", subtype="PCM_16")
    return file.getvalue()


def write_clips(folder: Path, *, num_clips: int) -> Path:
    """Write videos and audio files of various lengths, and an index with the part of each."""
    lines = []
    for number in range(num_clips):
        (folder / f"{number}.mp4").write_bytes(video(num_frames=30 + number % 5, tint=10 * number))
        (folder / f"{number}.wav").write_bytes(audio(seconds=1 + number / 10, channels=1))
        lines.append(f"{number}.mp4\t{number}.wav\t{number % 3 / 10}\t{1.5 + number % 4 / 10}\n")
    path = folder / "clips.txt"
    path.write_text(f"#mpload 1\n#columns clip:path sound:path start:float end:float\n{''.join(lines)}")
    return path
