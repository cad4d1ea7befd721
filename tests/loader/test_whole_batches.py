"""MPLoader with what DataLoader's users have: `collate_fn`, samplers, single samples, `worker_init_fn`."""

import errno
import json
import pickle
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from mpload import ErrorPolicy, MPLoader, MploadWarning, Topology, WorkerError
from mpload.errors import ArgumentError, SampleError, StateError, TooManyBadSamples
from tests.support.map_styles import Broken, Drawn, Killing, Tuples
from tests.support.whole_batches import (
    Bulk,
    ByName,
    DamagedError,
    Deadly,
    Informed,
    OddError,
    Photos,
    Scene,
    Scenes,
    Unlucky,
    as_list,
    deadly,
    mixed_up,
    number_dataset,
    picky,
)

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux"),
    pytest.mark.processes,
]

SUBSTITUTE_OF_SEVEN = 9  # with seed 1 in epoch 0
FORKS: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}
"""Two workers that are forks of the test's process, which start at once."""
both = pytest.mark.parametrize("workers", [{"num_workers": 0}, FORKS], ids=["0", "2 fork"])


@pytest.mark.parametrize("workers", [{"num_workers": 0}, FORKS, {"num_workers": 2}], ids=["0", "2 fork", "2"])
def test_what_collate_fn_returns_arrives_as_it_is(workers: dict[str, Any]) -> None:
    with MPLoader(Scenes(), batch_size=5, collate_fn=as_list, drop_last=False, **workers) as loader:
        scenes = [scene for batch in loader for scene in batch]
    assert [type(scene) for scene in scenes] == [Scene] * 23
    assert all(torch.equal(scene.boxes, Scenes()[i].boxes) for i, scene in enumerate(scenes))
    assert [scene.caption for scene in scenes] == [Scenes()[i].caption for i in range(23)]


@both
def test_images_of_pil_and_tensors_of_any_dtype_arrive(workers: dict[str, Any]) -> None:
    with MPLoader(Photos(4), batch_size=2, collate_fn=as_list, **workers) as loader:
        ((photo, more), *_), _ = list(loader)
    assert isinstance(photo, Image.Image)
    assert np.array_equal(np.asarray(photo), np.zeros((4, 3, 3)))
    assert more["half"].dtype == torch.bfloat16


@both
def test_single_samples_come_without_a_batch_size(workers: dict[str, Any]) -> None:
    expected = list(DataLoader(Tuples(), batch_size=None))  # type: ignore[arg-type]
    with MPLoader(Tuples(), batch_size=None, **workers) as loader:
        assert len(loader) == 23
        received = list(loader)
    assert [str(sample) for sample in received] == [str(sample) for sample in expected]


@both
def test_a_sampler_decides_what_is_read(workers: dict[str, Any]) -> None:
    names = ["b", ("a", 1), "b", "c", "d"]
    with MPLoader(ByName(), sampler=names, batch_size=2, **workers) as loader:
        assert len(loader) == 3
        assert list(loader) == [["<b>", "<('a', 1)>"], ["<b>", "<c>"], ["<d>"]]
    with MPLoader(ByName(), sampler=names, batch_size=2, drop_last=True, **workers) as loader:
        assert len(list(loader)) == len(loader) == 2
    with MPLoader(ByName(), sampler=names, batch_size=None, **workers) as loader:
        assert list(loader) == [f"<{name}>" for name in names]


@both
def test_a_batch_sampler_decides_what_a_batch_holds(workers: dict[str, Any]) -> None:
    batches = [[0, 1], [2, 3, 4], [], [5]]
    with MPLoader([*range(9)], batch_sampler=batches, collate_fn=as_list, **workers) as loader:
        assert len(loader) == 4
        assert list(loader) == list(loader) == batches
    sampler = BatchSampler(WeightedRandomSampler([0.0, 1.0, 0.0], 4), batch_size=2, drop_last=False)
    with MPLoader([*range(3)], batch_sampler=sampler, **workers) as loader:
        assert [batch.tolist() for batch in loader] == [[1, 1], [1, 1]]


@both
def test_a_sampler_without_a_length_is_read_to_its_end(workers: dict[str, Any]) -> None:
    class Endless:
        def __iter__(self) -> Any:
            return iter(range(5))

    with MPLoader([*range(5)], sampler=Endless(), batch_size=2, collate_fn=as_list, **workers) as loader:
        assert list(loader) == list(loader) == [[0, 1], [2, 3], [4]]
        with pytest.raises(TypeError, match="the sampler has no length"):
            len(loader)


