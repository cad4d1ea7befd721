"""Batches of P classes with K samples each: their laws, on any ranks, and after a resume."""

import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mpload import ArgumentError, Index, Mixture, MPDataset, MPLoader, PKBatches, StateError, Topology, open_index
from mpload.index import blocks
from mpload.plan import permutations
from mpload.plan.order import Order

SIZES = (40, 3, 17, 1, 8, 25, 2, 12)  # of the classes; label 3 has one sample
_ORDERED = np.repeat(np.arange(len(SIZES)), SIZES)
LABELS = np.random.default_rng(0).permutation(np.concatenate([_ORDERED, np.full(9, -1)]))
NUM_SAMPLES = len(LABELS)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return index_of(tmp_path_factory.mktemp("classes") / "train.txt", LABELS.tolist())


def index_of(path: Path, labels: list[int]) -> Index:
    lines = "".join(f"{number}\t{label}\tclass {label}\t0.5\n" for number, label in enumerate(labels))
    path.write_text("#mpload 1\n#columns number:str label:int name:str x:float\n" + lines)
    return open_index(path)


def order_of(choice: PKBatches, index: Index, *, seed: int = 0, epoch: int = 0) -> Order:
    bound: Any = choice.bind(index)
    order: Order = bound.order(num_samples=bound.epoch_samples, seed=seed, epoch=epoch)
    return order


def rows_of(choice: PKBatches, index: Index, *, epochs: int = 1, seed: int = 0) -> NDArray[np.int64]:
    """Return the rows of some epochs, int64 [num_batches, P, K]."""
    orders = [order_of(choice, index, seed=seed, epoch=epoch) for epoch in range(epochs)]
    rows = np.concatenate([order.sample_ids(np.arange(order.num_samples)) for order in orders]) % len(index)
    return rows.reshape(-1, choice.classes_per_batch, choice.samples_per_class)


@settings(max_examples=40)
@given(
    per_batch=st.integers(1, 8), per_class=st.integers(1, 9), min_samples=st.integers(1, 4), seed=st.integers(0, 2**40)
)
def test_every_batch_has_p_classes_with_k_samples_each(
    index: Index, per_batch: int, per_class: int, min_samples: int, seed: int
) -> None:
    used = [label for label, size in enumerate(SIZES) if size >= min_samples]
    choice = PKBatches("label", min(per_batch, len(used)), per_class, min_samples=min_samples)
    rows = rows_of(choice, index, epochs=3, seed=seed)
    labels = LABELS[rows]
    assert (labels == labels[:, :, :1]).all()
    assert set(labels.flat) <= set(used)
    for batch in rows:
        assert len({LABELS[group[0]] for group in batch}) == choice.classes_per_batch
        for group in batch:
            size = SIZES[LABELS[group[0]]]
            times = np.unique(group, return_counts=True)[1]
            if size >= per_class:
                assert (times == 1).all()
            else:  # as evenly as possible
                assert len(times) == size
                assert times.max() - times.min() <= 1


