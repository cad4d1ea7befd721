"""Datasets of mixtures: the same samples everywhere, and resumed exactly, with other weights too."""

import itertools
import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

from mpload import BlockShuffle, ErrorPolicy, Mixture, MPDataset, MPLoader, PartialCache, RawBytes, Topology
from mpload.errors import ArgumentError, StateError
from mpload.samples.counts import CACHE_HITS, CACHE_MISSES
from tests.support.mixtures import mixed, samples, source


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("sources")
    return [source(folder, name, size, root="files") for name, size in (("a", 70), ("b", 9), ("c", 31))]


def _mixture(sources: list[Path], weights: tuple[float, ...] = (5, 3, 2), **options: Any) -> Mixture:
    return Mixture(dict(zip(sources, weights, strict=True)), **{"epoch_samples": 120, **options})


def _names(found: list[tuple[str, int]]) -> Counter[str]:
    return Counter(name[0] for name, _ in found)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("roots", [1, 3])
@pytest.mark.parametrize("order", [True, False, BlockShuffle(block_samples=4, window_blocks=3)])
def test_all_loaders_yield_the_same_epochs(tmp_path: Path, roots: int, order: Any) -> None:
    root = "files" if roots == 1 else ""
    paths = [source(tmp_path, name, size, root=root) for name, size in (("a", 70), ("b", 9), ("c", 31))]
    plain = mixed(_mixture(paths), shuffle=order)
    expected = [samples(plain) for _ in range(2)]
    assert expected[0] != expected[1]
    counts = _names(expected[0])
    assert abs(counts["a"] - 60) < 4 and abs(counts["b"] - 36) < 4 and abs(counts["c"] - 24) < 4  # noqa: PT018
    dataset = mixed(_mixture(paths), shuffle=order)
    stock = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    assert [samples(stock) for _ in range(2)] == expected
    with MPLoader(mixed(_mixture(paths), shuffle=order), num_workers=2) as loader:
        assert [samples(loader) for _ in range(2)] == expected


