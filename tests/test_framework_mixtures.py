"""Weights of a mixture that change within real frameworks, and runs that resume around the change."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from mpload import Mixture, MPDataset, MPLoader, RawBytes
from tests.support.mixtures import mixed, samples, source

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux"),
]

NUM_BATCHES, NUM_EPOCHS = 10, 3
CHANGES = {3: (1, 1), 14: (0, 1)}
"""The number of batches after which the weights change, and the new weights."""
Make = Callable[[], MPDataset]


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    return [source(tmp_path, name, size, root="files") for name, size in (("a", 70), ("b", 9))]


@pytest.fixture
def weights(sources: list[Path]) -> dict[int, dict[Path, int]]:
    return {step: dict(zip(sources, values, strict=True)) for step, values in CHANGES.items()}


@pytest.fixture
def make(sources: list[Path]) -> Make:
    mixture = Mixture(dict(zip(sources, (1, 0), strict=True)), epoch_samples=12 * NUM_BATCHES)
    return lambda: mixed(mixture, batch_size=12, decode=RawBytes(as_array=True))


def _train(
    loader: Any, weights: Mapping[int, Any], *, done: int = 0, saved: Callable[[int], None] = lambda _: None
) -> Any:
    """Return the batches of the rest of a run; after each, the weights change where they have to, then it is saved."""
    found = []
    while done < NUM_BATCHES * NUM_EPOCHS:
        for batch in loader:
            found.append(samples([batch]))
            done += 1
            if done in weights:
                loader.set_weights(weights[done])
            saved(done)
    return found


def _whole(make: Make, weights: Mapping[int, Any]) -> Any:
    with MPLoader(make(), num_workers=0) as loader:
        return _train(loader, weights)


def test_lightning_changes_weights_and_resumes(tmp_path: Path, make: Make, weights: Mapping[int, Any]) -> None:
    pl = pytest.importorskip("pytorch_lightning")
    callbacks = pytest.importorskip("pytorch_lightning.callbacks")

    class Model(pl.LightningModule):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(1, 1)
            self.found: list[Any] = []

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            self.found.append(samples([batch]))
            made: torch.Tensor = self.linear(torch.ones(1, 1)).sum()
            return made

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-9)

    class Change(pl.Callback):  # type: ignore[misc,name-defined,unused-ignore]
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step in weights:
                trainer.train_dataloader.set_weights(weights[trainer.global_step])

    def fit(folder: Path, checkpoint: Path | None = None) -> list[Any]:
        saving = callbacks.ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)
        trainer = pl.Trainer(
            max_epochs=NUM_EPOCHS,
            default_root_dir=folder,
            accelerator="cpu",
            logger=False,
            callbacks=[saving, Change()],
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        model = Model()
        with MPLoader(make(), num_workers=1) as loader:
            trainer.fit(model, loader, ckpt_path=None if checkpoint is None else str(checkpoint))
        return model.found

    expected = _whole(make, weights)
    assert fit(tmp_path / "whole") == expected
    for step in (2, 3, 4, 10, 14, 15):
        assert fit(tmp_path / f"from-{step}", tmp_path / "whole" / f"step={step}.ckpt") == expected[step:], step


def test_accelerate_changes_weights_and_resumes(tmp_path: Path, make: Make, weights: Mapping[int, Any]) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    steps = (2, 3, 4, 10, 14, 15)

    def save(step: int) -> None:
        if step in steps:
            accelerator.save_state(str(tmp_path / f"{step}"))

    expected = _whole(make, weights)
    with MPLoader(make(), num_workers=2) as loader:
        assert _train(accelerator.prepare_data_loader(loader), weights, saved=save) == expected
    for step in steps:
        accelerator._dataloaders.clear()
        with MPLoader(make(), num_workers=1) as loader:
            prepared = accelerator.prepare_data_loader(loader)
            accelerator.load_state(str(tmp_path / f"{step}"))
            assert _train(prepared, weights, done=step) == expected[step:], step
    accelerator._dataloaders.clear()


def test_a_stock_loader_of_accelerate_takes_over_changed_weights(make: Make, weights: Mapping[int, Any]) -> None:
    accelerate = pytest.importorskip("accelerate")
    for dispatch in (True, False):
        accelerator = accelerate.Accelerator(
            cpu=True, dataloader_config=accelerate.DataLoaderConfiguration(dispatch_batches=dispatch)
        )
        for num_workers in (0, 1):
            dataset = make()
            loader = accelerator.prepare(DataLoader(dataset, batch_size=None, num_workers=num_workers))
            assert {name[0] for name, _ in samples(loader)} == {"a"}
            dataset.set_weights(weights[14])
            assert {name[0] for name, _ in samples(loader)} == {"b"}, (dispatch, num_workers)
            dataset.set_epoch(0)
