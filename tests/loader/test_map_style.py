"""MPLoader with map-style datasets: the same batches as a DataLoader, whatever happens to the workers."""

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from mpload import (
    BlockShuffle,
    ErrorPolicy,
    MPDataset,
    MPLoader,
    MploadWarning,
    Shuffle,
    Topology,
    build_index,
    open_index,
)
from mpload.errors import ArgumentError, SampleError, StateError
from tests.support.map_styles import (
    FORMS,
    Alternating,
    Broken,
    Changing,
    Counted,
    Dicts,
    Drawn,
    FirstBroken,
    Formed,
    Growing,
    Halves,
    Killing,
    Mixed,
    Named,
    Odd,
    Sized,
    Strange,
    Tensors,
    Texts,
    Tuples,
    Turning,
    Unlike,
    Unstackable,
    WithGrad,
)
from tests.support.whole_batches import same

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")

KINDS = [Tuples, Dicts, Named, Texts, Tensors, Growing, Halves, Mixed]


def loader(dataset: Any, **options: Any) -> MPLoader:
    """Return a loader. Its workers are forks of the test's process, which start at once."""
    options = {"batch_size": 5, "tail": "ragged", "multiprocessing_context": "fork", **options}
    return MPLoader(dataset, **{"topology": Topology(), **options})


@pytest.mark.processes
@pytest.mark.parametrize(
    ("num_workers", "method", "kind"),
    [*((number, "fork", kind) for kind in KINDS for number in (0, 2)), (2, None, Tuples), (2, None, Mixed)],
)
def test_batches_equal_those_of_a_data_loader(num_workers: int, method: str | None, kind: type[Sized]) -> None:
    expected = list(DataLoader(kind(), batch_size=5))  # type: ignore[arg-type]
    with loader(kind(), num_workers=num_workers, multiprocessing_context=method) as batches:
        assert len(batches) == 5
        assert same(list(batches), expected)


@pytest.mark.processes
@pytest.mark.parametrize("order", [Shuffle(), BlockShuffle(block_samples=4, window_blocks=2)])
def test_batches_do_not_depend_on_the_number_of_workers(order: Any) -> None:
    def epochs(num_workers: int) -> list[Any]:
        with loader(Drawn(), shuffle=order, seed=3, num_workers=num_workers) as batches:
            return [list(batches), list(batches)]

    first, second = alone = epochs(0)
    for epoch in alone:
        assert sorted(torch.cat([batch[0] for batch in epoch]).tolist()) == list(range(23))
    assert not same(first, second)
    for num_workers in (1, 7):
        assert same(epochs(num_workers), alone)


@pytest.mark.processes
def test_torch_random_numbers_of_samples_do_not_depend_on_the_workers() -> None:
    with loader(Drawn(with_torch=True), num_workers=0) as here, loader(Drawn(with_torch=True), num_workers=2) as there:
        assert same(list(here), list(there))


def test_random_numbers_of_samples_do_not_affect_the_generators_of_the_script() -> None:
    def drawn() -> tuple[float, float, float]:
        return random.random(), np.random.rand(), torch.rand(1).item()  # noqa: NPY002

    def seed() -> None:
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        torch.manual_seed(1)

    seed()
    expected = drawn()
    seed()
    with loader(Drawn(with_torch=True), num_workers=0) as batches:
        list(batches)
    assert drawn() == expected


def test_ranks_share_an_epoch() -> None:
    seen: list[int] = []
    for rank in range(3):
        with loader(
            Tuples(), shuffle=True, num_workers=0, topology=Topology(rank=rank, world_size=3)
        ) as batches:  # fmt: skip
            seen += [number for batch in batches for number in batch[1].tolist()]
    assert sorted(seen) == list(range(23))


