"""A curriculum goes through all samples once, in the order of their numbers but for its windows."""

import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mpload import ArgumentError, Curriculum, Index, MPDataset, MPLoader, StateError, Topology, open_index
from mpload.errors import IndexChangedError
from mpload.index import derived, sorted_rows
from mpload.index.sorted_rows import write_sorted_rows
from mpload.index.table_files import MappedTable, facts_of
from mpload.plan.order import Order

NUMBERS = np.random.default_rng(0).normal(size=500).round(1)  # with many equal ones
GRADES = (NUMBERS * 3).astype(np.int64)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    path = tmp_path_factory.mktemp("curriculum") / "train.txt"
    rows = enumerate(zip(NUMBERS.tolist(), GRADES.tolist(), strict=True))
    lines = "".join(f"{number}\t{x!r}\t{grade}\n" for number, (x, grade) in rows)
    path.write_text("#mpload 1\n#columns number:str x:float grade:int\n" + lines)
    return open_index(path)


def order_of(choice: Curriculum, index: Index, *, seed: int = 0, epoch: int = 0) -> Order:
    return choice.bind(index).order(num_samples=len(index), seed=seed, epoch=epoch)


def all_rows(choice: Curriculum, index: Index, *, seed: int = 0, epoch: int = 0) -> NDArray[np.int64]:
    return order_of(choice, index, seed=seed, epoch=epoch).sample_ids(np.arange(len(index)))


def sorted_in_file(path: Path, numbers: NDArray[Any], block_rows: int) -> list[int]:
    blocks = (numbers[start : start + block_rows] for start in range(0, len(numbers), block_rows))
    with path.open("w+b") as file:
        write_sorted_rows(file, blocks, num_samples=len(numbers), facts={})
    table = MappedTable(path=path, num_samples=len(numbers), digest=facts_of(path)["digest"])
    return list(map(int, table.entries))


@settings(max_examples=60, deadline=None)
@given(
    numbers=st.lists(st.integers(-3, 3), min_size=1, max_size=300)
    | st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1)
    | st.lists(st.integers(2**64 - 2000, 2**64 - 1), min_size=1, max_size=300),
    block_rows=st.integers(1, 80),
    run_rows=st.integers(1, 100),
)
def test_rows_are_sorted_as_by_a_stable_sort_however_they_are_divided(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int], block_rows: int, run_rows: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_rows, "_RUN_ROWS", run_rows)
        patch.setattr(sorted_rows, "_SAMPLES_PER_RUN", min(4, run_rows))
        path = tmp_path_factory.getbasetemp() / "sorted"
        array = np.array(numbers)
        assert sorted_in_file(path, array, block_rows) == np.argsort(array, kind="stable").tolist()


@pytest.mark.parametrize("num_bytes", [0, 100, 4096, 4100])
def test_a_table_that_is_cut_off_before_it_is_mapped_is_named(tmp_path: Path, num_bytes: int) -> None:
    path = tmp_path / "sorted"
    sorted_in_file(path, np.arange(10), 10)
    table = MappedTable(path=path, num_samples=10, digest=facts_of(path)["digest"])
    os.truncate(path, num_bytes)
    with pytest.raises(IndexChangedError, match="sorted: the table cannot be read"):
        _ = table.entries


@pytest.mark.parametrize("numbers", [[2**64 - 1, 2**64 - 2, 2**63, 0], [2**53 + 1, 2**53, -(2**63), 2**63 - 1]])
def test_integers_that_no_float_holds_are_sorted_exactly(numbers: list[int], tmp_path: Path) -> None:
    lines = "".join(f"{number}\n" for number in range(len(numbers)))
    (tmp_path / "train.txt").write_text("#mpload 1\n#columns number:int\n" + lines)
    np.save(tmp_path / "x.npy", np.array(numbers, np.uint64 if min(numbers) >= 0 else np.int64))
    rows = all_rows(Curriculum(tmp_path / "x.npy", window_samples=1), open_index(tmp_path / "train.txt"))
    assert [numbers[row] for row in rows] == sorted(numbers)


def test_sorting_takes_the_same_memory_for_any_number_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_rows, "_RUN_ROWS", 1 << 14)
    for shape in ("random", "equal", "sorted"):
        peaks = []
        for num_samples in (1 << 16, 1 << 19):
            numbers = {"random": np.random.default_rng(0).random(num_samples), "equal": np.zeros(num_samples),
                       "sorted": np.arange(num_samples)}[shape]  # fmt: skip
            blocks = (numbers[start : start + 4096] for start in range(0, num_samples, 4096))
            with (tmp_path / "table").open("w+b") as file:
                tracemalloc.start()
                write_sorted_rows(file, blocks, num_samples=num_samples, facts={})
                peaks.append(tracemalloc.get_traced_memory()[1])
                tracemalloc.stop()
        assert peaks[1] < 1.5 * peaks[0], (shape, peaks)


