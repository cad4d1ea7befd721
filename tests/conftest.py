"""What all tests share."""

import os
from pathlib import Path

import pytest

from tests.photos import make_photo_tree


@pytest.fixture(scope="session")
def photo_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A class-per-folder tree of real photographs."""
    root = tmp_path_factory.mktemp("photos") / "train"
    make_photo_tree(root, num_images=24, num_classes=3, seed=0)
    return root


@pytest.fixture(autouse=True, scope="session")
def own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keep locks and sidecars of read-only folders out of the user's cache folder."""
    folder = tmp_path_factory.mktemp("cache")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where there is no accelerator, unless MPLOAD_REQUIRE_GPU=1 demands one."""
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting or os.environ.get("MPLOAD_REQUIRE_GPU") == "1":
        return
    import torch

    if not torch.accelerator.is_available():
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="no accelerator"))
