"""Kill a job on two ranks in the middle of an epoch, and resume it on three: it continues with the next sample.

python examples/distributed_resume.py
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from photos import make_photos

import mpload

GLOBAL_BATCH = 12


def train(index: Path, log: Path, checkpoint: Path, *, kill_after: int) -> None:
    """Run one epoch as one rank of a job and log the samples received; the last rank dies after `kill_after` steps."""
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dataset = mpload.MPDataset(
        index, decode=mpload.RandomResizedCrop(32), batch_size=GLOBAL_BATCH // world_size, tail="ragged", shuffle=True
    )
    with mpload.MPLoader(dataset, num_workers=1) as loader:
        if checkpoint.exists():
            loader.load_state_dict(json.loads(checkpoint.read_text()))
        for number, (images, sample_numbers) in enumerate(loader, 1):
            gathered: list[Any] = [None] * world_size
            dist.all_gather_object(gathered, (sample_numbers.tolist(), images.sum().item()))
            if rank == 0:
                with log.open("a") as file:
                    numbers = [sample for samples, _ in gathered for sample in samples]
                    file.write(json.dumps([numbers, sum(pixels for _, pixels in gathered)]) + "\n")
                checkpoint.write_text(json.dumps(loader.state_dict()))
            dist.barrier()
            if number == kill_after and rank == world_size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()


def launch(num_ranks: int, *arguments: object) -> int:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    return subprocess.run([*torchrun, __file__, *map(str, arguments)], check=False, capture_output=True).returncode


def numbered(index: Path) -> Path:
    """Write a copy of the index with each sample's number in place of its label."""
    lines = index.read_text().splitlines()
    body = [line for line in lines if not line.startswith("#")]
    head = [line for line in lines if line.startswith("#") and not line.startswith("#classes")]
    numbered_lines = [f"{line.partition(chr(9))[0]}\t{number}" for number, line in enumerate(body)]
    out = index.with_name("numbered.txt")
    out.write_text("\n".join([*head, *numbered_lines, ""]))
    return out


def main() -> None:
    if len(sys.argv) > 1:
        index, log, checkpoint = map(Path, sys.argv[1:4])
        train(index, log, checkpoint, kill_after=int(sys.argv[4]))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        numbered_index = numbered(mpload.build_index(make_photos(folder / "train", 130), folder / "train.txt"))
        if launch(1, numbered_index, folder / "whole.log", folder / "whole.json", 0):
            raise SystemExit("the uninterrupted run failed")
        if not launch(2, numbered_index, folder / "log", folder / "checkpoint.json", 4):
            raise SystemExit("the first run should have been killed")
        print("killed on 2 ranks:", (folder / "checkpoint.json").read_text())
        if launch(3, numbered_index, folder / "log", folder / "checkpoint.json", 0):
            raise SystemExit("the resumed run failed")
        whole, resumed = (folder / "whole.log").read_text(), (folder / "log").read_text()
        numbers = [number for line in resumed.splitlines() for number in json.loads(line)[0]]
        if whole != resumed or sorted(numbers) != list(range(130)):
            raise SystemExit("the resumed run repeated or skipped samples")
        print(f"resumed on 3 ranks: all {len(numbers)} samples once, in order and pixels like an uninterrupted run")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