@pytest.mark.processes
def test_a_rank_without_samples_gets_an_empty_batch_of_the_same_structure() -> None:
    with loader(Dicts(6), num_workers=1, topology=Topology(rank=1, world_size=2)) as batches:
        (first, *rest) = list(batches)
    assert not rest
    assert list(first) == ["image", "more", "list"]
    with loader(Dicts(4), num_workers=1, topology=Topology(rank=1, world_size=2)) as batches:
        (empty,) = list(batches)
    assert empty["image"].shape == (0, 2, 3, 4)
    assert empty["more"]["note"] == []
    assert empty["list"][0].shape == (0,)


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_run_is_resumed_where_it_was_left(num_workers: int) -> None:
    def run(state: dict[str, Any] | None = None, num_batches: int = 8) -> tuple[list[list[int]], dict[str, Any]]:
        received: list[list[int]] = []
        with loader(Tuples(), shuffle=True, num_workers=num_workers) as batches:
            if state is not None:
                batches.load_state_dict(state)
            while len(received) < num_batches:
                for batch in batches:
                    received.append(batch[1].tolist())
                    if len(received) == num_batches:
                        break
            return received, batches.state_dict()

    expected, _ = run()
    first, state = run(num_batches=3)
    assert first + run(state, 5)[0] == expected


def test_an_iteration_without_batches_does_not_advance_the_epoch() -> None:
    with loader(Tuples(), shuffle=True, num_workers=0) as batches:
        iter(batches)
        first = [batch[1].tolist() for batch in batches]
        second = [batch[1].tolist() for batch in batches]
        batches.set_epoch(0)
        assert [batch[1].tolist() for batch in batches] == first != second


def test_a_state_of_another_dataset_is_refused() -> None:
    with loader(Tuples(), num_workers=0) as batches:
        state = batches.state_dict()
    with loader(Tuples(24), num_workers=0) as batches, pytest.raises(StateError, match="Tuples of 23"):
        batches.load_state_dict(state)


@pytest.mark.processes
def test_a_killed_worker_loses_and_repeats_no_sample(tmp_path: Path) -> None:
    with loader(Killing(tmp_path / "once"), num_workers=2) as batches:
        assert torch.cat(list(batches)).tolist() == list(range(23))
        assert batches.stats().num_deaths == 1


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_failed_sample_is_named(num_workers: int) -> None:
    with loader(Broken(), num_workers=num_workers) as batches, pytest.raises(SampleError, match="sample 7 of Broken: "):
        list(batches)


class Short(Sized):
    def __getitem__(self, i: int) -> int:
        raise MemoryError("cannot allocate 3 GiB")


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_lack_of_memory_in_a_sample_is_caught_as_such(num_workers: int) -> None:
    message = "sample 0 of Short: MemoryError: cannot allocate 3 GiB"
    with loader(Short(), num_workers=num_workers) as batches, pytest.raises(MemoryError, match=message) as raised:
        next(iter(batches))
    assert isinstance(raised.value, SampleError)


@pytest.mark.processes
def test_a_sample_of_another_shape_is_named() -> None:
    with loader(Odd(), num_workers=1) as batches:
        message = r"sample 7 of Odd: sample: this sample is float64\[3\], the first one is float64\[2\]"
        with pytest.raises(SampleError, match=message):
            list(batches)


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 1])
def test_values_that_no_batch_can_hold_are_refused(num_workers: int) -> None:
    message = r"sample 0 of Strange: sample\['what'\] is a object, which no batch can hold.* collate_fn"
    with loader(Strange(), num_workers=num_workers) as batches:
        with pytest.raises(SampleError, match=message) as raised:
            next(iter(batches))
        assert isinstance(raised.value, TypeError)


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    ("kind", "instead"),
    [("sparse", "to_dense"), ("compressed", "to_dense"), ("nested", "unbind"), ("jagged", "unbind")],
)
@pytest.mark.filterwarnings("ignore")  # torch calls some of them experimental
def test_tensors_that_cannot_be_stacked_are_refused_unless_there_is_a_collate_fn(
    kind: str, instead: str, num_workers: int
) -> None:
    dataset = Unstackable(kind)
    with (
        loader(dataset, num_workers=num_workers) as batches,
        pytest.raises(
            SampleError, match=rf"sample is a (sparse|nested) tensor, .* Return sample.{instead}\(\), or pass"
        ),
    ):
        next(iter(batches))
    with loader(dataset, num_workers=num_workers, collate_fn=list) as batches:
        assert len(next(iter(batches))) == 5


