"""Train a student to agree with a teacher about views of the same photo, without labels, as DINO does.

python examples/train_dino_views.py [train/]

Each photo gives two large crops and eight small ones: the teacher sees the large ones, the student all of them. The
teacher is a moving average of the student. Both sort photos into kinds of their own. The example checks that training
does not collapse to a single kind; on so few photos, it says nothing about how good the kinds are.
"""

import copy
import sys
import tempfile
from pathlib import Path

import torch
from photos import make_photos
from torch import nn
from torch.nn import functional

import mpload

NUM_EPOCHS, NUM_KINDS, MOMENTUM = 6, 16, 0.95


class Encoder(nn.Module):
    """Turns photos of any size into features, [n, 64], and scores for kinds of photo, [n, NUM_KINDS]."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for num_in, num_out, side in ((3, 32, 6), (32, 64, 4)):
            layers += [nn.Conv2d(num_in, num_out, side, stride=side // 2), nn.GroupNorm(4, num_out), nn.GELU()]
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(64, NUM_KINDS)

    def forward(self, photos: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(functional.normalize(self.features(photos.float() / 255 - 0.5)))
        return scores


def dino_loss(student: list[torch.Tensor], teacher: list[torch.Tensor], center: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of each student's view with each other view of the teacher: scores [B, NUM_KINDS]."""
    losses = []
    for seen, target in enumerate(teacher):
        wanted = functional.softmax((target - center) / 0.04, dim=1)
        for number, scores in enumerate(student):
            if number != seen:
                losses.append(-(wanted * functional.log_softmax(scores / 0.1, dim=1)).sum(dim=1).mean())
    return torch.stack(losses).mean()


def train(index: Path) -> Encoder:
    """Train for some epochs; return the teacher."""
    views = mpload.Views(
        of="image",
        glob=(2, mpload.RandomResizedCrop(48, scale=(0.4, 1.0))),
        local=(8, mpload.RandomResizedCrop(24, scale=(0.05, 0.4))),
    )
    dataset = mpload.MPDataset(index, decode={"crops": views}, batch_size=24, shuffle=True, tail="drop")
    torch.manual_seed(0)
    student = Encoder()
    teacher = copy.deepcopy(student).requires_grad_(False)
    center = torch.zeros(NUM_KINDS)
    optimizer = torch.optim.AdamW(student.parameters(), lr=3e-3)
    with mpload.MPLoader(dataset, num_workers=2) as loader:
        for epoch in range(NUM_EPOCHS):
            for batch in loader:
                large, small = (
                    batch["crops"]["glob"],
                    batch["crops"]["local"],
                )  # uint8 [24, 2, 3, 48, 48] and [24, 8, ...]
                targets = teacher(large.flatten(0, 1)).unflatten(0, (-1, 2)).unbind(1)
                scores = student(large.flatten(0, 1)).unflatten(0, (-1, 2)).unbind(1)
                scores += student(small.flatten(0, 1)).unflatten(0, (-1, 8)).unbind(1)
                loss = dino_loss(list(scores), list(targets), center)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                center = 0.9 * center + 0.1 * torch.cat(targets).mean(dim=0)
                for mean, new in zip(teacher.parameters(), student.parameters(), strict=True):
                    mean.lerp_(new.detach(), 1 - MOMENTUM)
            print(f"epoch {epoch}: loss {loss.item():.2f}")
        print(f"{10 * loader.stats().samples_per_second:,.0f} views/s")
    return teacher


def purity(encoder: Encoder, index: Path) -> float:
    """Return the share of photos whose label is the most frequent one among the photos of the same kind."""
    dataset = mpload.MPDataset(index, decode=mpload.ResizeCenterCrop(48), batch_size=64, tail="ragged")
    counts = torch.zeros(NUM_KINDS, len(dataset.index.classes))
    for photos, labels in dataset:
        kinds = encoder(photos).argmax(dim=1)
        counts.index_put_((kinds, labels), torch.ones(len(labels)), accumulate=True)
    return float(counts.amax(dim=1).sum() / counts.sum())


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else make_photos(Path(name, "train"))
        index = Path(name, "train.txt")
        mpload.build_index(folder, index)
        teacher = train(index)
        with torch.no_grad():
            share = purity(teacher, index)
        print(f"{share:.0%} of the photos have the subject that is most frequent among photos of their kind")
        if len(sys.argv) == 1 and share < 0.4:
            raise SystemExit(f"for six subjects, the share should be at least 40%, but is {share:.0%}")


if __name__ == "__main__":
    main()