def test_batches_do_not_depend_on_the_number_of_workers() -> None:
    def epochs(**options: Any) -> list[str]:
        with MPLoader(Drawn(with_torch=True), collate_fn=mixed_up, **options) as loader:
            return [str(list(loader)), str(list(loader))]

    for options in (
        {"batch_size": 5, "shuffle": True, "seed": 3, "topology": Topology()},
        {"batch_size": 5, "sampler": [*range(23), 1, 1]},
        {"batch_size": None},
    ):
        first, second = alone = epochs(num_workers=0, **options)
        assert first != second
        assert epochs(**FORKS, **options) == alone
    assert epochs(num_workers=7, **options) == alone


def test_a_sample_that_a_sampler_repeats_gets_other_random_numbers() -> None:
    with MPLoader(Drawn(), sampler=[4, 4], batch_size=2, num_workers=0) as loader:
        ((_, _, drawn, *_),) = list(loader)
    assert not torch.equal(drawn[0], drawn[1])


@both
def test_the_samples_of_a_batch_can_be_got_at_once(workers: dict[str, Any]) -> None:
    with MPLoader(Bulk(), batch_size=10, shuffle=True, drop_last=False, **workers) as loader:
        batches = list(loader)
    assert sorted(torch.cat([batch[0] for batch in batches]).tolist()) == list(range(23))
    assert [batch[1].tolist() for batch in batches] == [[10] * 10, [10] * 10, [3] * 3]
    assert len(set(torch.cat([batch[2] for batch in batches]).flatten().tolist())) == 23


@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_worker_knows_its_number(batch_size: int | None) -> None:
    with MPLoader(Informed(), batch_size=batch_size, worker_init_fn=number_dataset, **FORKS) as loader:
        for _, set_by_init, number, num_workers in loader:
            assert set_by_init.tolist() == number.tolist() if batch_size else set_by_init == number
            assert np.all(np.asarray(number) < 2)
            assert np.all(np.asarray(num_workers) == 2)
    assert torch.utils.data.get_worker_info() is None


def test_an_error_in_worker_init_fn_ends_the_iteration() -> None:
    def fails(worker: int) -> None:
        raise ZeroDivisionError(f"in worker {worker}")

    with (
        MPLoader([*range(4)], collate_fn=as_list, num_workers=1, worker_init_fn=fails) as loader,
        pytest.raises(WorkerError, match=r"worker 0 cannot prepare for its work: ZeroDivisionError: in worker 0"),
    ):
        list(loader)


@both
def test_what_failed_is_named_and_only_its_batch_is_lost(workers: dict[str, Any]) -> None:
    cases: list[tuple[Any, Any, str]] = [
        (Broken(), as_list, r"^sample 7 of Broken: KeyError: 'seven'$"),
        ([*range(23)], picky, r"^collate_fn on samples 5, 6, 7, 8, 9 of list: LookupError: seven$"),
    ]
    for dataset, collate, message in cases:
        with MPLoader(dataset, batch_size=5, collate_fn=collate, drop_last=False, **workers) as loader:
            batches = iter(loader)
            assert next(batches) == [0, 1, 2, 3, 4]
            with pytest.raises(SampleError, match=message):
                next(batches)
            assert [sample for batch in batches for sample in batch] == list(range(10, 23))


@both
@pytest.mark.parametrize("collate", [None, as_list])
def test_an_error_of_the_users_own_class_is_caught_as_that_class(workers: dict[str, Any], collate: Any) -> None:
    dataset = Unlucky()
    with MPLoader(dataset, batch_size=5, drop_last=False, collate_fn=collate, **workers) as loader:
        caught: list[Any] = []
        batches = iter(loader)
        while len(caught) < 5:
            with pytest.raises(SampleError) as raised:
                next(batches)
            caught.append(raised.value)
    damaged, missing, ended, huge, forgotten = caught
    assert isinstance(damaged, DamagedError)
    assert (damaged.code, str(damaged)) == (3, "sample 2 of Unlucky: DamagedError: file 3 is damaged")
    assert isinstance(missing, FileNotFoundError)
    assert (missing.errno, missing.filename) == (errno.ENOENT, "a.jpg")
    assert not isinstance(ended, StopIteration)
    assert isinstance(huge, OddError)
    assert huge.level == 5
    assert isinstance(forgotten, NotImplementedError)
    assert type(pickle.loads(pickle.dumps(damaged))) is SampleError


def test_a_batch_that_cannot_be_pickled_is_named() -> None:
    with MPLoader([*range(4)], batch_size=2, collate_fn=iter, num_workers=1) as loader:
        assert list(next(iter(loader))) == [0, 1]
    with (
        MPLoader([*range(4)], batch_size=2, collate_fn=lambda samples: (i for i in samples), num_workers=1) as loader,
        pytest.raises(SampleError, match=r"the batch of samples 0, 1 of list: TypeError: cannot pickle 'generator'"),
    ):
        list(loader)


