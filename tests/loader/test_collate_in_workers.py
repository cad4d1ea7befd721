"""Workers make whole batches: what `collate` is given, returns and raises is the same as in the training process."""

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from mpload import ErrorPolicy, Flat, ImageDecoder, MPLoader, MploadWarning, Pad
from mpload.errors import ArgumentError, SampleError
from tests.support.collates import Changing, FamousError, Killing, Scene, picky, scene
from tests.support.typed import DECODERS, comparable, read, typed, typed_index
from tests.support.typed_decoders import failing_first

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux"),
    pytest.mark.processes,
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return typed_index(tmp_path_factory.mktemp("typed"))


def test_a_batch_of_any_type_arrives_from_a_worker(index: Path) -> None:
    alone = list(typed(index, collate=scene, batch_size=2))
    with MPLoader(typed(index, collate=scene, batch_size=2), num_workers=2) as loader:
        kept: list[Scene] = list(loader)  # some of them are copied out of their slots
        assert {batch.others.pop("pid") for batch in kept} <= {*loader.pids.values()}
    for batch, expected in zip(kept, alone, strict=True):
        assert isinstance(batch, Scene)
        del expected.others["pid"]
        assert (batch.number, batch.others["array"].dtype) == (expected.number, ">i2")
        assert batch.others.pop("array").tolist() == expected.others.pop("array").tolist()
        assert batch.others.pop(("a", "key")) == expected.others.pop(("a", "key"))
        assert comparable([batch.image, batch.others]) == comparable([expected.image, expected.others])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_that_fails_is_named_and_the_next_one_follows(index: Path, num_workers: int) -> None:
    with MPLoader(typed(index, collate=picky, shuffle=False), num_workers=num_workers) as loader:
        batches = iter(loader)
        assert [next(batches), next(batches)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        with pytest.raises(FamousError, match=r"^collate on samples 8, 9, 10, 11 of .*: batch with 8$") as raised:
            next(batches)
        assert isinstance(raised.value, SampleError)
        assert raised.value.number == 8
        state = loader.state_dict()
        if num_workers:
            message = r"^collate on samples 12, 13, .*: the batch cannot be passed to the training process: TypeError: "
            with pytest.raises(SampleError, match=message):
                next(batches)
        else:
            assert list(next(batches)) == [12, 13, 14, 15]
        assert next(batches) == [16, 17, 18, 19]
        loader.load_state_dict({**state, "position": 16})
        assert next(iter(loader)) == [16, 17, 18, 19]


def test_an_error_without_a_loader_is_the_users_own(index: Path) -> None:
    """A DataLoader makes an error of the same class of it."""
    with pytest.raises(FamousError) as raised:
        list(typed(index, collate=picky, shuffle=False))
    assert str(raised.value) == "batch with 8"
    assert raised.value.__notes__ == [f"This error is from collate on samples 8, 9, 10, 11 of {index}"]


def test_a_callable_that_cannot_be_copied_runs_in_the_training_process(index: Path) -> None:
    lock = threading.Lock()

    def locked(samples: list[Any]) -> Any:
        with lock:
            return samples[0]["label"], os.getpid()

    with pytest.warns(MploadWarning, match="collate runs in the training process, because .* TypeError: cannot pickle"):
        loader = MPLoader(typed(index, collate=locked), num_workers=2)
    with loader:
        assert list(loader) == list(typed(index, collate=locked))


def test_a_worker_that_dies_in_a_callable_is_replaced_and_a_deadly_batch_is_named(index: Path, tmp_path: Path) -> None:
    with MPLoader(typed(index, collate=Killing(tmp_path / "once"), shuffle=False), num_workers=2) as loader:
        batches = iter(loader)
        assert [next(batches) for _ in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
        with pytest.raises(SampleError, match=r"collate on samples 12, .*: killed its worker \(SIGSEGV\)"):
            next(batches)
        assert list(batches) == [[16, 17, 18, 19], [20, 21, 22]]
        assert loader.stats().num_deaths == 3


def test_a_callable_that_changes_its_samples_gets_them_unchanged_after_a_death(index: Path, tmp_path: Path) -> None:
    expected = list(map(comparable, typed(index, collate=Changing())))
    with MPLoader(typed(index, collate=Changing(tmp_path / "once")), num_workers=2) as loader:
        assert [comparable(batch) for batch in loader] == expected
        assert loader.stats().num_deaths == 1


def test_a_resumed_run_continues_with_the_same_batches(index: Path) -> None:
    expected = read(index, "alone", collate=Pad(1))
    with MPLoader(typed(index, collate=Pad(1)), num_workers=2) as loader:
        batches = iter(loader)
        assert [comparable(next(batches)), comparable(next(batches))] == expected[:2]
        state = loader.state_dict()
    with MPLoader(typed(index, collate=Pad(1)), num_workers=1) as loader:
        loader.load_state_dict(state)
        assert [comparable(batch) for batch in loader] == expected[2:]


@pytest.mark.filterwarnings("ignore::mpload.errors.MploadWarning")
@pytest.mark.parametrize("collate", [Pad(7), Flat()])
def test_arrays_are_joined_in_workers(
    index: Path, collate: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also those of batches from which samples are missing."""
    policy = ErrorPolicy(action="skip", report=tmp_path / "report.jsonl", max_error_fraction=1)
    options: dict[str, Any] = {"decode": {**DECODERS, "sound": failing_first}, "on_error": policy, "shuffle": False}
    expected = read(index, "alone", collate=collate, **options)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("joined in the training process")

    monkeypatch.setattr(type(collate), "joined", refuse)
    assert read(index, "2", collate=collate, **options) == expected


def test_what_workers_cannot_pad_raises_the_same_error_as_without_them(index: Path) -> None:
    dataset = typed(index, decode={**DECODERS, "image": ImageDecoder()}, collate={"image": Pad(-1)})
    with (
        MPLoader(dataset, num_workers=1) as loader,
        pytest.raises(ArgumentError, match=r"collate: sample\['image'\] is uint8, which cannot hold .*Pad\(value=-1\)"),
    ):
        list(loader)
