"""Train a small model to tell which way a square moves, from clips of videos and an index of their parts.

python examples/train_clips.py

It makes a few real videos first. Each has two scenes one after the other, which the index names by their seconds. Needs
PyAV: pip install 'mpload[video]'
"""

import tempfile
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from torch import nn

import mpload

FPS, SCENE_SECONDS, NUM_FRAMES, SIDE = 10, 2, 8, 32
MOVES = {"right": (0, 1), "left": (0, -1), "down": (1, 0), "up": (-1, 0)}


def write_video(path: Path, moves: list[str], rng: np.random.Generator) -> None:
    """Write a video of 64 x 64 pixels in which a bright square makes each move for two seconds."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("mpeg4", rate=FPS)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        for move in moves:
            down, right = MOVES[move]
            across = int(rng.integers(8, 48))  # where it lies on the axis along which it does not move
            for number in range(FPS * SCENE_SECONDS):
                pixels = rng.integers(0, 60, (64, 64, 3), dtype=np.uint8)
                along = 2 * number if down + right > 0 else 46 - 2 * number
                top, left = (along + 2, across) if down else (across, along + 2)
                pixels[top : top + 14, left : left + 14] = 230
                container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())


def write_clips(folder: Path, *, num_videos: int) -> Path:
    """Write videos, and an index with a line for each scene: the video, its first and last second, the move."""
    rng = np.random.default_rng(0)
    names = list(MOVES)
    lines = []
    for number in range(num_videos):
        moves = [names[int(move)] for move in rng.integers(len(names), size=2)]
        write_video(folder / f"{number}.mp4", moves, rng)
        for scene, move in enumerate(moves):
            start = scene * SCENE_SECONDS
            lines.append(f"{number}.mp4\t{start}\t{start + SCENE_SECONDS}\t{names.index(move)}\n")
    path = folder / "clips.txt"
    path.write_text("#mpload 1\n#columns clip:path start:float end:float label:int\n" + "".join(lines))
    return path


def train(index: Path) -> float:
    """Train for some epochs; return the accuracy in the last one."""
    clip = mpload.VideoClip(
        NUM_FRAMES, crop=mpload.ResizeCenterCrop(SIDE, resize=SIDE), start="start", end="end", seconds=1.5
    )
    dataset = mpload.MPDataset(index, decode={"clip": clip}, batch_size=16, shuffle=True)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv3d(1, 16, (3, 5, 5), stride=(1, 2, 2), padding=(1, 2, 2)),
        nn.ReLU(),
        nn.Conv3d(16, 32, 3, stride=(1, 2, 2), padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool3d((2, 4, 4)),
        nn.Flatten(),
        nn.Linear(32 * 32, len(MOVES)),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with mpload.MPLoader(dataset, num_workers=2) as loader:
        for epoch in range(8):
            num_right = num_seen = 0
            for batch in loader:
                frames = batch["clip"]  # uint8 [16, 8, 3, 32, 32]
                gray = frames.float().mean(dim=2).unsqueeze(1) / 255 - 0.5  # [16, 1, 8, 32, 32]
                scores = model(gray)
                loss = nn.functional.cross_entropy(scores, batch["label"])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                num_right += int((scores.argmax(1) == batch["label"]).sum())
                num_seen += len(frames)
            print(f"epoch {epoch}: loss {loss.item():.2f}, accuracy {num_right / num_seen:.0%}")
    return num_right / num_seen


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        accuracy = train(write_clips(Path(name), num_videos=48))
    if accuracy < 0.6:
        raise SystemExit(f"the accuracy for four moves should be at least 60%, but is {accuracy:.0%}")


if __name__ == "__main__":
    main()
