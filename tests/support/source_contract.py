"""The contract of all sources, as a class of tests that is subclassed for each kind of source."""

from pathlib import Path

import pytest

from mpload import MPDataset, RawBytes, Sequential, Topology, build_index, open_index
from mpload.errors import MploadError
from mpload.index.columns import path_of
from tests.support.sources import samples

__all__ = ["SourceContract"]


def contents(index: Path) -> list[tuple[bytes, int]]:
    return list(MPDataset(index, decode=RawBytes(), shuffle=Sequential(), topology=Topology()))


class SourceContract:
    """Tests for one kind of source.

    Subclasses have a fixture `source`, which contains the photos of the fixture `folder`, and the expected `columns`.
    """

    columns: str

    @pytest.mark.processes
    def test_each_sample_occurs_once_with_its_label(self, source: Path, folder: Path, tmp_path: Path) -> None:
        made = build_index(source, tmp_path / "a.txt")
        assert contents(made) == [(data, label) for _, data, label in samples(folder)]
        assert " ".join(map(str, open_index(made).columns)) == self.columns

    @pytest.mark.processes
    def test_the_same_source_gives_the_same_index(self, source: Path, tmp_path: Path) -> None:
        first, second = (build_index(source, tmp_path / name).read_bytes() for name in ("a.txt", "b.txt"))
        assert first == second

    @pytest.mark.processes
    def test_the_root_may_be_a_parent_of_the_source(self, source: Path, folder: Path, tmp_path: Path) -> None:
        index = open_index(build_index(source, tmp_path / "a.txt", root=folder.parent))
        assert index.root == str(folder.parent)
        assert all(Path(index.root, path_of(record.cells[0])).is_relative_to(folder) for record in index)
        assert contents(index.path) == [(data, label) for _, data, label in samples(folder)]

    def test_a_root_that_does_not_contain_the_source_is_refused(self, source: Path, tmp_path: Path) -> None:
        with pytest.raises(MploadError):
            build_index(source, tmp_path / "a.txt", root=tmp_path / "elsewhere")
        assert not list(tmp_path.iterdir())

    @pytest.mark.processes
    def test_columns_can_be_renamed_but_not_retyped(self, source: Path, tmp_path: Path) -> None:
        renamed = self.columns.replace("label", "species")
        made = build_index(source, tmp_path / "a.txt", columns=renamed)
        assert " ".join(map(str, open_index(made).columns)) == renamed
        with pytest.raises(MploadError):
            build_index(source, tmp_path / "b.txt", columns=f"{renamed} more:int")
        assert not (tmp_path / "b.txt").exists()

    @pytest.mark.processes
    def test_the_parts_of_a_split_contain_every_sample_once(self, source: Path, folder: Path, tmp_path: Path) -> None:
        parts = build_index(source, tmp_path / "a.txt", split={"train": 0.7, "val": 0.3})
        found = [sample for part in parts for sample in contents(part)]
        assert sorted(found) == sorted((data, label) for _, data, label in samples(folder))

    def test_a_missing_source_is_named_and_leaves_no_file(self, source: Path, tmp_path: Path) -> None:
        gone = source.with_name(f"gone-{source.name}")
        with pytest.raises(MploadError, match=gone.name):
            build_index(gone, tmp_path / "a.txt")
        assert not list(tmp_path.iterdir())