@settings(max_examples=40, deadline=None)
@given(
    window=st.integers(1, 600), is_descending=st.booleans(), by=st.sampled_from(["x", "grade"]), epoch=st.integers(0, 9)
)
def test_every_window_holds_the_samples_that_sorting_gives_it(
    index: Index, window: int, is_descending: bool, by: str, epoch: int
) -> None:
    choice = Curriculum(by, window_samples=window, descending=is_descending)
    rows = all_rows(choice, index, seed=4, epoch=epoch)
    expected = np.argsort(NUMBERS if by == "x" else GRADES, kind="stable")
    if is_descending:
        expected = expected[::-1]
    for start in range(0, 500, window):
        assert sorted(rows[start : start + window]) == sorted(expected[start : start + window])
    some = np.array([499, 0, 250, 0])
    assert order_of(choice, index, seed=4, epoch=epoch).sample_ids(some).tolist() == rows[some].tolist()


def test_windows_are_shuffled_differently_in_each_window_epoch_and_seed(index: Index) -> None:
    choice = Curriculum("x", window_samples=50)
    places = np.argsort(np.argsort(NUMBERS, kind="stable"))
    first = places[all_rows(choice, index)].reshape(10, 50) % 50
    assert len({tuple(window) for window in first.tolist()}) == 10
    for other in (all_rows(choice, index, epoch=1), all_rows(choice, index, seed=1)):
        assert (places[other].reshape(10, 50) % 50 != first).any(axis=1).all()
    unshuffled = all_rows(Curriculum("x", window_samples=1), index, epoch=5)
    assert unshuffled.tolist() == np.argsort(NUMBERS, kind="stable").tolist()


def test_orders_are_those_of_earlier_versions(index: Index) -> None:
    rows = order_of(Curriculum("x", window_samples=100), index, seed=1, epoch=2).sample_ids(np.arange(200, 208))
    assert rows.tolist() == [325, 96, 216, 489, 257, 210, 328, 454]


def test_numbers_may_come_from_a_file_which_must_not_change(index: Index, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", NUMBERS.astype(np.float32))
    choice = Curriculum(tmp_path / "x.npy", window_samples=20)
    assert np.array_equal(all_rows(choice, index), all_rows(Curriculum("x", window_samples=20), index))
    state = MPDataset(index, shuffle=choice, topology=Topology()).state_dict()
    np.save(tmp_path / "x.npy", -NUMBERS)
    with pytest.raises(StateError, match=r"the checkpoint was made with order 'curriculum\(sorted#"):
        MPDataset(index, shuffle=choice, topology=Topology()).load_state_dict(state)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (lambda: Curriculum("y", window_samples=5), "numbers to sort by 'y': .* has no such column"),
        (lambda: Curriculum("number", window_samples=5), "numbers to sort by 'number': the column holds no numbers"),
        (lambda: Curriculum("x", window_samples=0), r"window_samples must be in \[1, 2147483648\), got 0"),
        (lambda: Curriculum("nan.npy", window_samples=5), r"nan\.npy: sample 7: NaN has no place in an order"),
        (lambda: Curriculum(np.ones(3), window_samples=5), r"got ndarray\. Write an array to a file"),  # type: ignore[arg-type]
    ],
)
def test_impossible_numbers_are_refused(
    index: Index, choice: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("nan.npy", np.where(np.arange(500) == 7, np.nan, 1))
    with pytest.raises(ArgumentError, match=message):
        MPDataset(index, shuffle=choice())


def test_batches_and_resumed_batches_are_the_same_on_any_number_of_ranks(index: Index) -> None:
    def numbers(batch_size: int, *, world_size: int = 1, state: dict[str, Any] | None = None) -> Iterator[str]:
        choice = Curriculum("x", window_samples=64)
        ranks = [Topology(rank=rank, world_size=world_size) for rank in range(world_size)]
        datasets = [MPDataset(index, shuffle=choice, batch_size=batch_size, seed=3, topology=rank) for rank in ranks]
        for dataset in datasets:
            if state:
                dataset.load_state_dict(state)
        for step in zip(*datasets, strict=True):
            for batch in step:
                yield from batch[0]

    whole = [*numbers(10)]
    assert sorted(map(int, whole)) == [*range(500)]
    dataset = MPDataset(index, shuffle=Curriculum("x", window_samples=64), batch_size=20, seed=3, topology=Topology())
    iterator = iter(dataset)
    for _ in range(7):
        next(iterator)
    assert [*numbers(9, world_size=5, state=dataset.state_dict())] == whole[140:]


@pytest.mark.processes
def test_workers_make_the_same_batches(index: Index) -> None:
    dataset = MPDataset(index, shuffle=Curriculum("x", window_samples=64), batch_size=10, topology=Topology())
    expected = [batch[0] for batch in dataset]
    with MPLoader(dataset, num_workers=2) as loader:
        loader.set_epoch(0)
        assert [batch[0] for batch in loader] == expected


def test_a_table_is_made_once_for_all_windows_and_directions(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    all_rows(Curriculum("grade", window_samples=5), index)
    monkeypatch.setattr(derived, "_publish", None)
    all_rows(Curriculum("grade", window_samples=7, descending=True), index)
