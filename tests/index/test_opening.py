"""Opening an index at a path where there is none, or which cannot be read."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mpload
from mpload.errors import IndexFormatError, IndexNotFoundError, StorageError
from mpload.index import opening
from mpload.index.lookup import SidecarLayout
from mpload.index.sidecar import ensure_sidecar
from mpload.ingest.checking import check_lines
from tests.support.programs import run_as_nobody

OPENERS = {
    "open_index": mpload.open_index,
    "MPDataset": mpload.MPDataset,
    "merge_indexes": lambda path: mpload.merge_indexes([path], "merged.txt"),
    "check_lines": lambda path: next(check_lines(path)),
}


@pytest.fixture(autouse=True)
def empty_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_an_index_whose_sidecar_vanishes_while_it_is_opened_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "train.txt"
    text.write_text("a.jpg 0\n")
    layouts = []

    def ensured(path: Path, *arguments: Any, **options: Any) -> SidecarLayout:
        layouts.append(ensure_sidecar(path, *arguments, **options))
        if len(layouts) == 1:
            layouts[0].path.unlink()  # as an append does, before it renames the text
        return layouts[-1]

    monkeypatch.setattr(opening, "ensure_sidecar", ensured)
    assert mpload.open_index(text)[0]["image"] == "a.jpg"
    assert len(layouts) == 2


every_opener = pytest.mark.parametrize("opener", OPENERS.values(), ids=OPENERS.keys())


@every_opener
@pytest.mark.parametrize("name", ["missing.txt", "missing/train.txt", "train.txt/inside", "dangling.txt"])
def test_a_missing_index_is_one_error_that_says_how_to_make_one(
    tmp_path: Path, opener: Callable[[Path], object], name: str
) -> None:
    (tmp_path / "train.txt").write_text("a.jpg 0\n")
    (tmp_path / "dangling.txt").symlink_to("missing.txt")
    path = tmp_path / name
    with pytest.raises(FileNotFoundError) as caught:
        opener(path)
    assert type(caught.value) is IndexNotFoundError
    assert str(caught.value) == f"There is no index at '{path}'. Make one: mpload index FOLDER -o {path}"


def test_the_error_of_a_relative_path_says_where_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(IndexNotFoundError) as caught:
        mpload.open_index("a/b.txt")
    assert str(caught.value) == (
        f"There is no index at 'a/b.txt' (looked in {tmp_path}). Make one: mpload index FOLDER -o a/b.txt"
    )


@every_opener
def test_a_folder_is_refused_with_the_command_that_indexes_it(tmp_path: Path, opener: Callable[[Path], object]) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    with pytest.raises(IndexFormatError) as caught:
        opener(folder)
    assert str(caught.value) == f"{folder}: is a directory. Make an index of it: mpload index {folder} -o train.txt"


@every_opener
def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path, opener: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / "train.txt")
    with pytest.raises(IndexFormatError, match=r"train\.txt: is not a regular file"):
        opener(tmp_path / "train.txt")


@every_opener
def test_a_file_that_cannot_be_opened_raises_a_storage_error(tmp_path: Path, opener: Callable[[Path], object]) -> None:
    (tmp_path / "train.txt").symlink_to("train.txt")
    with pytest.raises(StorageError, match=r"train\.txt: the index cannot be opened: Too many levels of symbolic"):
        opener(tmp_path / "train.txt")


@pytest.mark.processes
def test_a_file_without_read_permission_raises_a_storage_error(tmp_path: Path) -> None:
    for name in ("readable.txt", "secret.txt"):
        (tmp_path / name).write_text("a.jpg 0\n")
    (tmp_path / "secret.txt").chmod(0)
    code = (
        "try: mpload.open_index(sys.argv[1])\n"
        "except mpload.StorageError as error: print(error)\n"
    )  # fmt: skip
    printed = run_as_nobody(code, tmp_path / "secret.txt", warm_up=tmp_path / "readable.txt")
    assert printed.strip() == (
        f"{tmp_path / 'secret.txt'}: the index cannot be opened: Permission denied. "
        "Check the permissions of the file and its folders"
    )