def test_a_killed_worker_loses_and_repeats_no_batch(tmp_path: Any) -> None:
    with MPLoader(
        Killing(tmp_path / "once"), batch_size=5, collate_fn=as_list, drop_last=False, num_workers=2
    ) as loader:
        assert [sample for batch in loader for sample in batch] == list(range(23))
        assert loader.stats().num_deaths == 1
        assert loader.stats().num_samples == 23


def test_batches_that_are_kept_do_not_change() -> None:
    with MPLoader(Scenes(200), batch_size=2, collate_fn=as_list, **FORKS) as loader:
        kept = list(loader)
        assert all(torch.equal(s.boxes, Scenes()[2 * k + i].boxes) for k, b in enumerate(kept) for i, s in enumerate(b))


@both
def test_a_run_with_a_sampler_is_resumed_where_it_was_left(workers: dict[str, Any]) -> None:
    def make(sampler: Any) -> MPLoader[list[int]]:
        return MPLoader([*range(10)], sampler=sampler, batch_size=3, collate_fn=as_list, **workers)

    with make([*range(10)]) as loader:
        batches = iter(loader)
        assert next(batches) == [0, 1, 2]
        state = loader.state_dict()
    with make([*range(10)]) as loader:
        loader.load_state_dict(state)
        assert list(loader) == [[3, 4, 5], [6, 7, 8], [9]]
        assert len(list(loader)) == 4
    with make(RandomSampler(range(10))) as loader, pytest.raises(StateError, match="list by RandomSampler"):
        loader.load_state_dict(state)


