"""Epochs of another length than the index, and mixtures in which sources are repeated."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpload import (
    Balanced,
    BlockShuffle,
    Curriculum,
    ErrorPolicy,
    Mixture,
    MPDataset,
    MPLoader,
    PKBatches,
    Topology,
    Weighted,
)
from mpload.errors import ArgumentError, MploadWarning, SampleError
from tests.support.mixtures import mixed, samples, source


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Indexes of 50, 7 and 31 samples; labels are rare and common."""
    folder = tmp_path_factory.mktemp("texts")
    paths = []
    for name, size in (("a", 50), ("b", 7), ("c", 31)):
        paths.append(folder / f"{name}.txt")
        lines = "".join(f"{name}{number}\t{int(number < 2)}\t{number}\n" for number in range(size))
        paths[-1].write_text("#mpload 1\n#columns name:str label:int weight:int\n" + lines)
    return paths


def names(batches: Any) -> list[str]:
    return [name for batch in batches for name in batch[0]]


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    epoch_samples=st.integers(1, 130),
    order=st.sampled_from([
        True, BlockShuffle(block_samples=4, window_blocks=2), Balanced(), Curriculum("weight", window_samples=9)
    ]),
    received=st.integers(0, 10),
    epoch=st.integers(0, 3),
)  # fmt: skip
def test_epochs_of_any_length_resume_exactly_on_other_ranks(
    texts: list[Path], epoch_samples: int, order: Any, received: int, epoch: int
) -> None:
    def dataset(batch_size: int, topology: Topology | None = None) -> MPDataset:
        made: MPDataset = MPDataset(
            texts[0],
            shuffle=order,
            epoch_samples=epoch_samples,
            batch_size=batch_size,
            tail="ragged",
            topology=topology or Topology(),
        )
        made.set_epoch(epoch)
        return made

    whole = names(dataset(12))
    assert len(whole) == epoch_samples
    first = dataset(12)
    iterator = iter(first)
    received = min(received, len(first) - 1)  # after the last batch, the next epoch begins
    for _ in range(received):
        next(iterator)
    state = json.dumps(first.state_dict())
    assert len(state) < 1024
    ranks = [dataset(4, Topology(rank=rank, world_size=3)) for rank in range(3)]
    for each in ranks:
        each.load_state_dict(json.loads(state))
    rest = [name for step in zip(*ranks, strict=True) for batch in step for name in batch[0]]
    assert rest == whole[received * 12 :]


def test_successive_epochs_go_through_all_samples(texts: list[Path]) -> None:
    dataset: MPDataset = MPDataset(texts[0], shuffle=True, epoch_samples=20, batch_size=5)
    run = [name for _ in range(5) for name in names(dataset)]
    assert len({*run[:50]}) == len({*run[50:]}) == 50
    assert run[:50] != run[50:]
    assert len(dataset) == 4


def test_draws_of_longer_epochs_are_balanced(texts: list[Path]) -> None:
    dataset: MPDataset = MPDataset(texts[0], shuffle=Balanced(), epoch_samples=4000, batch_size=4000)
    ((_, labels, _),) = [*dataset]
    assert abs(int(labels.sum()) - 2000) < 200  # more than six standard deviations


def test_a_mixture_has_its_own_length_of_epochs(texts: list[Path]) -> None:
    with pytest.raises(ArgumentError, match="Pass it to Mixture"):
        MPDataset(Mixture({texts[0]: 1}), epoch_samples=10)
    with pytest.raises(ArgumentError, match=r"epoch_samples must be in \[1, 4611686018427387904\), got 0"):
        MPDataset(texts[0], epoch_samples=0)