@pytest.mark.processes
def test_samples_of_any_form_are_batched_as_by_a_data_loader() -> None:
    for dataset in (Changing(), Turning(), WithGrad()):
        with loader(dataset, num_workers=2) as batches:
            received = [*batches, *batches]
        assert same(received, [*DataLoader(dataset, batch_size=5)] * 2)  # type: ignore[arg-type]


@pytest.mark.processes
@pytest.mark.parametrize("form", FORMS)
def test_batches_of_any_form_equal_those_of_a_data_loader_in_later_epochs_too(form: str) -> None:
    expected = list(DataLoader(Formed(form), batch_size=5))  # type: ignore[arg-type]
    with loader(Formed(form), num_workers=1) as batches:
        for _ in range(2):
            found = list(batches)
            assert same(found, expected)
            assert [getattr(batch, "note", 0) for batch in found] == [getattr(batch, "note", 0) for batch in expected]


@pytest.mark.processes
@pytest.mark.parametrize("dataset", [Unlike(20), Alternating(20)])
def test_a_batch_that_cannot_be_stacked_fails_with_the_same_words_in_later_epochs(dataset: Sized) -> None:
    with loader(dataset, num_workers=0) as batches:
        expected = outcomes(batches)
    with loader(dataset, num_workers=1) as batches:
        assert [outcomes(batches), outcomes(batches)] == [expected, expected]


def outcomes(batches: MPLoader) -> list[str]:
    """Return the batches of an epoch as text, and the messages of those that failed."""
    found, iterator = list[str](), iter(batches)
    while True:
        try:
            found.append(str(next(iterator)))
        except SampleError as error:
            found.append(str(error))
        except StopIteration:
            return found


@pytest.mark.processes
def test_nothing_reads_samples_before_or_besides_the_epoch(tmp_path: Path) -> None:
    dataset = Counted(tmp_path / "read")
    with loader(dataset, num_workers=2, shuffle=True) as batches:
        assert not dataset.log.exists()
        list(batches)
    assert sorted(map(int, dataset.log.read_text().split())) == list(range(23))


@pytest.mark.processes
def test_bad_samples_at_the_beginning_are_skipped(tmp_path: Path) -> None:
    policy = ErrorPolicy(action="skip", report=tmp_path / "report", max_error_fraction=1)
    with loader(FirstBroken(), batch_size=10, num_workers=2, on_error=policy) as batches, pytest.warns(MploadWarning):
        assert torch.cat(list(batches)).tolist() == list(range(9, 23))


@pytest.mark.processes
def test_a_locally_defined_dataset_class_works() -> None:
    class Local(Sized):
        def __getitem__(self, i: int) -> int:
            return i * offset

    offset = 10
    with loader(Local(), num_workers=1, multiprocessing_context=None) as batches:
        assert torch.cat(list(batches)).tolist() == list(range(0, 230, 10))


@pytest.mark.processes
def test_an_empty_dataset_gives_no_batches() -> None:
    with loader(Tuples(0), num_workers=1) as batches:
        assert list(batches) == []


@pytest.mark.processes
def test_only_datasets_that_can_be_loaded_are_accepted(photo_tree: Path) -> None:
    index = build_index(photo_tree, photo_tree.with_name("mapstyle.txt"))
    for wrong, message in [
        (42, r"must be an MPDataset, an IterableDataset, or a map-style dataset .*, got 42 of type int"),
        (Tuples, r"dataset is the class Tuples\. Pass an instance: Tuples\(\.\.\.\)"),
        (str(index), r"loads a dataset, not an index, got '.*mapstyle\.txt'\. Pass MPDataset"),
        (open_index(index), r"loads a dataset, not an index, got <Index .*\. Pass MPDataset"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            loader(wrong, num_workers=1)
    with pytest.raises(ArgumentError, match="an MPDataset has its own batch_size"):
        MPLoader(MPDataset(index, batch_size=2, topology=Topology()), batch_size=2)  # type: ignore[call-overload]