def test_the_epochs_of_a_source_go_on_in_the_next_epoch_of_the_mixture(sources: list[Path]) -> None:
    dataset = mixed(_mixture(sources))
    found = [name for _ in range(4) for name, _ in samples(dataset)]
    for letter, size in (("a", 70), ("b", 9), ("c", 31)):
        own = [name for name in found if name[0] == letter]
        laps = [own[start : start + size] for start in range(0, len(own) // size * size, size)]
        assert all(len(set(lap)) == size for lap in laps)
        assert len({tuple(lap) for lap in laps}) == len(laps) > 2


def test_a_sample_that_comes_again_in_an_epoch_gets_other_random_numbers(sources: list[Path]) -> None:
    def decode(data: bytes, rng: np.random.Generator) -> np.ndarray:
        return np.frombuffer(data + rng.bytes(8), np.uint8)

    dataset: MPDataset = MPDataset(_mixture(sources, (0, 1, 0)), decode=decode, shuffle=True, as_dict=True)
    found = [bytes(sample["image"].numpy()) for sample in dataset]
    assert len({data[:10] for data in found}) == 9
    assert len({data[10:] for data in found}) == len(found) == 120


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    first=st.integers(1, 11),
    ranks=st.sampled_from([(1, 12), (2, 6), (3, 4)]),
    weights=st.none() | st.tuples(st.integers(0, 5), st.integers(1, 5), st.integers(0, 5)),
    epoch=st.integers(0, 3),
)
def test_a_run_resumes_exactly_on_other_ranks_and_after_a_change_of_weights(
    sources: list[Path], first: int, ranks: tuple[int, int], weights: tuple[int, ...] | None, epoch: int
) -> None:
    mixture = _mixture(sources, schedule=[(50, dict(zip(sources, (1, 1, 1), strict=True)))])
    whole = mixed(mixture, batch_size=10)
    whole.set_epoch(epoch)
    received = samples(itertools.islice(iter(whole), first))
    state = whole.state_dict()
    if weights is not None:
        whole.load_state_dict(state)
        whole.set_weights(dict(zip(sources, weights, strict=True)))
        state = whole.state_dict()
    stored = json.dumps(state)
    assert len(stored) <= 1024
    whole.load_state_dict(json.loads(stored))
    rest = samples(whole)
    if weights is None:
        again = mixed(mixture)
        again.set_epoch(epoch)
        assert received + rest == samples(again)
    else:
        shares = _names(rest)
        # The epoch may end within a permuted window, with up to 64 w (1 - w) samples on the other side of its end.
        assert all(abs(shares["abc"[n]] - len(rest) * weights[n] / sum(weights)) < 17 for n in range(3))
    world_size, batch_size = ranks
    parts = []
    for rank in range(world_size):
        dataset = mixed(mixture, batch_size=batch_size, topology=Topology(rank=rank, world_size=world_size))
        dataset.load_state_dict(json.loads(stored))
        parts.append([samples([batch]) for batch in dataset])
    in_order = [sample for step in zip(*parts, strict=True) for batch in step for sample in batch]
    assert in_order[: len(rest)] == rest


@pytest.mark.processes
def test_workers_take_over_changed_and_restored_weights(sources: list[Path]) -> None:
    dataset = mixed(_mixture(sources))
    with MPLoader(dataset, num_workers=2) as loader:
        batches = iter(loader)
        before = samples(itertools.islice(batches, 5))
        state = loader.state_dict()
        del batches
        loader.load_state_dict(state)
        dataset.set_weights(dict(zip(sources, (0, 0, 1), strict=True)))
        changed = loader.state_dict()
        after = samples(loader)
        assert _names(after) == {"c": 70}
        following = samples(loader)
        assert _names(following) == {"c": 120}
        loader.load_state_dict(state)
        assert before + samples(loader) == samples(mixed(_mixture(sources)))
        loader.load_state_dict(changed)
        assert samples(loader) == after
    resumed = mixed(_mixture(sources))
    resumed.load_state_dict(changed)
    assert samples(resumed) == after
    assert samples(resumed) == following


@pytest.mark.processes
def test_persistent_workers_of_a_dataloader_do_not_go_on_with_old_weights(sources: list[Path]) -> None:
    dataset = mixed(_mixture(sources))
    stock = DataLoader(dataset, batch_size=None, num_workers=1, persistent_workers=True)
    samples(stock)
    dataset.set_weights(dict(zip(sources, (0, 0, 1), strict=True)))
    with pytest.raises(StateError, match="persistent workers of a DataLoader keep the old ones"):
        samples(stock)
    assert _names(samples(DataLoader(dataset, batch_size=None, num_workers=1))) == {"c": 120}


@pytest.mark.processes
def test_weights_that_only_workers_have_restored_are_not_forgotten(sources: list[Path]) -> None:
    def part(loader: Any) -> list[tuple[str, int]]:
        return samples(itertools.islice(loader, 3))

    dataset, expected = mixed(_mixture(sources)), mixed(_mixture(sources))
    weights = dict(zip(sources, (0, 0, 1), strict=True))
    for each in (dataset, expected):
        each.set_weights(weights)
    before = StatefulDataLoader(dataset, batch_size=None, num_workers=1)
    found = part(before)
    state, own = before.state_dict(), dataset.state_dict(num_batches=3)

    forgetful = mixed(_mixture(sources))
    loader = StatefulDataLoader(forgetful, batch_size=None, num_workers=1)
    loader.load_state_dict(state)
    assert found + samples(loader) == samples(expected)
    for use in (lambda: samples(loader), forgetful.state_dict, lambda: forgetful.set_weights(weights)):
        with pytest.raises(StateError, match="restore them here too"):
            use()

    resumed = mixed(_mixture(sources))
    resumed.load_state_dict(own)
    loader = StatefulDataLoader(resumed, batch_size=None, num_workers=1)
    loader.load_state_dict(state)
    samples(loader)
    assert samples(loader) == samples(expected)


def test_a_schedule_changes_weights_at_a_position_of_the_run(sources: list[Path]) -> None:
    schedule = [(60, dict(zip(sources, (0, 1, 0), strict=True))), (240, dict(zip(sources, (0, 0, 1), strict=True)))]
    dataset = mixed(_mixture(sources, schedule=schedule))
    first, second, third = samples(dataset), samples(dataset), samples(dataset)
    assert _names(first[60:]) == {"b": 60}
    assert _names(second) == {"b": 120}
    assert _names(third) == {"c": 120}
    dataset.set_epoch(1)
    dataset.set_weights(dict(zip(sources, (1, 0, 0), strict=True)))
    assert _names(samples(dataset)) == _names(samples(dataset)) == {"a": 120}


def test_the_samples_of_each_source_before_a_state_are_counted(sources: list[Path]) -> None:
    dataset = mixed(_mixture(sources))
    found = samples(dataset) + samples(itertools.islice(iter(dataset), 5))
    state = dataset.state_dict()
    counts = _names(found)
    assert dataset.source_counts(state) == {str(path): counts[path.stem] for path in sources}
    dataset.load_state_dict(state)
    dataset.set_weights(dict(zip(sources, (0, 1, 0), strict=True)))
    found += samples(dataset)
    assert dataset.source_counts(dataset.state_dict())[str(sources[1])] == _names(found)["b"]


def test_states_belong_to_the_weights_that_the_run_began_with(sources: list[Path]) -> None:
    state = mixed(_mixture(sources)).state_dict()
    assert "changes" not in state
    for other in (_mixture(sources, (5, 3, 1)), _mixture(sources, epoch_samples=121)):
        with pytest.raises(StateError, match=r"Pass the same shuffle= and Mixture \(set_weights changes"):
            mixed(other).load_state_dict(state)
    with pytest.raises(StateError, match="made with another index"):
        mixed(_mixture(sources, match_classes=False, source_column="source")).load_state_dict(state)
    damaged: tuple[Any, ...] = (
        [[5, [1, 1]]],
        [[5]],
        [[5, [1, 1, -1]]],
        3,
        [[9, [1, 1, 1]], [5, [1, 1, 1]]],
        [[5, [1, 1, 1], [1, 2, 2]]],
        [[5, [1, 1, 1], [1, 2, 3], []]],
        [[5, [1, 1, 1], [1, 2, 2], [1, 1, 1]]],
        [[5, [1, 1, 1], [1, 2, 2], [1 << 62, -(1 << 62), 0]]],
        [[5, [1, 1, 1], [1, 2, 2], 7]],
        [[5, [1, 1, 1]], [9, [1, 1, 1], [3, 3, 3], []]],
    )
    for changes in damaged:
        with pytest.raises(StateError):
            mixed(_mixture(sources)).load_state_dict({**state, "changes": changes})
    with pytest.raises(StateError, match="damaged: epoch must be in"):
        mixed(_mixture(sources)).load_state_dict({**state, "epoch": 1 << 60})


def test_only_mixtures_have_weights(sources: list[Path]) -> None:
    with pytest.raises(ArgumentError, match="is not a mixture, so it has no weights"):
        MPDataset(sources[0], decode=RawBytes()).set_weights({sources[0]: 1})
    plain = MPDataset(sources[0], decode=RawBytes())
    with pytest.raises(ArgumentError, match="is not a mixture"):
        plain.source_counts(plain.state_dict())
    with pytest.raises(ArgumentError, match="weights must name each source"):
        mixed(_mixture(sources)).set_weights({sources[0]: 1})
    with pytest.raises(ArgumentError, match="row_index=True is not for mixtures"):
        MPDataset(_mixture(sources), row_index=True)


def test_a_cache_keeps_each_sample_of_a_mixture_once(sources: list[Path], tmp_path: Path) -> None:
    cache = PartialCache(tmp_path / "cache", max_bytes="10MB")
    dataset = mixed(_mixture(sources), cache=cache)
    assert [samples(dataset) for _ in range(2)] == [
        samples(plain) for plain in [mixed(_mixture(sources))] for _ in "ab"
    ]
    counts = dataset._run.pipeline.take_counts()
    assert counts[CACHE_MISSES] <= 110 < counts[CACHE_HITS]


def test_caches_of_mixtures_with_equal_lines_and_other_roots_are_separate(tmp_path: Path) -> None:
    sources = [source(tmp_path, name, 4) for name in ("one", "two", "six")]
    lines = [f"{number}\t{number}" for number in range(4)]
    for path in sources:
        for number in range(4):
            (path.parent / path.stem / f"{number}").write_text(f"{path.stem} {number}")
        path.write_text("\n".join(["#mpload 1", f"#root {path.stem}", "#columns image:path label:int", *lines]) + "\n")
    cache = PartialCache(tmp_path / "cache", fraction=1.0, check_source=False)

    def names(other: Path) -> set[str]:
        found = samples(mixed(Mixture({sources[0]: 1, other: 1}), cache=cache, batch_size=4))
        return {name[:3] for name, _ in found}

    assert names(sources[1]) == {"one", "two"}
    assert names(sources[2]) == {"one", "six"}


def test_a_cache_notices_changed_files_of_a_mixture_that_has_urls_too(tmp_path: Path) -> None:
    one, two = source(tmp_path, "a", 4), source(tmp_path, "b", 4)
    two.write_text(two.read_text().replace("#root b", "#root http://localhost:9/b"))
    mixture, cache = Mixture({one: 1, two: 0}, epoch_samples=4), PartialCache(tmp_path / "cache", fraction=1.0)
    samples(mixed(mixture, cache=cache, batch_size=4))
    for number in range(4):
        (tmp_path / "a" / f"a{number}").write_text("changed")
    assert {name for name, _ in samples(mixed(mixture, cache=cache, batch_size=4))} == {"changed"}


@pytest.mark.processes
@pytest.mark.parametrize("action", ["skip", "substitute"])
@pytest.mark.parametrize("read", [iter, lambda dataset: MPLoader(dataset, num_workers=1)], ids=["plain", "workers"])
def test_bad_samples_of_later_laps_are_reported_with_their_line(
    tmp_path: Path, action: Any, read: Callable[[MPDataset], Any]
) -> None:
    one, two = source(tmp_path, "a", 40), source(tmp_path, "b", 4)
    (tmp_path / "b" / "b2").unlink()
    report = tmp_path / "report.jsonl"
    policy = ErrorPolicy(action=action, max_error_fraction=1, report=report)
    dataset = mixed(Mixture({one: 1, two: 1}, epoch_samples=60), on_error=policy)
    with pytest.warns(match="a bad sample"):
        found = samples(read(dataset))
    assert len(found) == (60 if action == "substitute" else 60 - len(report.read_text().splitlines()))
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert len(lines) >= 6
    assert {(line["sample_id"], line["where"]) for line in lines} == {(42, f"{two}:6")}


@pytest.mark.processes
@pytest.mark.parametrize("read", [iter, lambda dataset: MPLoader(dataset, num_workers=1)], ids=["plain", "workers"])
def test_a_substitute_is_from_the_same_source(tmp_path: Path, read: Callable[[MPDataset], Any]) -> None:
    held_out, one = source(tmp_path, "a", 40), source(tmp_path, "b", 12)
    for number in (2, 5, 7):
        (tmp_path / "b" / f"b{number}").unlink()
    policy = ErrorPolicy(action="substitute", max_error_fraction=1, report=tmp_path / "report.jsonl")
    dataset = mixed(Mixture({held_out: 0, one: 1}, epoch_samples=60), on_error=policy)
    with pytest.warns(match="a bad sample"):
        assert _names(samples(read(dataset))) == {"b": 60}


class _Deadly(RawBytes):
    def __call__(self, data: Any) -> Any:
        if bytes(data) == b"b        1":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(data)


@pytest.mark.slow
@pytest.mark.processes
def test_a_sample_that_kills_workers_is_not_its_own_substitute(tmp_path: Path) -> None:
    one, two = source(tmp_path, "a", 8), source(tmp_path, "b", 2)
    policy = ErrorPolicy(action="substitute", max_error_fraction=1, report=tmp_path / "report.jsonl")
    dataset = mixed(Mixture({one: 1, two: 1}, epoch_samples=20), on_error=policy, decode=_Deadly())
    with pytest.warns(match="a bad sample"), MPLoader(dataset, num_workers=1) as loader:
        found = samples(loader)
    assert len(found) == 20
    assert {name for name, _ in found if name.startswith("b")} == {"b        0"}


def test_samples_without_batches_are_those_of_the_batches(sources: list[Path]) -> None:
    one_by_one: MPDataset = MPDataset(_mixture(sources), decode=RawBytes(), shuffle=True, as_dict=True)
    found = [(bytes(sample["image"]).decode(), int(sample["label"])) for sample in one_by_one]
    assert found == samples(mixed(_mixture(sources)))
