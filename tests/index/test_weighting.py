"""Draws with replacement follow their weights, and depend on nothing but seed, epoch and position."""

import os
import pickle
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chi2_contingency, chisquare  # type: ignore[import-untyped]
from torch.utils.data import WeightedRandomSampler

from mpload import (
    ArgumentError,
    Balanced,
    Index,
    IndexChangedError,
    IndexOrder,
    MPDataset,
    MPLoader,
    StateError,
    Topology,
    Weighted,
    open_index,
)  # fmt: skip
from mpload.index import draws, tables, weighting
from mpload.plan.order import Order
from tests.support.index_texts import make_text

NUM_SAMPLES = 300
WEIGHTS = (np.random.default_rng(0).random(NUM_SAMPLES) ** 3 * (np.arange(NUM_SAMPLES) % 7 != 0)).round(6)
_NUMBERS = np.arange(NUM_SAMPLES)
LABELS = np.where(_NUMBERS < 5, 0, np.where(_NUMBERS % 10 == 0, -1, 1 + _NUMBERS % 4))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a table have several blocks, the last of them short."""
    for module in (draws, tables):
        monkeypatch.setattr(module, "BLOCK_ROWS", 64)


@pytest.fixture
def index(tmp_path: Path) -> Index:
    rows = zip(LABELS.tolist(), WEIGHTS.tolist(), strict=True)
    lines = "".join(
        f"{n}\t{label}\t{weight!r}\t{'rare' if label == 0 else 'common'}\n" for n, (label, weight) in enumerate(rows)
    )
    path = tmp_path / "train.txt"
    path.write_text("#mpload 1\n#columns text:str label:int weight:float kind:str\n" + lines)
    return open_index(path)


def order_of(
    choice: IndexOrder, index: Index, *, num_samples: int | None = None, seed: int = 0, epoch: int = 0
) -> Order:
    return choice.bind(index).order(num_samples=num_samples or len(index), seed=seed, epoch=epoch)


def many_draws(choice: IndexOrder, index: Index) -> NDArray[np.int64]:
    """Return the ids of many epochs."""
    return np.concatenate([drawn(choice, index, epoch=epoch) for epoch in range(600)])


def drawn(choice: IndexOrder, index: Index, *, seed: int = 0, epoch: int = 0) -> NDArray[np.int64]:
    """Return the rows of an epoch."""
    order = order_of(choice, index, seed=seed, epoch=epoch)
    rows: NDArray[np.int64] = order.sample_ids(np.arange(len(index))) % len(index)
    return rows


def test_draws_are_distributed_as_those_of_torchs_weighted_sampler(index: Index) -> None:
    ids = many_draws(Weighted("weight"), index)
    counts = np.bincount(ids, minlength=NUM_SAMPLES)
    drawable = WEIGHTS > 0
    assert not counts[~drawable].any()
    expected = WEIGHTS[drawable] / WEIGHTS.sum() * len(ids)
    assert chisquare(counts[drawable], expected).pvalue > 1e-4
    torchs = np.bincount(
        list(WeightedRandomSampler(WEIGHTS.tolist(), len(ids), replacement=True)), minlength=NUM_SAMPLES
    )
    often = expected > 5
    assert chi2_contingency([counts[drawable][often], torchs[drawable][often]]).pvalue > 1e-4


def test_every_value_of_a_balanced_column_is_drawn_equally_often(index: Index) -> None:
    ids = many_draws(Balanced(), index)
    labels, counts = np.unique(LABELS[ids], return_counts=True)
    assert labels.tolist() == [0, 1, 2, 3, 4]  # those below 0 mark samples to ignore
    assert chisquare(counts).pvalue > 1e-4
    for label in labels:
        within = np.bincount(ids, minlength=NUM_SAMPLES)[label == LABELS]
        assert chisquare(within).pvalue > 1e-4
    kinds = np.bincount(LABELS[many_draws(Balanced("kind"), index)] == 0)
    assert chisquare(kinds).pvalue > 1e-4


def test_neighbouring_positions_epochs_and_seeds_are_independent(index: Index) -> None:
    def groups(**epoch: int) -> NDArray[np.int64]:
        ids = np.concatenate([
            drawn(Balanced(), index, seed=epoch.get("seed", 0) + 1000 * run, epoch=epoch.get("epoch", 0))
            for run in range(100)
        ])  # fmt: skip
        labels: NDArray[np.int64] = LABELS[ids]
        return labels

    first = groups()
    for other in (np.roll(first, 1), groups(epoch=1), groups(seed=1)):
        table = np.zeros((5, 5))
        np.add.at(table, (first, other), 1)
        assert chi2_contingency(table).pvalue > 1e-4


@given(positions=st.lists(st.integers(0, NUM_SAMPLES - 1)), seed=st.integers(0, 2**63 - 1))
@settings(max_examples=50)
def test_any_positions_have_the_same_ids_as_in_the_whole_epoch(bound: Any, positions: list[int], seed: int) -> None:
    order = bound.order(num_samples=NUM_SAMPLES, seed=seed, epoch=3)
    whole = order.sample_ids(np.arange(NUM_SAMPLES))
    assert order.sample_ids(np.array(positions, np.int64)).tolist() == whole[np.array(positions, np.int64)].tolist()
    assert np.array_equal(whole // NUM_SAMPLES, np.arange(NUM_SAMPLES))  # so no two draws have the same random numbers
    again = pickle.loads(pickle.dumps(order))
    assert again.sample_ids(np.arange(NUM_SAMPLES)).tolist() == whole.tolist()


@pytest.fixture(scope="module")
def bound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(draws, "BLOCK_ROWS", 64)
        patch.setattr(tables, "BLOCK_ROWS", 64)
        path = tmp_path_factory.mktemp("bound") / "train.txt"
        path.write_text("#mpload 1\n#columns weight:float\n" + "".join(f"{weight!r}\n" for weight in WEIGHTS.tolist()))
        yield Weighted("weight").bind(open_index(path))


def test_orders_are_those_of_earlier_versions(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "BLOCK_ROWS", 1 << 16)
    monkeypatch.setattr(tables, "BLOCK_ROWS", 1 << 16)
    large = open_index(make_text(tmp_path / "large.txt", 100_000))
    weighted = order_of(Weighted("weight"), index, seed=1, epoch=2).sample_ids(np.arange(8))
    balanced = order_of(Balanced(), large, seed=1, epoch=2).sample_ids(np.arange(99_992, 100_000))
    assert (weighted % len(index)).tolist() == [156, 194, 93, 278, 198, 256, 94, 9]
    assert (balanced % len(large)).tolist() == [63752, 42183, 98122, 61019, 722, 89507, 7191, 93619]


def test_a_table_is_made_once_and_made_again_when_it_is_damaged(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = order_of(Balanced(), index).sample_ids(np.arange(NUM_SAMPLES)).tolist()
    (table,) = index.path.parent.glob("*.mpw")
    with monkeypatch.context() as patch:
        patch.setattr(weighting, "write_table", None)
        assert order_of(Balanced(), index).sample_ids(np.arange(NUM_SAMPLES)).tolist() == ids
    for damage in (b"", b"{}", table.read_bytes()[:-1]):
        table.write_bytes(damage)
        assert order_of(Balanced(), index).sample_ids(np.arange(NUM_SAMPLES)).tolist() == ids
    index.path.write_text(index.path.read_text() + "x\t9\t1\tcommon\n")
    changed = open_index(index.path)
    assert order_of(Balanced(), changed).sample_ids(np.arange(NUM_SAMPLES)).tolist() != ids
    assert [*index.path.parent.glob("*.mpw")] == [table]


def test_a_table_is_kept_in_the_cache_folder_if_that_of_the_index_is_read_only(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.open

    def refusing(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if path.parent == index.path.parent and "x" in mode:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, mode, *arguments, **options)

    monkeypatch.setattr(Path, "open", refusing)
    order_of(Balanced(), index).sample_ids(np.arange(5))
    assert not [*index.path.parent.glob("*.mpw*")]
    assert len([*(platformdirs.user_cache_path("mpload") / "draws").iterdir()]) == 1


def test_weights_from_a_file_equal_those_of_a_column(index: Index, tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", WEIGHTS)
    expected = order_of(Weighted("weight"), index).sample_ids(np.arange(NUM_SAMPLES))
    assert np.array_equal(order_of(Weighted(tmp_path / "w.npy"), index).sample_ids(np.arange(NUM_SAMPLES)), expected)


def test_other_weights_in_the_same_file_are_noticed_by_runs_and_checkpoints(index: Index, tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", WEIGHTS)
    before = Weighted(tmp_path / "w.npy").bind(index)
    dataset = MPDataset(index, shuffle=Weighted(tmp_path / "w.npy"), topology=Topology())
    state = dataset.state_dict()
    dataset.load_state_dict(state)
    np.save(tmp_path / "w.npy", WEIGHTS[::-1])
    os.utime(tmp_path / "w.npy", ns=(1, 1))
    with pytest.raises(StateError, match="the checkpoint was made with order 'weighted#"):
        MPDataset(index, shuffle=Weighted(tmp_path / "w.npy"), topology=Topology()).load_state_dict(state)
    with pytest.raises(IndexChangedError, match="what the table was made of has changed during the run"):
        before.order(num_samples=NUM_SAMPLES, seed=0, epoch=0).sample_ids(np.arange(5))


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (Balanced("labels"), r"Balanced\('labels'\): .* has no such column. Its columns are text:str label:int"),
        (Balanced("weight"), r"Balanced\('weight'\): a column of floats has no classes"),
        (Weighted("kind"), r"weights 'kind': the column holds no numbers"),
        (Weighted("label"), r"train\.txt:13: has weight -1\.0, but weights are in \[0, 1e\+290\]"),
        (Weighted("none.npy"), r"none\.npy: the weights cannot be read"),
        (Weighted("several.npy"), r"several\.npy: the weights cannot be read: the magic string is not correct"),
        (Weighted("short.npy"), r"short\.npy: the weights are float64\[3\], but .* needs numbers \[300\]"),
        (Weighted("objects.npy"), r"objects\.npy: the weights cannot be read"),
        (Weighted("nan.npy"), r"nan\.npy: sample 7: has weight nan"),
        (Weighted("zero.npy"), "all weights are 0, so that no sample can be drawn"),
    ],
)
def test_impossible_weights_are_refused(
    index: Index, choice: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("several", np.ones(NUM_SAMPLES))
    Path("several.npz").rename("several.npy")
    np.save("short.npy", np.ones(3))
    np.save("objects.npy", np.array([object()] * NUM_SAMPLES), allow_pickle=True)
    np.save("nan.npy", np.where(np.arange(NUM_SAMPLES) == 7, np.nan, 1))
    np.save("zero.npy", np.zeros(NUM_SAMPLES, np.int32))
    with pytest.raises(ArgumentError, match=message):
        MPDataset(index, shuffle=choice)
    assert not [*tmp_path.glob("*.mpw*")]


def test_batches_and_resumed_batches_are_the_same_on_any_number_of_ranks(index: Index) -> None:
    def texts(batch_size: int, *, world_size: int = 1, state: dict[str, Any] | None = None) -> list[str]:
        found = []
        ranks = [Topology(rank=rank, world_size=world_size) for rank in range(world_size)]
        datasets = [
            MPDataset(index, shuffle=Balanced(), batch_size=batch_size, seed=3, topology=rank) for rank in ranks
        ]
        for dataset in datasets:
            if state:
                dataset.load_state_dict(state)
        for batches in zip(*datasets, strict=True):
            found += [text for batch in batches for text in batch[0]]
        return found

    whole = texts(12)
    assert texts(4, world_size=3) == whole
    dataset = MPDataset(index, shuffle=Balanced(), batch_size=12, seed=3, topology=Topology())
    next(iterator := iter(dataset))
    next(iterator)
    assert texts(6, world_size=2, state=dataset.state_dict()) == whole[24:]


@pytest.mark.processes
def test_workers_draw_the_same_samples(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "BLOCK_ROWS", 1 << 16)  # as it is in workers
    monkeypatch.setattr(tables, "BLOCK_ROWS", 1 << 16)
    dataset = MPDataset(index, shuffle=Weighted("weight"), batch_size=10, topology=Topology())
    expected = [batch[0] for batch in dataset]
    with MPLoader(dataset, num_workers=2) as loader:
        loader.set_epoch(0)
        assert [batch[0] for batch in loader] == expected


def test_a_map_style_dataset_has_no_columns_to_balance() -> None:
    with pytest.raises(ArgumentError, match=r"Balanced\(column='label'\) needs an index"):
        MPLoader([1, 2, 3], batch_size=1, shuffle=Balanced())  # type: ignore[call-overload]


def test_memory_for_a_table_does_not_grow_with_the_index(tmp_path: Path) -> None:
    peaks = []
    for num_samples in (3_000, 30_000):
        path = tmp_path / f"{num_samples}.txt"
        lines = "".join(f"{number % 10}\n" for number in range(num_samples))
        path.write_text("#mpload 1\n#columns label:int\n" + lines)
        index = open_index(path)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("mpload.index.blocks._BLOCK_ROWS", 1024)
            Balanced().bind(index)
            next(iter(tmp_path.glob(f"{num_samples}*.mpw"))).unlink()
            tracemalloc.start()
            Balanced().bind(index)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0], peaks


def test_an_array_itself_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"got ndarray\. Write an array to a file: numpy\.save"):
        Weighted(np.ones(3))  # type: ignore[arg-type]
