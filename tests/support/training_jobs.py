"""Training jobs of one or two processes inside real frameworks: `training_jobs.py FRAMEWORK FOLDER`.

`FOLDER` holds indexes of 43 and of 48 numbers. Each rank writes the samples it received as JSON: for each way to train,
a list of epochs. An epoch that was interrupted and resumed counts as one.
"""

import json
import os
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from mpload import MPDataset, MPLoader, Topology
from mpload.errors import ArgumentError, StateError
from tests.support.decoders import number_in

NUM_EPOCHS = 2
Epochs = list[list[int]]
Result = tuple[int, dict[str, Epochs]]


def dataset(folder: Path, num_samples: int = 43, **options: Any) -> MPDataset:
    options = {"batch_size": 4, "shuffle": True, "seed": 7, "tail": "ragged", **options}
    return MPDataset(folder / f"{num_samples}.txt", decode=number_in, **options)


def make_loader(folder: Path, num_samples: int = 43, **options: Any) -> MPLoader:
    return MPLoader(dataset(folder, num_samples, **options), num_workers=1)


def loss_of(model: nn.Module, numbers: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = model(numbers.float() if len(numbers) else torch.zeros(1, 1))
    return made.square().mean()


def labels_of(batches: Iterable[Any]) -> list[int]:
    return [label for _, labels in batches for label in labels.tolist()]


def torchrun(folder: Path) -> Result:
    """Train with DistributedDataParallel over gloo, with a loader that was made before the process group."""
    with make_loader(folder) as loader:
        assert len(loader) > 0
        if "RANK" in os.environ:  # hide the rank until there is a process group
            rank, world_size = os.environ.pop("RANK"), os.environ.pop("WORLD_SIZE")
            assert loader._first_place == 0
            os.environ.update(RANK=rank, WORLD_SIZE=world_size)
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
        epochs: Epochs = []
        for epoch in range(NUM_EPOCHS):
            loader.set_epoch(epoch)
            epochs.append([])
            for numbers, labels in loader:
                torch.autograd.backward(loss_of(model, numbers))
                optimizer.step()
                epochs[-1] += labels.tolist()
    rank_of_process = torch.distributed.get_rank()
    torch.distributed.destroy_process_group()
    return rank_of_process, {"MPLoader": epochs}


def accelerate(folder: Path) -> Result:
    """Train with Accelerate, which leaves an MPLoader unchanged, but distributes a DataLoader's samples over ranks."""
    from accelerate import Accelerator, skip_first_batches  # type: ignore[import-not-found,import-untyped,unused-ignore]

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    found: dict[str, Epochs] = {}
    with make_loader(folder) as own:
        model = nn.Linear(1, 1)
        model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-9), own)
        epochs: Epochs = []
        for _ in range(NUM_EPOCHS):
            epochs.append([])
            stepped = []
            for numbers, labels in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(loss_of(model, numbers))
                    optimizer.step()
                    stepped.append(accelerator.sync_gradients)
                epochs[-1] += labels.tolist()
            last = len(loader) - 1
            assert stepped == [number % 4 == 3 or number == last for number in range(last + 1)], stepped
        found["MPLoader"] = epochs
        with pytest.raises(AttributeError, match=r"skip batches by load_state_dict\(\)"):
            skip_first_batches(loader, 2)

    with make_loader(folder, tail="pad") as padded:  # with two ranks, the last batch repeats samples
        gathered = [accelerator.gather_for_metrics(labels).tolist() for _, labels in padded]
        together = [label for labels in gathered for label in labels]
        assert sorted(together) == list(range(43)), gathered
    found |= accelerate_resumed(accelerator, folder)
    for dispatch, options in ((True, {}), (False, {"batch_size": None})):
        accelerator.dataloader_config.dispatch_batches = dispatch
        for num_workers in (0, 1):
            dealt = dataset(folder, 48, **options)
            stock = DataLoader(dealt, batch_size=4 if options else None, num_workers=num_workers)
            loader = accelerator.prepare(stock)
            assert len(loader) == 12 // accelerator.num_processes, len(loader)
            epochs = [labels_of(loader)]
            loader.set_epoch(1)
            before = []
            for _, labels in loader:
                before += labels.tolist()
                if len(before) == 8:
                    break
            rest = skip_first_batches(loader, 2)
            rest.set_epoch(1)
            epochs.append(before + labels_of(rest))
            found[f"DataLoader dispatch={dispatch} workers={num_workers}"] = epochs
            with pytest.raises(StateError, match="Accelerate"):
                dealt.state_dict()
            restored = dataset(folder, 48, **options)
            restored.load_state_dict({**restored.state_dict(), "epoch": 1, "position": 8 * accelerator.num_processes})
            loader = accelerator.prepare(DataLoader(restored, batch_size=4 if options else None))
            with pytest.raises(StateError, match=r"a position in epoch 1, .* set_epoch\(1\)"):
                next(iter(loader))
            loader.set_epoch(1)
            found[f"DataLoader dispatch={dispatch} workers={num_workers}, restored"] = [before + labels_of(loader)]
        if accelerator.num_processes > 1:
            topology = Topology(rank=accelerator.process_index, world_size=2)
            twice = accelerator.prepare(DataLoader(dataset(folder, 48, topology=topology, **options)))
            with pytest.raises(ArgumentError, match="also splits the samples among the ranks"):
                len(twice)
    rank = accelerator.process_index
    accelerator.end_training()
    return rank, found


