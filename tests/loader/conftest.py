"""Fixtures for the tests of datasets and loaders."""

from pathlib import Path

import pytest

from mpload import build_index


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the files of `tests.support.batches.numbers`."""
    return tmp_path_factory.mktemp("numbers")


@pytest.fixture(scope="session")
def photos(photo_tree: Path) -> Path:
    """An index of the tree of photographs."""
    return build_index(photo_tree, photo_tree.with_name("loader.txt"))
