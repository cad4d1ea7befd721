"""Train with torchrun on two nodes, lose one in the middle of an epoch, and go on with the other: every sample once.

python examples/train_elastic.py
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from distributed_resume import numbered
from photos import make_photos
from torch.nn.parallel import DistributedDataParallel

import mpload

NUM_SAMPLES = 130
GLOBAL_BATCH = 12
STEPS_PER_CHECKPOINT = 2


def train(folder: Path) -> None:
    """Run one epoch as one rank, from the latest checkpoint on. With DIES_AT, die in that step, as a node does."""
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dies_at = int(os.environ.get("DIES_AT", "0"))
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    saved: dict[str, Any] = {"samples": [], "world_sizes": []}
    if (folder / "checkpoint").exists():
        saved = torch.load(folder / "checkpoint")
        model.load_state_dict(saved["model"])
    saved["world_sizes"].append(world_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    dataset = mpload.MPDataset(  # global batches do not depend on the number of ranks
        folder / "numbered.txt",
        decode=mpload.RandomResizedCrop(32),
        batch_size=GLOBAL_BATCH // world_size,
        tail="ragged",
        shuffle=True,
    )
    with mpload.MPLoader(dataset, num_workers=1) as loader:
        if "loader" in saved:
            loader.load_state_dict(saved["loader"])
        for step, (images, numbers) in enumerate(loader, 1):
            loss = model(images.float().mean(dim=(2, 3))).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            received: list[Any] = [None] * world_size
            dist.all_gather_object(received, numbers.tolist())
            saved["samples"] += chain.from_iterable(received)  # what a checkpoint contains was trained on
            if step == dies_at:
                os.kill(os.getppid(), signal.SIGKILL)  # torchrun on this node
                os.kill(os.getpid(), signal.SIGKILL)
            if step % STEPS_PER_CHECKPOINT == 0 and rank == 0:
                save(folder, saved | {"model": model.state_dict(), "loader": loader.state_dict()})
    if rank == 0:
        save(folder, saved)
    dist.destroy_process_group()


def save(folder: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint. A job that is killed meanwhile keeps the one before."""
    torch.save(state, folder / "checkpoint.tmp")
    (folder / "checkpoint.tmp").replace(folder / "checkpoint")


def node(folder: Path, port: int, *, is_host: bool, **environment: str) -> "subprocess.Popen[bytes]":
    """Start torchrun for one of two nodes. One node is enough. The first one keeps the list of nodes."""
    options = f"is_host={int(is_host)},last_call_timeout=10,keep_alive_interval=1"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3"]
    rendezvous = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-conf={options}"]
    return subprocess.Popen(
        [*torchrun, *rendezvous, __file__, str(folder)],
        env=os.environ | environment,
        stderr=subprocess.DEVNULL,  # of the rank that loses the other one
    )


def main() -> None:
    if len(sys.argv) > 1:
        train(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        index = numbered(mpload.build_index(make_photos(folder / "train", NUM_SAMPLES), folder / "train.txt"))
        with socket.create_server(("127.0.0.1", 0)) as unused:
            port = unused.getsockname()[1]
        with node(folder, port, is_host=True) as first, node(folder, port, is_host=False, DIES_AT="5") as second:
            if second.wait(240) != -signal.SIGKILL:
                raise SystemExit("the second node should have died")
            if first.wait(240):
                raise SystemExit("the first node did not go on")
        found = torch.load(folder / "checkpoint")
        alone = mpload.MPDataset(
            index, decode=mpload.RandomResizedCrop(32), batch_size=GLOBAL_BATCH, tail="ragged", shuffle=True
        )
        if found["samples"] != [number for _, numbers in alone for number in numbers.tolist()]:
            raise SystemExit("the job has lost or repeated samples")
        ranks = ", then ".join(map(str, found["world_sizes"]))
        print(f"ranks: {ranks}; all {len(found['samples'])} samples once, in the order of an uninterrupted run")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