def accelerate_resumed(accelerator: Any, folder: Path) -> dict[str, Epochs]:
    """Leave an epoch after `save_state`, and continue it with `load_state` and another loader."""
    found = {}
    for way in ("register_for_checkpointing", "prepare_data_loader"):
        with make_loader(folder) as first, make_loader(folder) as second:
            getattr(accelerator, way)(first)
            epochs = [labels_of(first), []]
            for number, (_, labels) in enumerate(first):
                epochs[-1] += labels.tolist()
                if number == 1:
                    accelerator.save_state(str(folder / way))
                    break
            accelerator.wait_for_everyone()
            accelerator._custom_objects.clear()
            accelerator._dataloaders.clear()
            getattr(accelerator, way)(second)
            accelerator.load_state(str(folder / way))
            epochs[-1] += labels_of(second)
            found[way] = [*epochs, labels_of(second)]
            accelerator._custom_objects.clear()
            accelerator._dataloaders.clear()
    return found


def lightning(folder: Path) -> Result:
    """Train with Lightning, with loaders made before the process group, and resume in the middle of an epoch."""
    import pytorch_lightning as pl  # type: ignore[import-not-found,unused-ignore]
    from pytorch_lightning.callbacks import ModelCheckpoint  # type: ignore[import-not-found,unused-ignore]

    num_devices = int(os.environ["NUM_DEVICES"])
    found: dict[str, Epochs] = {}

    class Model(pl.LightningModule):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(1, 1)
            self.epochs: dict[int, list[int]] = {}
            self.num_validated = 0

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            numbers, labels = batch
            self.epochs.setdefault(self.current_epoch, []).extend(labels.tolist())
            return loss_of(self.model, numbers)

        def validation_step(self, batch: Any, _: int) -> None:
            self.num_validated += len(batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-9)

    def trainer_of(folder: Path) -> Any:
        saving = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)
        return pl.Trainer(
            max_epochs=3,
            accelerator="cpu",
            devices=num_devices,
            strategy="ddp" if num_devices > 1 else "auto",
            logger=False,
            callbacks=[saving],
            enable_progress_bar=False,
            enable_model_summary=False,
        )

    loaders = [make_loader(folder) for _ in range(3)]
    validation = make_loader(folder, shuffle=False)
    model, trainer = Model(), trainer_of(folder / "first")
    trainer.fit(model, loaders[0], validation)
    assert model.num_validated > 0
    steps = len(loaders[0])
    whole = model.epochs
    found["MPLoader"] = [whole[epoch] for epoch in range(3)]
    for loader, step in zip(
        loaders[1:], (steps + 2, 2 * steps), strict=True
    ):  # in the middle of epoch 1, and at its last batch
        resumed, trainer = Model(), trainer_of(folder / f"resumed-{step}")
        trainer.fit(resumed, loader, validation, ckpt_path=str(folder / "first" / f"step={step}.ckpt"))
        done = whole[1][: 4 * (step - steps)]
        found[f"resumed at step {step}"] = [done + resumed.epochs.get(1, []), resumed.epochs[2]]
    for loader in (*loaders, validation):
        loader.close()
    rank = trainer.global_rank
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return rank, found


def fabric(folder: Path) -> Result:
    """Train with Fabric, which accepts stock DataLoaders only, and saves objects that have a `state_dict`."""
    from lightning_fabric import Fabric  # type: ignore[import-not-found,import-untyped,unused-ignore]

    num_devices = int(os.environ.get("WORLD_SIZE", "1"))
    run = Fabric(accelerator="cpu", devices=num_devices, strategy="ddp" if num_devices > 1 else "auto")
    run.launch()
    found = {}
    for num_workers in (0, 1):
        stock = DataLoader(dataset(folder), batch_size=None, num_workers=num_workers)
        loader = run.setup_dataloaders(stock)
        found[f"DataLoader {num_workers}"] = [labels_of(loader) for _ in range(NUM_EPOCHS)]
    with make_loader(folder) as first, make_loader(folder) as second:
        epochs = [labels_of(first), []]
        for number, (_, labels) in enumerate(first):
            epochs[-1] += labels.tolist()
            if number == 1:
                run.save(folder / "fabric.ckpt", {"loader": first})
                break
        run.load(folder / "fabric.ckpt", {"loader": second})
        epochs[-1] += labels_of(second)
        found["MPLoader"] = [*epochs, labels_of(second)]
    return run.global_rank, found


