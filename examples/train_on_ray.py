"""Train with Ray Train on two nodes, lose one in the middle of an epoch, and go on with the other: every sample once.

pip install 'ray[train]' && python examples/train_on_ray.py
"""

import json
import os
import secrets
import tempfile
import threading
import time
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import torch.distributed as dist
from distributed_resume import numbered
from photos import make_photos

import mpload

NUM_SAMPLES = 130
GLOBAL_BATCH = 12
STEPS_PER_CHECKPOINT = 2
LOST_AT = 5


def train(options: dict[str, str]) -> None:
    """Run one epoch as one rank, from the latest checkpoint on."""
    from ray import train as ray_train

    folder, rank, world_size = Path(options["folder"]), dist.get_rank(), dist.get_world_size()
    saved: dict[str, Any] = {"samples": [], "world_sizes": []}
    if (checkpoint := ray_train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as name:
            saved = json.loads(Path(name, "state.json").read_text())
    saved["world_sizes"].append(world_size)
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
        for step, (_, numbers) in enumerate(loader, 1):  # here a model would train
            received: list[Any] = [None] * world_size
            dist.all_gather_object(received, numbers.tolist())
            saved["samples"] += chain.from_iterable(received)
            if world_size == 2 and step == LOST_AT:
                (folder / "middle").touch()
                time.sleep(240)  # until the other node dies
            if step % STEPS_PER_CHECKPOINT == 0:
                report(saved | {"loader": loader.state_dict()}, rank=rank)
        report(saved, rank=rank)


def report(state: dict[str, Any], *, rank: int) -> None:
    """Give Ray a checkpoint, from the first rank: the state is the same on all. A real one contains the model too."""
    from ray import train as ray_train

    with tempfile.TemporaryDirectory() as name:
        Path(name, "state.json").write_text(json.dumps(state))
        ray_train.report({}, checkpoint=ray_train.Checkpoint.from_directory(name) if rank == 0 else None)


def main() -> None:
    if find_spec("ray") is None:
        print("Ray is not installed: pip install 'ray[train]'")
        return
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}  # nobody else may use the cluster
    os.environ |= {"PYTHONPATH": str(Path(__file__).parent), "RAY_USAGE_STATS_ENABLED": "0"}
    import ray
    from ray.cluster_utils import Cluster
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        index = numbered(mpload.build_index(make_photos(folder / "train", NUM_SAMPLES), folder / "train.txt"))
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        second = cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False)

        def lose_node() -> None:
            while not (folder / "middle").exists():
                time.sleep(0.1)
            cluster.remove_node(second, allow_graceful=False)

        threading.Thread(target=lose_node, daemon=True).start()
        trainer = TorchTrainer(
            train,
            train_loop_config={"folder": name},
            scaling_config=ScalingConfig(num_workers=(1, 2)),  # type: ignore[arg-type,unused-ignore]
            run_config=RunConfig(storage_path=str(folder / "runs"), failure_config=FailureConfig(max_failures=3)),
        )
        checkpoint = trainer.fit().checkpoint
        ray.shutdown()
        cluster.shutdown()  # type: ignore[no-untyped-call,unused-ignore]
        assert checkpoint is not None
        found = json.loads(Path(checkpoint.path, "state.json").read_text())
        alone = mpload.MPDataset(
            index, decode=mpload.RandomResizedCrop(32), batch_size=GLOBAL_BATCH, tail="ragged", shuffle=True
        )
        if found["samples"] != [number for _, numbers in alone for number in numbers.tolist()]:
            raise SystemExit("the job has lost or repeated samples")
        ranks = ", then ".join(map(str, found["world_sizes"]))
        print(f"ranks: {ranks}; all {len(found['samples'])} samples once, in the order of an uninterrupted run")


if __name__ == "__main__":
    main()