@pytest.mark.processes
@pytest.mark.parametrize("order", [True, Weighted("weight")])
def test_workers_make_the_same_epochs(texts: list[Path], order: Any) -> None:
    def dataset() -> MPDataset:
        return MPDataset(texts[0], shuffle=order, epoch_samples=70, batch_size=10, topology=Topology())

    plain = dataset()
    expected = [names(plain) for _ in range(3)]
    with MPLoader(dataset(), num_workers=2) as loader:
        assert [names(loader) for _ in range(3)] == expected


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    repeats=st.tuples(st.integers(1, 4), st.integers(0, 5), st.integers(0, 3)),
    order=st.sampled_from([True, False]),
    seed=st.integers(0, 5),
)
def test_every_epoch_goes_through_each_source_exactly_as_often_as_its_repeats(
    texts: list[Path], repeats: tuple[int, ...], order: Any, seed: int
) -> None:
    mixture = Mixture(dict(zip(texts, repeats, strict=True)), repeats=True)
    dataset: MPDataset = MPDataset(mixture, shuffle=order, batch_size=16, seed=seed, tail="ragged")
    epochs = [names(dataset) for _ in range(3)]
    wanted: Counter[str] = Counter()
    for letter, times, size in zip("abc", repeats, (50, 7, 31), strict=True):
        wanted.update([f"{letter}{number}" for number in range(size)] * times)
    for found in epochs:
        assert Counter(found) == wanted
    if order:
        assert epochs[0] != epochs[1]
        pattern = ["".join(name[0] for name in found) for found in epochs]
        assert pattern[0] != pattern[1] or len({*pattern[0]}) == 1 or wanted.total() < 64  # windows of 64 are shuffled
    counts = dataset.source_counts(dataset.state_dict())
    assert [*counts.values()] == [3 * times * size for times, size in zip(repeats, (50, 7, 31), strict=True)]


def test_repeats_below_one_divide_a_source_among_epochs(texts: list[Path]) -> None:
    dataset: MPDataset = MPDataset(
        Mixture({texts[0]: 0.5, texts[1]: 1.0}, repeats=True), shuffle=True, batch_size=32, tail="ragged"
    )
    first, second = names(dataset), names(dataset)
    assert len(first) == len(second) == 25 + 7
    assert len({name for name in [*first, *second] if name[0] == "a"}) == 50


def test_a_source_that_repeats_would_leave_out_is_refused(texts: list[Path]) -> None:
    with pytest.raises(ArgumentError, match=r"0\.01 repeats of 7 samples are less than one sample in an epoch"):
        MPDataset(Mixture({texts[0]: 1, texts[1]: 0.01}, repeats=True))
    MPDataset(Mixture({texts[0]: 1, texts[1]: 0}, repeats=True))


@pytest.mark.processes
def test_repeats_resume_exactly_with_workers_and_other_ranks(texts: list[Path]) -> None:
    mixture = Mixture(dict(zip(texts, (1, 3, 2), strict=True)), repeats=True)

    def dataset(batch_size: int, topology: Topology | None = None) -> MPDataset:
        return MPDataset(mixture, shuffle=True, batch_size=batch_size, tail="ragged", topology=topology or Topology())

    whole = dataset(12)
    names(whole)
    expected = names(whole)
    with MPLoader(dataset(12), num_workers=2) as loader:
        names(loader)
        for number, _ in enumerate(loader, 1):
            if number == 5:
                state = loader.state_dict()
                break
    assert len(json.dumps(state)) < 1024
    ranks = [dataset(6, Topology(rank=rank, world_size=2)) for rank in range(2)]
    for each in ranks:
        each.load_state_dict(state)
    assert [name for step in zip(*ranks, strict=True) for batch in step for name in batch[0]] == expected[60:]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epoch_samples": 5}, "repeats=True determines the length of an epoch"),
        ({"schedule": [(3, {"a.txt": 1})]}, "repeats=True determines the length of an epoch"),
    ],
)
def test_repeats_with_other_lengths_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Mixture({"a.txt": 2}, repeats=True, **options)


def test_repeats_are_not_weights(texts: list[Path]) -> None:
    with pytest.raises(ArgumentError, match="List the sources of that mixture"):
        Mixture({Mixture({texts[0]: 1}): 2}, repeats=True)
    with pytest.raises(ArgumentError, match="must have weights only"):
        Mixture({Mixture({texts[0]: 1}, repeats=True): 2})
    dataset: MPDataset = MPDataset(Mixture({texts[0]: 2}, repeats=True))
    with pytest.raises(ArgumentError, match="the mixture has repeats, which cannot be changed"):
        dataset.set_weights({texts[0]: 1})


