"""Fixtures for the tests of the index."""

import pytest

from mpload import Index, open_index
from mpload.index.lookup import BATCH_ROWS
from tests.support.index_texts import make_text


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """An index with three record batches, the last of them short."""
    return open_index(make_text(tmp_path_factory.mktemp("large") / "train.txt", 2 * BATCH_ROWS + 12_345))


@pytest.fixture(autouse=True)
def own_cache_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a cache folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
