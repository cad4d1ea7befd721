"""Fixtures for the tests of datasets and loaders."""

from pathlib import Path

import pytest
import torch

from mpload import build_index


@pytest.fixture(autouse=True, scope="session")
def data_loaders_end_soon() -> None:
    """Have a stock DataLoader wait 1 s instead of 5 for each worker that does not end after its dataset has raised."""
    torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 1.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the files of `tests.support.batches.numbers`."""
    return tmp_path_factory.mktemp("numbers")


@pytest.fixture(scope="session")
def photos(photo_tree: Path) -> Path:
    """An index of the tree of photographs."""
    return build_index(photo_tree, photo_tree.with_name("loader.txt"))
