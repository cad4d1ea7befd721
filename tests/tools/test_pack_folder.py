"""The folder of a pack belongs to one pack and one process at a time."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mpload import open_index
from mpload.errors import ArgumentError, StorageError
from mpload.tools.pack.packing import PackOptions, ShardFormat, _Packer, pack_index, verify_pack


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


@pytest.mark.parametrize("work", [pack_index, verify_pack])
@pytest.mark.parametrize("out", ["s3://bucket/pack", Path("s3://bucket/pack")])
def test_a_pack_is_not_written_to_a_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Callable[..., object], out: str | Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=r"^s3://bucket/pack: shards are written to a local folder"):
        work(tmp_path / "missing.txt", out)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_locked_is_named(index: Path, tmp_path: Path) -> None:
    out = tmp_path / "pack"
    (out / ".lock").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"pack: cannot be written: .*\. Choose a writable folder"):
        pack_index(index, out)


@pytest.mark.parametrize("shard_format", [ShardFormat.TAR, ShardFormat.ARRAYS])
def test_shards_of_a_finished_pack_that_are_missing_or_truncated_are_made_again(
    tmp_path: Path, shard_format: ShardFormat
) -> None:
    for number in range(6):
        np.save(tmp_path / f"{number}.npy", np.full(64, number))
    index, out = tmp_path / "all.txt", tmp_path / "pack"
    index.write_text("".join(f"{number}.npy {number}\n" for number in range(6)))
    options = PackOptions(format=shard_format, shard_bytes=512)
    pack_index(index, out, options)
    shards = sorted(out.glob("shard-*"))
    assert len(shards) >= 3
    before = {path: path.read_bytes() for path in out.iterdir() if path.name != ".lock"}
    whole = shards[-1].stat().st_mtime_ns
    shards[0].unlink()
    with shards[1].open("r+b") as file:
        file.truncate(len(before[shards[1]]) - 1)
    pack_index(index, out, options)
    assert {path: path.read_bytes() for path in out.iterdir() if path.name != ".lock"} == before
    assert shards[-1].stat().st_mtime_ns == whole
    verify_pack(index, out, options)


def test_a_missing_shard_of_a_pack_without_sizes_is_made_again(index: Path, tmp_path: Path) -> None:
    out = tmp_path / "pack"
    pack_index(index, out)
    (out / "sizes.json").unlink()
    (out / "shard-000000.tar").unlink()
    with pytest.raises(StorageError, match=r"shard-000000\.tar: cannot be opened: No such file.* Pack again"):
        verify_pack(index, out)
    pack_index(index, out)
    verify_pack(index, out)


@pytest.mark.parametrize("has_sizes", [False, True])
def test_a_shard_that_is_made_again_with_other_sizes_is_refused(index: Path, tmp_path: Path, has_sizes: bool) -> None:
    out, shard = tmp_path / "pack", tmp_path / "pack" / "shard-000000.tar"
    pack_index(index, out)
    if not has_sizes:
        (out / "sizes.json").unlink()
    shard.unlink()
    (tmp_path / "1.bin").write_bytes(b"a longer text")  # as another version of an encoder might write
    for _ in range(2):
        with pytest.raises(StorageError, match=r"shard-000000\.tar: was made again, but .* Pack into a new folder"):
            pack_index(index, out)
        assert not shard.exists()
    (tmp_path / "1.bin").write_bytes(b"text")
    pack_index(index, out)
    verify_pack(index, out)


def test_damaged_sizes_of_a_pack_are_an_error(index: Path, tmp_path: Path) -> None:
    out = tmp_path / "pack"
    pack_index(index, out)
    (out / "sizes.json").write_text("[1]")
    with pytest.raises(
        ArgumentError, match=r"sizes\.json is damaged: .*\. Delete it, then check the shards with --ver"
    ):
        pack_index(index, out)


def test_a_deleted_shard_of_an_unfinished_pack_is_made_again(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "pack"

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("mpload.tools.pack.packing.check_text", stopped)
        with pytest.raises(KeyboardInterrupt):
            pack_index(index, out)
    (out / "shard-000000.tar").unlink()
    pack_index(index, out)
    verify_pack(index, out)