def test_classes_and_their_samples_come_lap_by_lap(index: Index) -> None:
    choice = PKBatches("label", 3, 4)
    rows = rows_of(choice, index, epochs=200)
    labels = LABELS[rows[:, :, 0]]
    laps = labels[: len(labels) // 2 * 2].reshape(-1, 6)  # 8 classes: two batches, and two classes are left out
    assert all(len(set(lap)) == 6 for lap in laps)
    left_out = {frozenset(range(8)) - frozenset(lap.tolist()) for lap in laps}
    assert len(left_out) == 28  # every pair of classes is left out of some lap
    for label, size in enumerate(SIZES):
        groups = {lap: rows[2 * lap + batch, place] for batch, place in [(b, p) for b in (0, 1) for p in range(3)]
                  for lap in range(len(laps)) if labels[2 * lap + batch, place] == label}  # fmt: skip
        per_lap = max(1, size // 4)
        whole: list[NDArray[np.int64]] = []
        for first in range(0, len(laps), per_lap):
            of_lap = [groups[lap] for lap in range(first, first + per_lap) if lap in groups]
            if size >= 4 and of_lap:
                samples = np.concatenate(of_lap)
                assert len(set(samples.tolist())) == len(samples)  # none comes again before the class's lap is over
                whole.append(samples)
        if size >= 4:
            assert len({tuple(samples) for samples in whole}) > len(whole) // 2  # each lap has its own order
        assert {*np.concatenate([*groups.values()]).tolist()} == {*np.flatnonzero(label == LABELS).tolist()}


def test_a_large_class_is_gone_through_in_full_where_its_size_is_a_multiple(tmp_path: Path) -> None:
    index = index_of(tmp_path / "even.txt", [0] * 12 + [1] * 4)
    rows = rows_of(PKBatches("label", 2, 4), index, epochs=3)  # two batches an epoch, three for a lap of class 0
    zeros = rows[np.nonzero(rows < 12)].reshape(-1, 4)
    assert len(zeros) == 6
    for lap in (zeros[:3], zeros[3:]):
        assert sorted(lap.flat) == list(range(12))
    assert zeros[:3].tolist() != zeros[3:].tolist()


@settings(max_examples=30)
@given(data=st.data(), seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 5))
def test_any_positions_have_the_same_ids_as_in_the_whole_epoch(index: Index, data: Any, seed: int, epoch: int) -> None:
    order = order_of(PKBatches("label", 4, 3), index, seed=seed, epoch=epoch)
    whole = order.sample_ids(np.arange(order.num_samples))
    positions = np.array(data.draw(st.lists(st.integers(0, order.num_samples - 1))), np.int64)
    assert order.sample_ids(positions).tolist() == whole[positions].tolist()
    assert len(np.unique(whole)) == len(whole)  # so no two draws have the same random numbers
    assert pickle.loads(pickle.dumps(order)).sample_ids(positions).tolist() == whole[positions].tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(permutations, "NATIVE", None)
        assert order.sample_ids(positions).tolist() == whole[positions].tolist()


def test_orders_are_those_of_earlier_versions(index: Index) -> None:
    order = order_of(PKBatches("label", 4, 3), index, seed=1, epoch=2)
    rows = order.sample_ids(np.arange(24, 36)) % NUM_SAMPLES
    assert rows.tolist() == [
        112,
        48,
        85,
        74,
        74,
        74,
        47,
        101,
        16,
        64,
        76,
        6,
    ]


def test_an_epoch_has_as_many_batches_as_the_samples_of_its_classes_fill(index: Index) -> None:
    for choice, num_batches in ((PKBatches("label", 4, 3), 108 // 12), (PKBatches("name", 4, 3, min_samples=8), 9)):
        bound: Any = choice.bind(index)
        assert bound.epoch_samples == num_batches * 12
    few: Any = PKBatches("label", 8, 20).bind(index)
    assert few.epoch_samples == 160


def test_tables_made_in_small_blocks_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = tmp_path / "one.txt", tmp_path / "other.txt"
    expected = rows_of(PKBatches("name", 4, 3), index_of(texts[0], LABELS.tolist()))
    monkeypatch.setattr(blocks, "_BLOCK_ROWS", 7)
    assert np.array_equal(rows_of(PKBatches("name", 4, 3), index_of(texts[1], LABELS.tolist())), expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PKBatches("labels"), r"PKBatches\('labels'\): .* has no such column"),
        (lambda: PKBatches("x"), r"PKBatches\('x'\): a column of floats has no classes"),
        (lambda: PKBatches("label", 9, 2), "column label has 8 classes, but a batch needs classes_per_batch=9. Lower"),
        (lambda: PKBatches("label", 8, 2, min_samples=2), "has 7 classes with at least 2 samples, .* or lower min_s"),
        (lambda: PKBatches("label", 0), r"classes_per_batch must be in \[1, 2147483648\), got 0"),
        (lambda: PKBatches("label", 2, 4), r"makes batches of 8 samples, but batch_size is 16\. Pass batch_size=8"),
    ],
)
def test_impossible_batches_are_refused(index: Index, make: Callable[[], PKBatches], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        MPDataset(index, shuffle=make(), batch_size=16)


def test_a_mixture_and_samples_one_by_one_are_refused(index: Index) -> None:
    with pytest.raises(ArgumentError, match=r"is for one index: .* mpload\.merge_indexes"):
        MPDataset(Mixture({index: 1}), shuffle=PKBatches("label", 2, 4), batch_size=8)
    with pytest.raises(ArgumentError, match=r"batch_size is None\. Pass batch_size=8"):
        MPDataset(index, shuffle=PKBatches("label", 2, 4))
    with pytest.raises(ArgumentError, match="epoch_samples=20 is not a multiple of 8"):
        MPDataset(index, shuffle=PKBatches("label", 2, 4), batch_size=8, epoch_samples=20)


@pytest.mark.parametrize("tail", ["pad", "ragged", "drop"])
def test_batches_and_resumed_batches_are_the_same_on_any_number_of_ranks(index: Index, tail: Any) -> None:
    def batches(world_size: int, state: dict[str, Any] | None = None) -> list[tuple[str, ...]]:
        found = []
        for rank in range(world_size):
            topology = Topology(rank=rank, world_size=world_size)
            choice = PKBatches("label", 4, 3)
            dataset = MPDataset(index, shuffle=choice, batch_size=12, seed=3, tail=tail, topology=topology)
            if state is not None:
                dataset.load_state_dict(state)
            found.append([tuple(batch[0]) for batch in dataset])
        return [batch for step in zip(*found, strict=True) for batch in step if batch]

    whole = batches(1)
    assert len(whole) == 9
    assert batches(3) == whole
    dataset = MPDataset(index, shuffle=PKBatches("label", 4, 3), batch_size=12, seed=3, topology=Topology())
    next(iterator := iter(dataset))
    next(iterator)
    state = dataset.state_dict()
    assert len(repr(state)) < 1024
    expected = {"pad": [*whole[2:], whole[0]], "ragged": whole[2:], "drop": whole[2:8]}
    assert batches(2, state) == expected[tail]
    other = MPDataset(index, shuffle=PKBatches("label", 3, 4), batch_size=12, topology=Topology())
    with pytest.raises(StateError, match=r"made with order 'pk\(label,4,3,1\)'"):
        other.load_state_dict(state)


@pytest.mark.processes
def test_workers_make_the_same_batches(index: Index) -> None:
    def dataset() -> MPDataset:
        return MPDataset(index, shuffle=PKBatches("label", 4, 3), batch_size=12, epoch_samples=48, topology=Topology())

    plain = dataset()
    expected = [[batch[0] for batch in plain] for _ in range(2)]
    assert [len(epoch) for epoch in expected] == [4, 4]
    with MPLoader(dataset(), num_workers=2) as loader:
        assert [[batch[0] for batch in loader] for _ in range(2)] == expected


def test_memory_does_not_grow_with_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpload.index.blocks._BLOCK_ROWS", 1024)
    peaks = []
    for num_samples in (3_000, 30_000):
        index = index_of(tmp_path / f"{num_samples}.txt", [number % 10 for number in range(num_samples)])
        tracemalloc.start()
        order_of(PKBatches("label", 8, 4), index).sample_ids(np.arange(64))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        tracemalloc.start()
        order_of(PKBatches("label", 8, 4), index).sample_ids(np.arange(64))
        assert tracemalloc.get_traced_memory()[1] < 300_000
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0], peaks