def test_the_sources_of_a_mixture_are_drawn_by_their_own_columns(texts: list[Path]) -> None:
    mixture = Mixture(dict(zip(texts, (1, 1, 2), strict=True)), epoch_samples=8000)
    ((found, labels, _),) = MPDataset(mixture, shuffle=Balanced(), batch_size=8000)
    for letter, num_drawn in (("a", 2000), ("b", 2000), ("c", 4000)):
        own = np.array([name[0] == letter for name in found])
        assert abs(own.sum() - num_drawn) < 2
        assert abs(labels.numpy()[own].mean() - 0.5) < 0.08  # seven standard deviations
    ((found, *_),) = MPDataset(mixture, shuffle=Weighted("weight"), batch_size=8000)
    assert not {"a0", "b0", "c0"} & {*found}  # of weight 0
    hard_first = Curriculum("weight", window_samples=1, descending=True)
    halves = Mixture({texts[0]: 1, texts[1]: 1}, epoch_samples=14)
    ((found, *_),) = MPDataset(halves, shuffle=hard_first, batch_size=14)
    assert sorted(name for name in found if name[0] == "a") == sorted(f"a{49 - number}" for number in range(7))
    assert sorted(name for name in found if name[0] == "b") == sorted(f"b{6 - number}" for number in range(7))


def test_orders_that_do_not_fit_a_mixture_are_refused(texts: list[Path], tmp_path: Path) -> None:
    mixture = Mixture({texts[0]: 1})
    np.save(tmp_path / "w.npy", np.ones(50))
    for order in (Weighted(tmp_path / "w.npy"), Curriculum(tmp_path / "w.npy", window_samples=2)):
        with pytest.raises(ArgumentError, match=r"a \.npy file is for one index, .* column of each source"):
            MPDataset(mixture, shuffle=order)
    with pytest.raises(ArgumentError, match="is for one index"):
        MPDataset(mixture, shuffle=PKBatches(classes_per_batch=2), batch_size=8)


@pytest.mark.processes
@pytest.mark.parametrize("is_mixture", [False, True])
def test_a_sample_that_is_drawn_again_gets_other_random_numbers(tmp_path: Path, is_mixture: bool) -> None:
    def decode(data: bytes, rng: np.random.Generator) -> np.ndarray:
        return np.frombuffer(data + rng.bytes(8), np.uint8)

    path = source(tmp_path, "a", 7)
    index: Any = Mixture({path: 1}, epoch_samples=70) if is_mixture else path
    epoch_samples = None if is_mixture else 70

    def dataset() -> MPDataset:
        return mixed(
            index, decode=decode, shuffle=Balanced(), epoch_samples=epoch_samples, topology=Topology(),
        )  # fmt: skip

    plain = dataset()
    found = [bytes(np.asarray(image)) for batch in plain for image in batch["image"]]
    assert len({data[:10] for data in found}) == 7
    assert len({data[10:] for data in found}) == len(found) == 70
    with MPLoader(dataset(), num_workers=2) as loader:
        assert [bytes(np.asarray(image)) for batch in loader for image in batch["image"]] == found


def test_errors_name_the_line_of_a_sample_that_is_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = source(tmp_path, "a", 3)
    (tmp_path / "a" / "a1").unlink()
    substitute = ErrorPolicy(action="substitute", max_error_fraction=1)
    dataset = mixed(path, shuffle=Balanced(), epoch_samples=60, on_error=substitute)  # type: ignore[arg-type]
    with pytest.warns(MploadWarning, match="a bad sample"):
        assert {name.replace(" ", "") for name, _ in samples(dataset)} == {"a0", "a2"}
    dataset = mixed(path, shuffle=Balanced(), epoch_samples=60)  # type: ignore[arg-type]
    with pytest.raises(SampleError, match=r"a\.txt:5: sample 1 \(.*a1\)"):
        samples(dataset)


@pytest.mark.parametrize("order", [True, Balanced(), Curriculum("weight", window_samples=4), PKBatches("label", 2, 2)])
def test_an_epoch_that_began_before_lines_were_appended_ends_over_the_old_ones(tmp_path: Path, order: Any) -> None:
    text = tmp_path / "a.txt"
    lines = [f"a{number}\t{number % 3}\t{number}\n" for number in range(60)]

    def dataset() -> MPDataset:
        return MPDataset(text, shuffle=order, epoch_samples=12, batch_size=4, topology=Topology())

    text.write_text("#mpload 1\n#columns name:str label:int weight:int\n" + "".join(lines[:20]))
    whole = names(dataset())
    first = dataset()
    next(iter(first))
    state = first.state_dict()
    text.write_text(text.read_text() + "".join(lines[20:]))
    grown = dataset()
    grown.load_state_dict(state)
    assert names(grown) == whole[4:]
    later = {name for _ in range(10) for name in names(grown)}
    assert later - {line.split("\t")[0] for line in lines[:20]}
