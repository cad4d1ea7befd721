"""An index without files: the lines are the data, and nothing is read or decoded."""

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from mpload import (
    ImageDecoder,
    MPDataset,
    MPLoader,
    PackOptions,
    PartialCache,
    RawBytes,
    build_index,
    open_index,
    pack_index,
)
from mpload.errors import ArgumentError, IndexFormatError
from mpload.ingest.checking import check_index
from mpload.tools.doctor.storage import Files

NUM_SAMPLES = 100
TEXTS = [
    random.Random(number).choice(["a\\tb\\\\", "", "é", "plain", " "]) + str(number) for number in range(NUM_SAMPLES)
]
WANTED = [text.replace("\\t", "\t").replace("\\\\", "\\") for text in TEXTS]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "train.txt"
    lines = [f"{text}\t{number}\t{number / 3}\n" for number, text in enumerate(TEXTS)]
    path.write_text("#mpload 1\n#columns text:str label:int weight:float\n" + "".join(lines))
    return path


def check(batches: Iterable[Any]) -> None:
    seen = []
    for words, labels, weights in batches:
        assert (labels.dtype, weights.dtype) == (torch.int64, torch.float64)
        assert words == [WANTED[label] for label in labels.tolist()]
        assert weights.tolist() == [label / 3 for label in labels.tolist()]
        seen += labels.tolist()
    assert seen != sorted(seen) == list(range(NUM_SAMPLES))


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_yields_the_cells_of_the_lines(texts: Path, num_workers: int) -> None:
    with MPLoader(MPDataset(texts, batch_size=8, shuffle=True, tail="ragged"), num_workers=num_workers) as loader:
        check(loader)


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stock_dataloader_yields_the_same_cells(texts: Path, num_workers: int) -> None:
    dataset: MPDataset = MPDataset(texts, batch_size=8, shuffle=True, tail="ragged")
    check(DataLoader(dataset, batch_size=None, num_workers=num_workers))


def test_samples_are_plain_values(texts: Path) -> None:
    assert list(MPDataset(texts)) == [(WANTED[number], number, number / 3) for number in range(NUM_SAMPLES)]


@pytest.mark.processes
@pytest.mark.parametrize(("columns", "kind"), [("text:str", list), ("label:int", torch.Tensor)])
def test_a_single_column_is_a_bare_value(tmp_path: Path, columns: str, kind: type) -> None:
    path = tmp_path / "train.txt"
    path.write_text(f"#mpload 1\n#columns {columns}\n" + "".join(f"{number}\n" for number in range(9)))
    with MPLoader(MPDataset(path, batch_size=4, tail="ragged"), num_workers=1) as loader:
        batches = list(loader)
    assert all(isinstance(batch, kind) for batch in batches)
    assert [int(value) for batch in batches for value in batch] == list(range(9))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("decode", RawBytes()),
        ("transform", np.flipud),
        ("cache", PartialCache("cache", max_bytes="1MiB")),
        ("storage", object()),
    ],
)
def test_arguments_for_files_are_refused(texts: Path, name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=f"train.txt: {name} is for files, but the columns 'text:str label:int"):
        MPDataset(texts, **{name: value})


def test_tools_for_files_say_that_there_are_none(texts: Path, tmp_path: Path) -> None:
    for call in (lambda: pack_index(texts, tmp_path / "pack", PackOptions()), lambda: Files(open_index(texts))):
        with pytest.raises(ArgumentError, match=r"mpload (pack|doctor) is for files, but the columns .* contain none"):
            call()


def test_an_index_without_files_is_made_and_checked(texts: Path, tmp_path: Path) -> None:
    (tmp_path / "list.tsv").write_text("a b\t3\nc\t4\n")
    made = open_index(build_index(tmp_path / "list.tsv", tmp_path / "made.txt", columns="words:str label:int"))
    assert [record.cells for record in made] == [("a b", 3), ("c", 4)]
    assert made.labels[:].tolist() == [3, 4]
    assert list(check_index(made, decode=ImageDecoder())) == []
    assert list(check_index(open_index(texts))) == []


def test_a_line_that_holds_nothing_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_text("#mpload 1\n#columns text:str\na\n\nb\n")
    with pytest.raises(IndexFormatError, match=r"train.txt:4: is blank. Delete it, or add a second column"):
        open_index(path)
