"""Fixtures for the tests of servers."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mpload import MPDataset, build_index
from tests.support.batches import numbers


@pytest.fixture
def dataset(tmp_path: Path) -> Callable[[], MPDataset[Any]]:
    """A function that opens a dataset of 100 numbers."""
    return partial(numbers, tmp_path, 100)


@pytest.fixture(scope="module")
def photos(photo_tree: Path) -> Path:
    """An index of the tree of photographs."""
    return build_index(photo_tree, photo_tree.with_name("served.txt"))
