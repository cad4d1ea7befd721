"""Train an embedding with a contrastive loss: every batch has P classes with K samples each.

python examples/train_metric.py                  # makes photos of a few classes
python examples/train_metric.py train.txt        # an index of your own, with a column of integers called label
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
from photos import make_photos
from torch.nn import functional

import mpload

NUM_CLASSES, NUM_SAMPLES = 2, 4


def contrastive_loss(embedded: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss of Khosla et al., "Supervised Contrastive Learning", for embeddings [B, D] and labels [B]."""
    similar = embedded @ embedded.T / 0.1
    itself = torch.eye(len(labels), dtype=torch.bool)
    log_shares = similar.masked_fill(itself, -torch.inf).log_softmax(dim=1)
    is_positive = (labels[:, None] == labels) & ~itself
    return -log_shares[is_positive].mean()


def main(index: mpload.Index) -> None:
    dataset: mpload.MPDataset[tuple[torch.Tensor, torch.Tensor]] = mpload.MPDataset(
        index,
        decode=mpload.RandomResizedCrop(32),
        batch_size=NUM_CLASSES * NUM_SAMPLES,
        shuffle=mpload.PKBatches("label", classes_per_batch=NUM_CLASSES, samples_per_class=NUM_SAMPLES, min_samples=2),
    )
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 16))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with mpload.MPLoader(dataset, num_workers=2) as loader:
        for epoch in range(2):
            for images, labels in loader:
                counts = Counter(labels.tolist())
                if [*counts.values()] != [NUM_SAMPLES] * NUM_CLASSES:
                    raise SystemExit(f"the classes of a batch have {counts} samples")
                embedded = functional.normalize(model(images.contiguous().float() / 255), dim=1)
                loss = contrastive_loss(embedded, labels)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            print(f"epoch {epoch}: {len(loader)} batches of {NUM_CLASSES} classes, loss {loss.item():.2f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(mpload.open_index(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            made = mpload.build_index(make_photos(Path(folder, "train"), 60), Path(folder, "train.txt"))
            main(mpload.open_index(made))
