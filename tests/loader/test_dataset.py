"""MPDataset: the same batches everywhere, once per epoch, resumed exactly."""

import contextlib
import copy
import itertools
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

from mpload import (
    BlockShuffle,
    ErrorPolicy,
    Index,
    MPDataset,
    MPLoader,
    RandomResizedCrop,
    RawBytes,
    Sequential,
    Shuffle,
    Topology,
    build_index,
    open_index,
)
from mpload.errors import ArgumentError, MploadWarning, SampleError, StateError, TooManyBadSamples
from tests.support.batches import flat, ids, numbers, numbers_index
from tests.support.decoders import number_in


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("numbers")


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
def test_batches_do_not_depend_on_the_number_of_workers(folder: Path, num_workers: int) -> None:
    expected = ids(numbers(folder, 103))
    assert sorted(set(flat(expected))) == list(range(103))
    assert ids(DataLoader(numbers(folder, 103), batch_size=None, num_workers=num_workers)) == expected


@pytest.mark.processes
@pytest.mark.parametrize("start_method", ["fork", "spawn", "forkserver"])
def test_batches_do_not_depend_on_the_start_method(folder: Path, start_method: str) -> None:
    loader = DataLoader(
        numbers(folder, 103), batch_size=None, num_workers=2, multiprocessing_context=start_method
    )  # fmt: skip
    assert ids(loader) == ids(numbers(folder, 103))


shuffles = st.sampled_from([False, True, BlockShuffle(block_samples=8, window_blocks=3), Sequential(), Shuffle()])


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    num_samples=st.sampled_from([1, 2, 3, 31, 32, 33, 64, 65, 100]),
    world_size=st.integers(1, 5),
    batch_size=st.integers(1, 9),
    tail=st.sampled_from(["pad", "drop", "ragged"]),
    shuffle=shuffles,
    epoch=st.integers(0, 3),
)
def test_all_ranks_together_cover_an_epoch_as_the_tail_policy_says(
    folder: Path, num_samples: int, world_size: int, batch_size: int, tail: str, shuffle: Any, epoch: int
) -> None:
    ranks = []
    for rank in range(world_size):
        topology = Topology(rank=rank, world_size=world_size)
        options = {"batch_size": batch_size, "tail": tail, "shuffle": shuffle, "topology": topology}
        dataset = numbers(folder, num_samples, **options)
        dataset.set_epoch(epoch)
        expected = len(dataset)
        ranks.append(ids(dataset))
        assert len(ranks[-1]) == expected
    seen = flat([flat(batches) for batches in ranks])
    if tail == "ragged":
        assert sorted(seen) == list(range(num_samples))
    elif tail == "pad":
        assert set(seen) == set(range(num_samples))
        assert {len(batch) for batches in ranks for batch in batches} == {batch_size}
    else:
        assert len(seen) == len(set(seen)) == num_samples // (batch_size * world_size) * batch_size * world_size


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    num_samples=st.integers(1, 80),
    worlds=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    batch_sizes=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    shuffle=shuffles,
    data=st.data(),
)
def test_resuming_with_any_other_ranks_and_batches_yields_exactly_the_rest(
    folder: Path,
    num_samples: int,
    worlds: tuple[int, int],
    batch_sizes: tuple[int, int],
    shuffle: Any,
    data: st.DataObject,
) -> None:
    def run(world_size: int, batch_size: int, num_batches: int | None, state: Any) -> tuple[list[int], list[Any]]:
        """Read some batches on all ranks; return the sample ids in global order, and the states of the ranks."""
        ranks, states = [], []
        for rank in range(world_size):
            topology = Topology(rank=rank, world_size=world_size)
            dataset = numbers(
                folder, num_samples, topology=topology, batch_size=batch_size, tail="ragged", shuffle=shuffle
            )
            dataset.set_epoch(2)
            if state is not None:
                dataset.load_state_dict(state)
            ranks.append(ids(itertools.islice(dataset, num_batches)))
            states.append(dataset.state_dict())
        return [i for step in zip(*ranks, strict=True) for batch in step for i in batch], states

    whole, _ = run(1, num_samples, None, None)
    probe = numbers(folder, num_samples, topology=Topology(world_size=worlds[0]), batch_size=batch_sizes[0])
    num_batches = data.draw(st.integers(0, len(probe)))
    before, states = run(worlds[0], batch_sizes[0], num_batches, None)
    assert all(state == states[0] for state in states)
    after, _ = run(worlds[1], batch_sizes[1], None, json.loads(json.dumps(states[0])))
    if num_batches == 0:
        before = []
    if len(before) < num_samples:
        assert before + after == whole
    else:
        assert before == whole
        assert states[0]["epoch"] == 3