def test_a_generator_draws_the_seed() -> None:
    def order(seed: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        with MPLoader([*range(100)], batch_size=100, shuffle=True, generator=generator, num_workers=0) as loader:
            numbers: list[int] = next(iter(loader)).tolist()
            return numbers

    assert order(1) == order(1) != order(2)


@both
@pytest.mark.parametrize("options", [{}, {"collate_fn": torch.tensor}, {"sampler": range(23)}])
def test_bad_samples_are_skipped_or_substituted_and_written_down(
    tmp_path: Path, options: dict[str, Any], workers: dict[str, Any]
) -> None:
    for action in ("skip", "substitute"):
        report = tmp_path / action
        policy = ErrorPolicy(action=action, report=report)
        with (
            MPLoader(Broken(), batch_size=5, on_error=policy, drop_last=False, **workers, **options) as loader,
            pytest.warns(MploadWarning, match="a bad sample"),
        ):
            batches = [batch.tolist() for batch in loader]
        assert batches[0] + batches[2] + batches[3] + batches[4] == [*range(5), *range(10, 23)]
        assert len(batches[1]) == (4 if action == "skip" else 5)
        assert 7 not in batches[1]
        (line,) = map(json.loads, report.read_text().splitlines())
        assert line == {
            "sample_id": 7,
            "where": "Broken",
            "paths": ["Broken[7]"],
            "cause": "KeyError: 'seven'",
            "epoch": 0,
            "action": action,
        }


@pytest.mark.parametrize("options", [{}, {"sampler": range(23)}])
@pytest.mark.parametrize("action", ["skip", "substitute"])
def test_a_sample_that_kills_its_worker_is_the_only_one_lost(
    tmp_path: Path, action: Any, options: dict[str, Any]
) -> None:
    policy = ErrorPolicy(action=action, report=tmp_path / "report")
    with (
        MPLoader(Deadly(), batch_size=5, on_error=policy, drop_last=False, num_workers=2, **options) as loader,
        pytest.warns(MploadWarning, match="a bad sample"),
    ):
        batches = [batch.tolist() for batch in loader]
    assert [len(batch) for batch in batches] == [5, 4 if action == "skip" else 5, 5, 5, 3]
    assert {sample for batch in batches for sample in batch} == set(range(23)) - {7}
    (line,) = map(json.loads, (tmp_path / "report").read_text().splitlines())
    assert (line["paths"], line["cause"]) == (["Deadly[7]"], "killed its worker (SIGSEGV)")


@pytest.mark.parametrize("options", [{"collate_fn": as_list}, {"sampler": range(23)}])
def test_a_sample_that_kills_its_worker_is_named(options: dict[str, Any]) -> None:
    with MPLoader(Deadly(), batch_size=5, num_workers=1, **options) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(SampleError, match=r"^sample 7 of Deadly: killed its worker \(SIGSEGV\)$"):
            next(batches)
        assert list(next(batches)) == list(range(10, 15))


def test_a_substitute_that_kills_its_worker_too_fails_its_batch_at_once() -> None:
    with MPLoader(Deadly(), batch_size=2, on_error="substitute", sampler=[7, 7, 8, 9], num_workers=1) as loader:
        batches = iter(loader)
        with pytest.raises(SampleError, match=r"^sample 7 of Deadly: killed its worker \(SIGSEGV\)$"):
            next(batches)
        assert list(next(batches)) == [8, 9]
        assert loader.stats().num_deaths == 4


def test_a_collate_fn_that_kills_its_worker_is_no_samples_fault() -> None:
    with MPLoader([*range(23)], batch_size=5, on_error="skip", collate_fn=deadly, num_workers=1) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(SampleError, match=r"^a batch of list: killed its worker \(SIGSEGV\)$"):
            next(batches)


@both
def test_substitutes_do_not_depend_on_the_number_of_workers(tmp_path: Path, workers: dict[str, Any]) -> None:
    policy = ErrorPolicy(action="substitute", report=tmp_path / "report", max_error_fraction=1)
    with (
        MPLoader(Broken(), batch_size=None, on_error=policy, shuffle=True, seed=1, **workers) as loader,
        pytest.warns(MploadWarning, match="a bad sample"),
    ):
        samples = list(loader)
    assert len(samples) == 23
    with MPLoader([*range(23)], batch_size=None, shuffle=True, seed=1, num_workers=0) as loader:
        ((expected, substitute),) = [pair for pair in zip(loader, samples, strict=True) if pair[0] != pair[1]]
    assert (expected, substitute) == (7, SUBSTITUTE_OF_SEVEN)


@both
def test_the_bad_samples_of_an_epoch_that_is_read_again_are_counted_anew(
    tmp_path: Path, workers: dict[str, Any]
) -> None:
    policy = ErrorPolicy(action="skip", report=tmp_path / "report", max_error_fraction=0.006)  # of 1,000: 6
    with MPLoader(Unlucky(), batch_size=23, on_error=policy, **workers) as loader, warnings.catch_warnings():
        warnings.simplefilter("ignore", MploadWarning)
        for _ in range(3):
            loader.set_epoch(0)
            assert len(list(loader)) == 1


@both
def test_too_many_bad_samples_end_the_epoch(tmp_path: Path, workers: dict[str, Any]) -> None:
    policy = ErrorPolicy(action="skip", report=tmp_path / "report", max_error_fraction=0.002)
    with (
        MPLoader(Unlucky(), batch_size=23, on_error=policy, **workers) as loader,
        pytest.warns(MploadWarning, match="a bad sample"),
        pytest.raises(TooManyBadSamples, match=r"3 of 23 samples failed, .* Unlucky: sample 12 \(Unlucky\[12\]\): "),
    ):
        list(loader)
    with pytest.raises(ArgumentError, match="on_error='skip' makes batches shorter"):
        MPLoader(Broken(), batch_size=None, on_error="skip", num_workers=0)


def test_a_restored_run_tells_its_sampler_the_epoch() -> None:
    dataset: Any = [*range(20)]

    def loader() -> MPLoader[Any]:
        sampler: Any = DistributedSampler(dataset, num_replicas=2, rank=1, seed=3)
        return MPLoader(dataset, sampler=sampler, batch_size=2, collate_fn=as_list, num_workers=0)

    with loader() as first:
        list(first)
        first.set_epoch(1)
        batches = iter(first)
        received = [next(batches), next(batches)]
        state, rest = first.state_dict(), list(batches)
    with loader() as resumed:
        resumed.load_state_dict(state)
        assert list(resumed) == rest
    assert len(received + rest) == 5


@pytest.mark.parametrize("kind", [RandomSampler, SubsetRandomSampler, partial(WeightedRandomSampler, num_samples=20)])
def test_a_restored_run_warns_of_a_sampler_that_draws_another_order(kind: Any) -> None:
    dataset = [1] * 20
    with MPLoader(dataset, sampler=kind(dataset), batch_size=2, num_workers=0) as loader:
        before = loader.state_dict()
        next(iter(loader))
        with pytest.warns(MploadWarning, match="draws another order than before the checkpoint"):
            loader.load_state_dict(loader.state_dict())
        loader.load_state_dict(before)
    seeded = kind(dataset, generator=torch.Generator().manual_seed(0))
    with MPLoader(dataset, sampler=seeded, batch_size=2, num_workers=0) as loader:
        next(iter(loader))
        loader.load_state_dict(loader.state_dict())
