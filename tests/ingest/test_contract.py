"""Every kind of source fulfils the contract of sources."""

from pathlib import Path

import pytest

from tests.support.source_contract import SourceContract
from tests.support.sources import make_photos, make_source


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    make_photos(folder)
    return folder


class OfAKind(SourceContract):
    kind: str

    @pytest.fixture
    def source(self, folder: Path) -> Path:
        return Path(make_source(self.kind, folder))


class TestFolder(OfAKind):
    kind, columns = "files", "image:path label:int"


class TestList(OfAKind):
    kind, columns = "list", "image:path label:int"


class TestTar(OfAKind):
    kind, columns = "tar", "image:span label:int"


class TestLmdb(OfAKind):
    kind, columns = "lmdb", "image:lmdb label:int"


class TestTfRecord(OfAKind):
    kind, columns = "tfrecord", "image:span label:int"


class TestArrow(OfAKind):
    kind, columns = "arrow", "image:span label:int"


class TestParquet(OfAKind):
    kind, columns = "parquet", "image:row label:int"
