"""Fixtures for the tests of loaders that ask servers."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the files of `tests.support.batches.numbers`."""
    return tmp_path_factory.mktemp("numbers")
