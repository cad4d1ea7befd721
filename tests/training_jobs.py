"""Training jobs of two processes, as `torchrun` starts them: `training_jobs.py FRAMEWORK INDEX OUT`.

Each rank writes which samples it received, epoch by epoch, as JSON.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mpload import MPDataset, MPLoader
from tests.decoders import number_in

NUM_EPOCHS = 2


def make_loader(index: str) -> MPLoader:
    dataset = MPDataset(index, decode=number_in, batch_size=4, shuffle=True, seed=7, tail="ragged")
    return MPLoader(dataset, num_workers=1)


def loss_of(model: nn.Module, numbers: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = model(numbers.float() if len(numbers) else torch.zeros(1, 1))
    return made.square().mean()


def torchrun(index: str) -> tuple[int, list[list[int]]]:
    """Train in the plain way: DistributedDataParallel over gloo."""
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    epochs: list[list[int]] = []
    with make_loader(index) as loader:
        for epoch in range(NUM_EPOCHS):
            loader.set_epoch(epoch)
            epochs.append([])
            for numbers, labels in loader:
                torch.autograd.backward(loss_of(model, numbers))
                optimizer.step()
                epochs[-1] += labels.tolist()
    rank = torch.distributed.get_rank()
    torch.distributed.destroy_process_group()
    return rank, epochs


def accelerate(index: str) -> tuple[int, list[list[int]]]:
    """Train with Accelerate."""
    from accelerate import Accelerator  # type: ignore[import-not-found,import-untyped,unused-ignore]

    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    epochs: list[list[int]] = []
    with make_loader(index) as own:
        model, optimizer, loader = accelerator.prepare(model, optimizer, own)
        for _ in range(NUM_EPOCHS):
            epochs.append([])
            for numbers, labels in loader:
                accelerator.backward(loss_of(model, numbers))
                optimizer.step()
                epochs[-1] += labels.tolist()
    rank = accelerator.process_index
    accelerator.end_training()
    return rank, epochs


def lightning(index: str) -> tuple[int, list[list[int]]]:
    """Train with Lightning, which validates a little before it begins."""
    import pytorch_lightning as pl  # type: ignore[import-not-found,unused-ignore]

    epochs: list[list[int]] = []

    class Model(pl.LightningModule):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(1, 1)
            self.num_validated = 0

        def on_train_epoch_start(self) -> None:
            epochs.append([])

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            numbers, labels = batch
            epochs[-1].extend(labels.tolist())
            return loss_of(self.model, numbers)

        def validation_step(self, batch: Any, _: int) -> None:
            self.num_validated += len(batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-9)

    model = Model()
    trainer = pl.Trainer(
        max_epochs=NUM_EPOCHS,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with make_loader(index) as loader, make_loader(index) as validation:
        trainer.fit(model, loader, validation)
    assert model.num_validated > 0
    rank = trainer.global_rank
    torch.distributed.destroy_process_group()
    return rank, epochs


if __name__ == "__main__":
    framework, index, out = sys.argv[1:]
    warnings.simplefilter("default")
    rank, epochs = {"torchrun": torchrun, "accelerate": accelerate, "lightning": lightning}[framework](index)
    Path(out, f"{rank}.json").write_text(json.dumps(epochs))