class Numbers(nn.Module):
    """A model that the Hugging Face Trainer accepts; it records the labels of its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self.labels: list[list[int]] = []

    def forward(
        self, number: torch.Tensor, label: torch.Tensor | None = None, labels: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        given = labels if label is None else label  # the Trainer's own collator renames it
        assert given is not None
        self.labels.append(given.tolist())
        return {"loss": loss_of(self.linear, number)}


def transformers(folder: Path) -> Result:
    """Train with the Hugging Face Trainer, from a dataset and from an MPLoader; resume each within an epoch."""
    import transformers as hf  # type: ignore[import-not-found,import-untyped,unused-ignore]

    found: dict[str, Epochs] = {}

    def arguments(name: str, **options: Any) -> Any:
        return hf.TrainingArguments(
            str(folder / name),
            num_train_epochs=3,
            per_device_train_batch_size=4,
            save_steps=1,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
            learning_rate=1e-9,
            **options,
        )

    class State(hf.TrainerCallback):  # type: ignore[misc,unused-ignore]
        """Keeps the loader's state in each checkpoint: `Trainer(..., callbacks=[State(loader)])`."""

        def __init__(self, loader: MPLoader) -> None:
            self.loader = loader

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            path = Path(args.output_dir, f"checkpoint-{state.global_step}", "mpload.json")
            path.write_text(json.dumps(self.loader.state_dict()))

    class Trainer(hf.Trainer):  # type: ignore[misc,unused-ignore]
        loader: MPLoader

        def get_train_dataloader(self) -> Any:
            return self.loader

    def epochs_of(model: Numbers, steps: int, before: Epochs) -> Epochs:
        batches = [*before, *model.labels]
        epochs = [batches[first : first + steps] for first in range(0, len(batches), steps)]
        return [[label for batch in epoch for label in batch] for epoch in epochs]

    def dealt() -> MPDataset:
        return dataset(folder, 48, batch_size=None, as_dict=True)

    model = Numbers()
    trainer = hf.Trainer(model, args=arguments("whole"), train_dataset=dealt())
    trainer.train()
    steps = 12 // trainer.args.world_size
    whole = model.labels
    found["train_dataset"] = epochs_of(model, steps, [])
    model = Numbers()
    trainer = hf.Trainer(model, args=arguments("again"), train_dataset=dealt())
    trainer.train(resume_from_checkpoint=str(folder / "whole" / f"checkpoint-{steps + 2}"))
    found["train_dataset, resumed"] = epochs_of(model, steps, whole[: steps + 2])

    whole_model, again = Numbers(), Numbers()
    with make_loader(folder, 48, as_dict=True) as first, make_loader(folder, 48, as_dict=True) as second:
        own = Trainer(whole_model, args=arguments("own"), callbacks=[State(first)])
        own.loader = first
        own.train()
        found["MPLoader"] = epochs_of(whole_model, steps, [])
        checkpoint = folder / "own" / f"checkpoint-{steps + 2}"
        own = Trainer(again, args=arguments("own-again", ignore_data_skip=True), callbacks=[State(second)])
        own.loader = second
        second.load_state_dict(json.loads((checkpoint / "mpload.json").read_text()))
        own.train(resume_from_checkpoint=str(checkpoint))
        found["MPLoader, resumed"] = epochs_of(again, steps, whole_model.labels[: steps + 2])
    rank = trainer.args.process_index
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return rank, found


def ray(folder: Path) -> None:
    """Train with Ray Train; its workers write the samples they receive."""
    import ray as cluster  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from ray.train import RunConfig, ScalingConfig  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from ray.train.torch import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
        TorchTrainer,
        prepare_data_loader,
    )

    def train() -> None:
        found = {}
        with make_loader(folder) as loader:
            epochs = []
            for epoch in range(NUM_EPOCHS):
                loader.set_epoch(epoch)
                epochs.append(labels_of(loader))
            found["MPLoader"] = epochs
            with pytest.raises(AttributeError, match=r"skip batches by load_state_dict\(\)"):
                prepare_data_loader(loader)  # type: ignore[arg-type,unused-ignore]  # what a user may try
        stock = prepare_data_loader(DataLoader(dataset(folder), batch_size=None, num_workers=1))
        found["DataLoader"] = [labels_of(stock) for _ in range(NUM_EPOCHS)]
        write(folder, torch.distributed.get_rank(), found)

    cluster.init(address="local", num_cpus=3, include_dashboard=False)  # and no cluster that already runs here
    trainer = TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(storage_path=str(folder / "ray")),
    )
    trainer.fit()
    cluster.shutdown()


def write(folder: Path, rank: int, found: dict[str, Epochs]) -> None:
    (folder / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    framework, folder = sys.argv[1], Path(sys.argv[2])
    warnings.simplefilter("default")
    if framework == "ray":
        ray(folder)
    else:
        jobs = {
            "torchrun": torchrun,
            "accelerate": accelerate,
            "lightning": lightning,
            "fabric": fabric,
            "transformers": transformers,
        }
        write(folder, *jobs[framework](folder))