@pytest.mark.processes
def test_each_iteration_reads_the_next_epoch_with_any_reader(folder: Path) -> None:
    expected = []
    for epoch in range(3):
        dataset = numbers(folder, 50)
        dataset.set_epoch(epoch)
        expected.append(ids(dataset))
    assert expected[0] != expected[1] != expected[2]
    alone = numbers(folder, 50)
    assert [ids(alone) for _ in range(3)] == expected
    for persistent in (False, True):
        for start_method in ("fork", "spawn", "forkserver") if persistent else ("fork", "forkserver"):
            loader = DataLoader(
                numbers(folder, 50),
                batch_size=None,
                num_workers=2,
                persistent_workers=persistent,
                multiprocessing_context=start_method,
            )
            assert [ids(loader) for _ in range(3)] == expected


@pytest.mark.processes
def test_set_epoch_reaches_persistent_workers(folder: Path) -> None:
    dataset = numbers(folder, 50)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    first = ids(loader)
    dataset.set_epoch(7)
    seventh = ids(loader)
    dataset.set_epoch(0)
    assert ids(loader) == first
    alone = numbers(folder, 50)
    alone.set_epoch(7)
    assert ids(alone) == seventh


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda dataset: pickle.loads(pickle.dumps(dataset))])
def test_a_copy_made_during_an_epoch_starts_with_the_next_one(
    folder: Path, copied: Callable[[MPDataset], MPDataset]
) -> None:
    dataset, alone = numbers(folder, 50), numbers(folder, 50)
    next(iter(dataset))
    ids(alone)
    other = copied(dataset)
    state = other.state_dict()
    assert (state["epoch"], state["position"]) == (1, 0)
    assert ids(other) == ids(alone)
    assert dataset.state_dict()["position"] == 4


@pytest.mark.processes
def test_epochs_continue_when_the_number_of_workers_changes(folder: Path) -> None:
    dataset, alone = numbers(folder, 50), numbers(folder, 50)
    for num_workers in (3, 1, 0, 4, 2):
        assert ids(DataLoader(dataset, batch_size=None, num_workers=num_workers)) == ids(alone)


@pytest.mark.processes
@pytest.mark.parametrize("persistent", [False, True])
def test_a_state_taken_while_workers_read_counts_the_received_batches(folder: Path, persistent: bool) -> None:
    dataset = numbers(folder, 90)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=persistent)
    ids(loader)
    received = ids(itertools.islice(loader, 5))
    with pytest.raises(StateError, match=r"Call state_dict\(num_batches=\.\.\.\)"):
        dataset.state_dict()
    state = dataset.state_dict(num_batches=5)
    assert (state["epoch"], state["position"]) == (1, 20)
    resumed = numbers(folder, 90)
    resumed.load_state_dict(state)
    resumed.set_epoch(1)  # as training loops do; the position is kept
    assert len(resumed) == 23  # always counts the whole epoch
    assert resumed._run.plan_of(resumed._run.epochs.next).num_batches == 18
    rest = ids(DataLoader(resumed, batch_size=None, num_workers=3))
    whole = numbers(folder, 90)
    whole.set_epoch(1)
    assert flat(received + rest)[:90] == flat(ids(whole))[:90]
    resumed.set_epoch(5)
    assert resumed._run.plan_of(resumed._run.epochs.next).start == 0


