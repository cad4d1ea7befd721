"""Small videos and audio files."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FPS", "NUM_FRAMES", "RATE", "audio", "frame_number", "video", "write_clips"]

NUM_FRAMES, FPS, RATE = 50, 10, 8000
_HEIGHT, _WIDTH = 48, 64
_SOUND_RATE = 48000


def video(
    *,
    num_frames: int = NUM_FRAMES,
    codec: str = "mpeg4",
    kind: str = "mp4",
    tint: int = 0,
    max_b_frames: int = 0,
    gop_size: int = 12,
    ticks: Sequence[int] | None = None,
    start_seconds: float = 0.0,
    audio_seconds: float = 0.0,
    options: dict[str, str] | None = None,
) -> bytes:
    """Return a video whose frames show their number: the left half is 4 * number bright, the right half `tint`.

    Args:
        num_frames: The number of frames.
        codec: A codec of FFmpeg.
        kind: A format of FFmpeg.
        tint: The brightness of the right half.
        max_b_frames: How many B-frames may stand between two others.
        gop_size: The distance of key frames.
        ticks: When each frame is shown, in milliseconds; None shows `FPS` a second.
        start_seconds: When the first frame is shown.
        audio_seconds: The length of silent audio beside it; 0 adds none.
        options: Options of the container.
    """
    import av

    file = BytesIO()
    with av.open(file, "w", format=kind, options=options or {}) as container:
        stream: Any = container.add_stream(codec, rate=FPS)
        stream.width, stream.height, stream.pix_fmt = _WIDTH, _HEIGHT, "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.bit_rate = 2_000_000
        stream.codec_context.gop_size = gop_size
        stream.codec_context.max_b_frames = max_b_frames
        if ticks is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        sound: Any = container.add_stream("aac", rate=_SOUND_RATE) if audio_seconds else None
        for number in range(num_frames):
            pixels = np.full((_HEIGHT, _WIDTH, 3), tint, np.uint8)
            pixels[:, : _WIDTH // 2] = 4 * number
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            if ticks is not None:
                frame.pts, frame.time_base = ticks[number], Fraction(1, 1000)
            else:
                frame.pts, frame.time_base = number + round(start_seconds * FPS), Fraction(1, FPS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if sound is not None:
            for packet in _silence(sound, audio_seconds):
                container.mux(packet)
    return file.getvalue()


def _silence(sound: Any, seconds: float) -> Iterator[Any]:
    import av

    for number in range(int(seconds * _SOUND_RATE / 1024)):
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.rate, frame.pts, frame.time_base = _SOUND_RATE, number * 1024, Fraction(1, _SOUND_RATE)
        yield from sound.encode(frame)
    yield from sound.encode()


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
