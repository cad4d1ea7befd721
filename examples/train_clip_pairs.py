"""Train two small networks on pairs of images and captions, as CLIP does. Workers turn captions into tokens.

python examples/train_clip_pairs.py
"""

import tempfile
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

import mpload

COLORS = {"red": (40, 40, 220), "green": (40, 200, 40), "blue": (220, 60, 40), "yellow": (30, 210, 220)}
SHAPES = ("square", "disc", "cross", "bar")
WORDS = ("a", "photo", "of", "the", "one", "small", "big", *COLORS, *SHAPES)
DIM = 32


@dataclass(frozen=True)
class Tokenizer:
    """Turn a caption into the ids of its words. Workers are sent a copy of it, so it may hold a vocabulary."""

    words: tuple[str, ...]

    def __call__(self, caption: bytes) -> NDArray[np.int64]:
        """Return int64 [length]; 0 is left for padding."""
        return np.array([1 + self.words.index(word) for word in caption.decode().split()])


def make_pairs(folder: Path, num_images: int = 256) -> Path:
    """Write `<number>.jpg` and `<number>.txt` beside it: a shape, and a sentence about its color and form."""
    rng = np.random.default_rng(0)
    kinds = list(product(COLORS, SHAPES))
    for number in range(num_images):
        color, shape = kinds[number % len(kinds)]
        half, (x, y) = int(rng.integers(10, 18)), rng.integers(20, 44, 2).tolist()
        pixels = rng.integers(0, 60, (64, 64, 3), np.uint8)
        thin = half // 3
        if shape == "disc":
            cv2.circle(pixels, (x, y), half, COLORS[color], -1)
        if shape == "square":
            cv2.rectangle(pixels, (x - half, y - half), (x + half, y + half), COLORS[color], -1)
        if shape in {"bar", "cross"}:
            cv2.rectangle(pixels, (x - half, y - thin), (x + half, y + thin), COLORS[color], -1)
        if shape == "cross":
            cv2.rectangle(pixels, (x - thin, y - half), (x + thin, y + half), COLORS[color], -1)
        article = rng.choice(["a", "the", "one"])
        size = rng.choice(["", "big " if half > 14 else "small "])
        cv2.imwrite(str(folder / f"{number:03d}.jpg"), pixels)
        (folder / f"{number:03d}.txt").write_text(f"a photo of {article} {size}{color} {shape}")
    return folder


class TwoTowers(torch.nn.Module):
    """Embeds images and captions in the same space; an image and its own caption should be close to each other."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[torch.nn.Module] = []
        for num_in, num_out in ((3, 16), (16, 32), (32, 64)):
            layers += [torch.nn.Conv2d(num_in, num_out, 3, stride=2, padding=1), torch.nn.BatchNorm2d(num_out)]
            layers += [torch.nn.ReLU()]
        self.of_image = torch.nn.Sequential(*layers, torch.nn.AdaptiveMaxPool2d(1), torch.nn.Flatten())
        self.from_image = torch.nn.Linear(64, DIM)
        self.of_words = torch.nn.Embedding(1 + len(WORDS), DIM, padding_idx=0)
        self.log_scale = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, images: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return how well each image fits each caption, [B, B]."""
        of_images = torch.nn.functional.normalize(self.from_image(self.of_image(images.float() / 255 - 0.5)), dim=1)
        of_captions = torch.nn.functional.normalize(self.of_words(tokens).sum(1), dim=1)
        return self.log_scale.exp() * of_images @ of_captions.T


def train(folder: Path, index: Path) -> list[float]:
    """Train for a few epochs; return the mean loss of each."""
    mpload.build_index(folder, index)
    dataset = mpload.MPDataset(
        index,
        decode={"image": mpload.RandomResizedCrop(64, scale=(0.8, 1.0)), "caption": Tokenizer(WORDS)},
        batch_size=16,
        shuffle=True,
        collate={"caption": mpload.Pad(0)},
    )
    torch.manual_seed(0)
    model = TwoTowers()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    with mpload.MPLoader(dataset, num_workers=2) as loader:
        for epoch in range(8):
            sum_of_losses = 0.0
            for batch in loader:
                scores = model(batch["image"], batch["caption"])  # uint8 [16, 3, 64, 64], int64 [16, 5 to 6]
                pairs = torch.arange(len(scores))
                loss = torch.nn.functional.cross_entropy(scores, pairs) / 2
                loss = loss + torch.nn.functional.cross_entropy(scores.T, pairs) / 2
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                sum_of_losses += loss.item()
            losses.append(sum_of_losses / len(dataset))
            print(f"epoch {epoch}: loss {losses[-1]:.2f}")
    return losses


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "pairs")
        folder.mkdir()
        losses = train(make_pairs(folder), Path(name, "train.txt"))
        if losses[-1] > 0.6 * losses[0]:
            raise SystemExit(f"the loss should fall to 60% of {losses[0]:.2f}, but is {losses[-1]:.2f}")


if __name__ == "__main__":
    main()