@pytest.mark.processes
@pytest.mark.parametrize("make", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("num_workers", [2, 3])
def test_samples_form_the_same_batches_with_any_number_of_workers(folder: Path, make: Any, num_workers: int) -> None:
    def loader(dataset: MPDataset, num_workers: int) -> Any:
        return make(dataset, batch_size=4, num_workers=num_workers)

    expected = ids(loader(numbers(folder, 43, batch_size=None), 0))
    dataset = numbers(folder, 43, batch_size=None)
    batches = loader(dataset, num_workers)
    assert len(batches) == len(expected) == 11  # frameworks stop after len(batches)
    assert ids(batches) == expected
    dataset.set_epoch(0)
    received = ids(itertools.islice(batches, 5))
    resumed, state = numbers(folder, 43, batch_size=None), dataset.state_dict(num_batches=20)
    resumed.load_state_dict(state)
    assert received + ids(loader(resumed, num_workers)) == expected


def test_a_finished_epoch_resumes_at_the_next_one(folder: Path) -> None:
    dataset = numbers(folder, 50)
    num_batches = len(ids(dataset))
    assert dataset.state_dict() == dataset.state_dict(num_batches)
    assert (dataset.state_dict()["epoch"], dataset.state_dict()["position"]) == (1, 0)


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("batch_size", [4, None])
def test_stateful_data_loader_resumes_exactly(folder: Path, num_workers: int, batch_size: int | None) -> None:
    def loader() -> "StatefulDataLoader[Any]":
        dataset = numbers(folder, 60, batch_size=batch_size)
        return StatefulDataLoader(dataset, batch_size=None if batch_size else 4, num_workers=num_workers)

    first = loader()
    whole = [[ids([batch])[0] for batch in first] for _ in range(3)]
    for num_epochs, num_batches in [(0, 3), (1, 4), (1, 7)]:
        saving = loader()
        for _ in range(num_epochs):
            ids(saving)
        iterator = iter(saving)
        got = [ids([next(iterator)])[0] for _ in range(num_batches)]
        state = pickle.loads(pickle.dumps(saving.state_dict()))
        del iterator
        resumed = loader()
        resumed.load_state_dict(state)
        assert got + ids(resumed) == whole[num_epochs]
        assert ids(resumed) == whole[num_epochs + 1]


@pytest.mark.processes
def test_single_samples_cover_the_epoch_too(folder: Path) -> None:
    expected = flat(ids(numbers(folder, 600)))
    dataset = numbers(folder, 600, batch_size=None)
    assert len(dataset) == 600
    assert [label for _, label in dataset] == expected
    for num_workers in (1, 3):
        loader = DataLoader(numbers(folder, 600, batch_size=None), batch_size=16, num_workers=num_workers)
        assert sorted(flat(ids(loader))) == list(range(600))
    ranks = [
        [label for _, label in numbers(folder, 7, batch_size=None, tail=tail, topology=Topology(rank=r, world_size=3))]
        for tail in ("pad", "ragged", "drop")
        for r in range(3)
    ]
    assert [len(rank) for rank in ranks] == [3, 3, 3, 3, 2, 2, 2, 2, 2]
    assert sorted(flat(ranks[3:6])) == list(range(7))


def test_len_is_the_number_of_samples_or_batches_yielded(folder: Path) -> None:
    for batch_size, tail, rank in itertools.product([None, 3], ["pad", "drop", "ragged"], range(3)):
        topology = Topology(rank=rank, world_size=3)
        dataset = numbers(folder, 31, batch_size=batch_size, tail=tail, topology=topology)
        assert len(dataset) == len(list(dataset))


WRONG = [
    ({"batch_size": 0}, "batch_size must be at least 1, or None for samples, got 0"),
    ({"shuffle": 3}, r"shuffle must be True, False or an order such as BlockShuffle\(\), got 3"),
    ({"tail": "wrap"}, "tail must be one of 'drop', 'pad', 'ragged', got 'wrap'"),
    ({"seed": -1}, "seed must be an integer in"),
    ({"on_error": "ignore"}, "on_error must be one of raise, skip, substitute, got 'ignore'"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_errors_name_wrong_arguments(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        numbers(folder, 10, **options)


@pytest.mark.parametrize("index", [42, None, [1, 2]])
def test_an_index_that_is_neither_a_path_nor_an_index_is_refused(index: Any) -> None:
    with pytest.raises(ArgumentError, match=r"index must be a path or an Index, got .* Make an index with build_index"):
        MPDataset(index)


def test_a_decoder_that_cannot_be_called_is_refused(folder: Path) -> None:
    index = numbers_index(folder, 10)
    with pytest.raises(ArgumentError, match="decode must be callable, got 'rgb'"):
        MPDataset(index, decode="rgb")  # type: ignore[arg-type]
    with pytest.raises(
        ArgumentError, match=r"decode is the class RandomResizedCrop\. Pass an instance: RandomResizedCrop"
    ):
        MPDataset(index, decode=RandomResizedCrop)
    assert MPDataset(index, decode=bytes)  # calling this class decodes the bytes


def test_a_state_of_another_index_order_or_format_is_refused(folder: Path) -> None:
    dataset = numbers(folder, 50)
    state = dataset.state_dict()
    for other in (numbers(folder, 51), numbers(folder, 50, shuffle=False)):
        with pytest.raises(StateError, match=r"another index|in order 'shuffle', this run has 'sequential'"):
            other.load_state_dict(state)
    with pytest.raises(StateError, match="format version 99"):
        dataset.load_state_dict(state | {"version": 99})


@pytest.fixture(scope="module")
def photos(photo_tree: Path) -> Path:
    return build_index(photo_tree, photo_tree.with_name("train.txt"))


def crops(index: Path | Index, **options: Any) -> MPDataset:
    options = {"batch_size": 4, "shuffle": True, "topology": Topology(), **options}
    return MPDataset(index, decode=RandomResizedCrop(64), **options)


@pytest.mark.processes
def test_images_are_channels_last_uint8_and_bit_identical_everywhere(photos: Path) -> None:
    expected = list(crops(photos))
    images, labels = expected[0]
    assert (images.shape, images.dtype, labels.dtype) == ((4, 3, 64, 64), torch.uint8, torch.int64)
    assert images.is_contiguous(memory_format=torch.channels_last)
    for got in (
        list(DataLoader(crops(photos), batch_size=None, num_workers=2)),
        list(DataLoader(crops(photos), batch_size=None, num_workers=3, multiprocessing_context="spawn")),
    ):
        for (a, x), (b, y) in zip(expected, got, strict=True):
            assert torch.equal(a, b)
            assert torch.equal(x, y)
    again = list(crops(photos))[-1][0]
    assert torch.equal(again, expected[-1][0])


def test_augmentation_follows_sample_epoch_and_seed(photos: Path) -> None:
    def image_of_sample_zero(*, epoch: int = 0, **options: Any) -> Any:
        dataset = crops(photos, shuffle=False, **options)
        dataset.set_epoch(epoch)
        return next(iter(dataset))[0][0]

    base = image_of_sample_zero()
    assert torch.equal(base, image_of_sample_zero(batch_size=7))
    assert not torch.equal(base, image_of_sample_zero(seed=1))
    assert not torch.equal(base, image_of_sample_zero(epoch=1))


def test_images_of_different_sizes_form_a_list_and_raw_bytes_stay_unchanged(photos: Path) -> None:
    images, labels = next(iter(MPDataset(photos, batch_size=4, topology=Topology())))
    assert [image.shape[0] for image in images] == [3] * 4
    assert labels.shape == (4,)
    data, _ = next(iter(MPDataset(photos, decode=RawBytes(), batch_size=2, topology=Topology())))
    assert [piece[:2] for piece in data] == [b"\xff\xd8"] * 2


def test_several_images_of_a_sample_are_cropped_alike(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    large = cv2.resize(rng.integers(0, 255, (12, 16, 3), np.uint8), (320, 240), interpolation=cv2.INTER_CUBIC)
    cv2.imwrite(str(tmp_path / "high.png"), large)
    cv2.imwrite(str(tmp_path / "low.png"), cv2.resize(large, (160, 120), interpolation=cv2.INTER_AREA))
    (tmp_path / "pairs.txt").write_text("#mpload 1\n#columns low:path high:path\nlow.png\thigh.png\n")
    dataset = MPDataset(tmp_path / "pairs.txt", decode=RandomResizedCrop(64), batch_size=1, topology=Topology())
    for low, high in itertools.islice(itertools.chain.from_iterable(dataset for _ in range(8)), 8):
        assert (low.float() - high.float()).abs().mean() < 12  # different crops of such noise differ by 60 or more


def bad_index(photos: Path, tmp_path: Path) -> Path:
    lines = photos.read_text().splitlines(keepends=True)
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff no image")
    root = f"#root {tmp_path}\n"
    for path in (photos.parent / "train").iterdir():
        (tmp_path / path.name).symlink_to(path)
    lines = [line for line in lines if not line.startswith("#root")]
    head = [line for line in lines if line.startswith("#")]
    body = [line for line in lines if not line.startswith("#")]
    body[5:5] = ["broken.jpg\t0\n", "missing.jpg\t1\n"]
    index = tmp_path / "bad.txt"
    index.write_text("".join([head[0], root, *head[1:], *body]))
    return index


@pytest.fixture
def bad(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    monkeypatch.chdir(tmp_path)
    return open_index(bad_index(photos, tmp_path), allow_outside_root=True)


@pytest.mark.processes
def test_a_bad_sample_raises_with_its_place_and_cause(bad: Index) -> None:
    with pytest.raises(SampleError, match=rf"{bad.path}:10: sample 5 \(broken.jpg\): "):
        list(crops(bad, shuffle=False))
    loader = DataLoader(crops(bad, shuffle=False), batch_size=None, num_workers=2)
    with pytest.raises(SampleError, match=r"sample 5 \(broken.jpg\)"):
        list(loader)


def test_skipped_and_substituted_samples_are_recorded_in_the_report(bad: Index, tmp_path: Path) -> None:
    with pytest.warns(
        MploadWarning, match=r"a bad sample \(skip\); this and further ones are listed in .*bad.errors.jsonl"
    ):
        batches = list(crops(bad, shuffle=False, on_error="skip", tail="ragged"))
    assert [len(labels) for _, labels in batches] == [4, 2, 4, 4, 4, 4, 2]
    report = [json.loads(line) for line in (tmp_path / "bad.errors.jsonl").read_text().splitlines()]
    assert [(line["sample_id"], line["paths"], line["action"]) for line in report] == [
        (5, ["broken.jpg"], "skip"),
        (6, ["missing.jpg"], "skip"),
    ]
    assert report[0]["where"] == f"{bad.path}:10"
    assert "No such file" in report[1]["cause"]
    with pytest.warns(MploadWarning, match="substitute"):
        batches = list(crops(bad, shuffle=False, on_error="substitute"))
    assert {len(labels) for _, labels in batches} == {4}
    with pytest.warns(MploadWarning, match="substitute"):
        again = list(crops(bad, shuffle=False, on_error="substitute"))
    assert all(torch.equal(x[0], y[0]) for x, y in zip(batches, again, strict=True))


def test_a_job_that_skips_too_many_samples_is_stopped(photos: Path, tmp_path: Path) -> None:
    index = tmp_path / "gone.txt"
    index.write_text("#mpload 1\n#columns image:path\n" + "".join(f"{i}.jpg\n" for i in range(500)))
    policy = ErrorPolicy(action="skip", report=tmp_path / "report.jsonl", max_error_fraction=0.05)
    dataset = MPDataset(index, decode=RandomResizedCrop(64), on_error=policy, topology=Topology())
    with pytest.warns(MploadWarning), pytest.raises(TooManyBadSamples, match=r"51 of 51 samples failed, more than"):
        list(dataset)
    assert len((tmp_path / "report.jsonl").read_text().splitlines()) == 51


@pytest.mark.processes
@pytest.mark.parametrize("batch_size", [5, None])
def test_as_dict_yields_dicts_keyed_by_column_name(folder: Path, batch_size: int | None) -> None:
    tuples = list(numbers(folder, 23, batch_size=batch_size))
    dicts = list(numbers(folder, 23, batch_size=batch_size, as_dict=True))
    if batch_size:
        with MPLoader(numbers(folder, 23, batch_size=5, as_dict=True), num_workers=1) as loader:
            dicts += loader
            tuples += tuples
    for named, values in zip(dicts, tuples, strict=True):
        assert list(named) == ["number", "label"]
        assert torch.equal(named["number"], values[0])
        assert np.array_equal(named["label"], values[1])


@pytest.mark.processes
def test_a_dataset_can_be_created_in_a_process_forked_after_openmp_started_threads(folder: Path) -> None:
    index = numbers_index(folder, 10)
    script = (
        "import os, signal, sys, torch, mpload\n"
        "torch.set_num_threads(2)\n"
        "torch.ones(1 << 20).add_(1)\n"
        "if os.fork() == 0:\n"
        "    signal.alarm(60)\n"
        "    mpload.MPDataset(sys.argv[1], decode=mpload.RawBytes())\n"
        "    os._exit(0)\n"
        "sys.exit(os.wait()[1])\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script, str(index)], check=False, timeout=100)
    assert done.returncode == 0


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_default_device_does_not_change_batches(folder: Path, num_workers: int) -> None:
    with torch.device("meta"), MPLoader(numbers(folder, 10), num_workers=num_workers) as loader:
        assert ids(loader) == ids(numbers(folder, 10))


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [None, 0, 1])
@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_an_empty_batch_has_the_dtype_and_shape_of_the_others(
    folder: Path, num_workers: int | None, shape: tuple[int, ...]
) -> None:
    def decode(data: bytes) -> Any:
        return np.full(shape, number_in(data), np.int32)

    dataset = MPDataset(
        numbers_index(folder, 43), decode=decode, batch_size=4, tail="ragged", topology=Topology(rank=1, world_size=2)
    )
    with contextlib.ExitStack() as opened:
        loader = dataset if num_workers is None else opened.enter_context(MPLoader(dataset, num_workers=num_workers))
        numbers, labels = list(loader)[-1]
    assert (numbers.shape, numbers.dtype) == ((0, *shape), torch.int32)
    assert (labels.shape, labels.dtype) == ((0,), torch.int64)


def test_an_empty_batch_is_made_even_if_the_first_sample_is_bad(folder: Path, tmp_path: Path) -> None:
    def decode(data: bytes) -> Any:
        number = number_in(data)
        if number == 0:
            raise ValueError("bad")
        return number

    dataset = MPDataset(
        numbers_index(folder, 43), decode=decode, batch_size=4, tail="ragged", topology=Topology(rank=1, world_size=2),
        on_error=ErrorPolicy(action="skip", report=tmp_path / "report.jsonl"),
    )  # fmt: skip
    numbers, labels = list(dataset)[-1]
    assert len(numbers) == len(labels) == 0
    assert not (tmp_path / "report.jsonl").exists()
