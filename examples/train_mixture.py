"""Train on a mixture of two indexes, raise the weight of one in the middle of the run, and resume after the change.

python examples/train_mixture.py                          # makes photographs of two kinds
python examples/train_mixture.py photos.txt art.txt       # mixes indexes of your own
"""

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
from photos import make_photos

import mpload


def make_dataset(sources: list[str]) -> mpload.MPDataset[dict[str, torch.Tensor]]:
    """Return a dataset of 70 % and 30 %, in epochs of 640 samples."""
    mixture = mpload.Mixture(
        {sources[0]: 0.7, sources[1]: 0.3}, epoch_samples=640, match_classes=True, source_column="source"
    )
    return mpload.MPDataset(
        mixture, decode=mpload.RandomResizedCrop(64), batch_size=32, shuffle=True, seed=7, as_dict=True
    )


def shares(batches: list[dict[str, torch.Tensor]]) -> dict[int, float]:
    """Return the share of each source."""
    counts = Counter(source for batch in batches for source in batch["source"].tolist())
    return {source: round(count / counts.total(), 3) for source, count in sorted(counts.items())}


def main(sources: list[str]) -> None:
    dataset = make_dataset(sources)
    with mpload.MPLoader(dataset, num_workers=2) as loader:
        batches = []
        for batch in loader:
            batches.append(batch)  # train here
            if len(batches) == 10:
                state = loader.state_dict()
                break
        print("the first half of the epoch:", shares(batches))

        loader.load_state_dict(state)
        dataset.set_weights({sources[0]: 0.2, sources[1]: 0.8})
        stored = json.dumps(loader.state_dict())
        rest = list(loader)
        print("the second half:", shares(rest))

    with mpload.MPLoader(make_dataset(sources), num_workers=2) as loader:
        loader.load_state_dict(json.loads(stored))
        again = list(loader)
    is_same = all((one["image"] == other["image"]).all() for one, other in zip(rest, again, strict=True))
    print(f"resumed from {len(stored)} bytes:", "the same samples" if is_same else "OTHER SAMPLES")
    if not is_same:
        raise SystemExit(1)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        main(sys.argv[1:3])
    else:
        with tempfile.TemporaryDirectory() as folder:
            made = []
            for name in ("photos", "art"):
                index = Path(folder) / f"{name}.txt"
                made.append(str(mpload.build_index(make_photos(Path(folder) / name), index)))
            main(made)
