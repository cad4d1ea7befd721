"""The folder of a pack belongs to one pack and one process at a time."""

from pathlib import Path

import pytest

from mpload import open_index
from mpload.errors import ArgumentError, StorageError
from mpload.tools.pack.packing import PackOptions, _Packer, pack_index, verify_pack


@pytest.fixture
def index(tmp_path: Path) -> Path:
    made = tmp_path / "all.txt"
    for number in range(3):
        (tmp_path / f"{number}.bin").write_bytes(b"text")
    made.write_text("".join(f"{number}.bin {number}\n" for number in range(3)))
    return made


def test_another_pack_that_begins_at_the_same_time_changes_nothing(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "pack"
    refused: list[str] = []

    def estimated_while_another_begins(_: object) -> float:
        patch.undo()
        try:
            pack_index(index, out, PackOptions(shuffle_seed=1))
        except StorageError as error:
            refused.append(str(error))
        return 2000.0

    with monkeypatch.context() as patch:
        patch.setattr(_Packer, "mean_bytes", estimated_while_another_begins)
        pack_index(index, out)
    assert refused == [f"{out}: another process is packing into this folder. Wait until it ends"]
    verify_pack(index, out)


def test_nothing_is_written_to_a_folder_of_something_else(index: Path, tmp_path: Path) -> None:
    open_index(index)  # which writes its sidecar
    before = set(tmp_path.iterdir())
    with pytest.raises(ArgumentError, match="is not empty and contains no pack"):
        pack_index(index, tmp_path)
    assert set(tmp_path.iterdir()) == before


def test_a_folder_that_cannot_be_locked_is_named(index: Path, tmp_path: Path) -> None:
    out = tmp_path / "pack"
    (out / ".lock").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"pack: cannot be written: .*\. Choose a writable folder"):
        pack_index(index, out)
