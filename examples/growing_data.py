"""Kill a job in the middle of an epoch, let its data grow, and resume it: the epoch ends over the samples that it had.

python examples/growing_data.py
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from photos import make_photos

import mpload

NUM_EPOCHS = 3


def train(index: Path, log: Path, checkpoint: Path, *, kill_after: int) -> None:
    """Run three epochs, and log the epoch and pixels of each sample. Die after `kill_after` steps, unless it is 0."""
    dataset = mpload.MPDataset(
        index, decode={"image": mpload.RandomResizedCrop(32)}, batch_size=8, tail="ragged", shuffle=True
    )
    with mpload.MPLoader(dataset, num_workers=2) as loader, log.open("a") as file:
        if checkpoint.exists():
            loader.load_state_dict(json.loads(checkpoint.read_text()))
        while (epoch := dataset.epoch) < NUM_EPOCHS:
            for batch in loader:
                file.writelines(f"{epoch} {pixels}\n" for pixels in batch["image"].sum((1, 2, 3)).tolist())
                file.flush()
                checkpoint.write_text(json.dumps(loader.state_dict()))
                kill_after -= 1
                if kill_after == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            dataset.refresh()  # takes over what was appended in the meantime


def launch(*arguments: object) -> int:
    return subprocess.run([sys.executable, __file__, *map(str, arguments)], check=False).returncode


def samples_in(log: Path) -> list[int]:
    """Return the number of samples of each epoch."""
    counts = Counter(line.split()[0] for line in log.read_text().splitlines())
    return [counts[str(epoch)] for epoch in range(NUM_EPOCHS)]


def first_epoch_of(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if line.startswith("0 ")]


def main() -> None:
    if len(sys.argv) > 1:
        index, log, checkpoint = map(Path, sys.argv[1:4])
        train(index, log, checkpoint, kill_after=int(sys.argv[4]))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        index = mpload.build_index(make_photos(folder / "train", 60), folder / "train.txt")
        launch(index, folder / "whole.log", folder / "whole.json", 0)
        launch(index, folder / "job.log", folder / "job.json", 4)
        print("killed after 4 batches:", (folder / "job.json").read_text())
        make_photos(folder / "train", 90)
        found = mpload.append_to_index(folder / "train", index)
        print(f"appended {found.num_new} samples, now {found.num_samples}")
        launch(index, folder / "job.log", folder / "job.json", 0)
        print("samples of each epoch:", samples_in(folder / "job.log"))
        if first_epoch_of(folder / "job.log") != first_epoch_of(folder / "whole.log"):
            sys.exit("the first epoch differs from that of a job that was never killed")
        print("first epoch: the same samples and crops, in the same order, as in a job that was never killed")


if __name__ == "__main__":
    main()
