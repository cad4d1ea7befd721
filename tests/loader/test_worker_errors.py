"""Errors raised by user code in a worker arrive with file, line and cause, as they do without workers."""

import json
import sys
import traceback
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import pytest
from torch.utils.data import DataLoader

from mpload import ErrorAction, ErrorPolicy, MPDataset, MPLoader, Topology
from mpload.errors import IndexChangedError, MploadError, SampleError, TooManyBadSamples, WorkerTraceback
from tests.support import decoders
from tests.support.batches import numbers_index
from tests.support.map_styles import DeeplyBroken, Unspeakable

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return numbers_index(tmp_path_factory.mktemp("numbers"), 60)


def raised(dataset: Any, num_workers: int, **options: Any) -> MploadError:
    with pytest.raises(MploadError) as caught, MPLoader(dataset, num_workers=num_workers, **options) as loader:
        list(loader)
    return caught.value


def text_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def by_pipeline(index: Path, num_workers: int, decode: Any, **options: Any) -> MploadError:
    return raised(MPDataset(index, decode=decode, batch_size=16, topology=Topology(), **options), num_workers)


def by_transform(index: Path, num_workers: int) -> MploadError:
    def transform(array: Any) -> Any:
        decoders.deep_function(int(array[0]))
        return array

    return by_pipeline(index, num_workers, decoders.number_in, transform=transform)


def by_map_style(index: Path, num_workers: int) -> MploadError:
    return raised(DeeplyBroken(), num_workers, batch_size=5, topology=Topology())


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    "raise_it", [lambda index, n: by_pipeline(index, n, decoders.deeply_broken), by_transform, by_map_style]
)
def test_an_error_arrives_with_file_line_and_cause(index: Path, raise_it: Any, num_workers: int) -> None:
    error = raise_it(index, num_workers)
    assert isinstance(error, SampleError)
    assert isinstance(error.__cause__, KeyError)
    assert error.__cause__.args == ("deep", 7)
    assert "decoders.py" in text_of(error)
    assert 'raise KeyError("deep", number)' in text_of(error)


@pytest.mark.processes
def test_a_user_defined_error_arrives_as_its_traceback(index: Path) -> None:
    for error in by_pipeline(index, 2, decoders.unspeakable), raised(Unspeakable(), 2, batch_size=5):
        assert isinstance(error, SampleError)
        assert isinstance(error.__cause__, WorkerTraceback)
        assert "raise UnspeakableError(1, 2)" in text_of(error)


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_whose_str_fails_is_handled_by_the_error_policy(index: Path, tmp_path: Path, num_workers: int) -> None:
    cause = "UnspeakableError, whose __str__ raised ZeroDivisionError"
    assert cause in str(by_pipeline(index, num_workers, decoders.unspeakable))
    assert cause in str(raised(Unspeakable(), num_workers, batch_size=5, topology=Topology()))
    for action in "skip", "substitute":
        policy = ErrorPolicy(action=action, report=tmp_path / action)
        dataset = MPDataset(index, decode=decoders.unspeakable, batch_size=16, topology=Topology(), on_error=policy)
        with pytest.warns(match="a bad sample"), MPLoader(dataset, num_workers=num_workers) as loader:
            assert sum(len(labels) for _, labels in loader) == (64 - 3 if action == "skip" else 64)
        lines = [json.loads(line) for line in (tmp_path / action).read_text().splitlines()]
        assert {line["cause"] for line in lines} == {cause}
        assert set(lines[0]) == {"sample_id", "where", "paths", "cause", "epoch", "action"}


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("action", ["skip", "substitute"])
def test_too_many_bad_samples_are_reported_with_the_failing_line(
    index: Path, tmp_path: Path, action: Literal["raise", "skip", "substitute"], num_workers: int
) -> None:
    policy = ErrorPolicy(action=action, report=tmp_path / "report", max_error_fraction=0)
    with pytest.warns(match="a bad sample"):
        error = by_pipeline(index, num_workers, decoders.deeply_broken, on_error=policy)
    assert isinstance(error, TooManyBadSamples)
    assert 'raise KeyError("deep", number)' in text_of(error)


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_pipeline_that_fails_from_the_start_is_reported_with_the_failing_line(index: Path, num_workers: int) -> None:
    error = by_pipeline(index, num_workers, decoders.always_unspeakable)
    assert "raise UnspeakableError(1, len(data))" in text_of(error)


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_failing_substitutes_are_reported_with_the_failing_line(index: Path, tmp_path: Path, num_workers: int) -> None:
    def transform(array: Any) -> Any:
        if array[0] >= 16:
            raise UnicodeError("all of them from here on")
        return array

    policy = ErrorPolicy(action="substitute", report=tmp_path / "report", max_error_fraction=1)
    lost = MPDataset(index, decode=decoders.number_in, transform=transform, batch_size=16, on_error=policy)
    with pytest.warns(match="a bad sample"):
        error = raised(lost, num_workers)
    assert "8 substitutes for it failed too" in str(error)
    assert isinstance(error.__cause__, UnicodeError)
    assert 'raise UnicodeError("all of them from here on")' in text_of(error)


@pytest.mark.processes
def test_a_long_traceback_keeps_its_end(index: Path) -> None:
    text = text_of(by_pipeline(index, 2, decoders.too_deep))
    assert text.count("at the bottom: xxx") >= 2
    assert 'raise ValueError("at the bottom: " + values)' in text


@pytest.mark.processes
def test_a_very_long_message_does_not_hide_the_failing_line(index: Path) -> None:
    error = by_pipeline(index, 2, decoders.wordy)
    assert len(str(error)) < 20_000
    assert 'raise ValueError("x" * 10_000_000)' in text_of(error)


@pytest.mark.processes
def test_an_error_whose_number_cannot_be_formatted_is_an_ordinary_failure(index: Path) -> None:
    error = by_pipeline(index, 2, decoders.immense)
    assert "whose __str__ raised ValueError" in str(error)
    assert "raise ValueError(10**5000)" in text_of(error)


@pytest.mark.processes
def test_an_error_in_a_data_loader_worker_is_reported_with_the_failing_line(index: Path) -> None:
    from torch.utils.data import DataLoader

    dataset = MPDataset(index, decode=decoders.deeply_broken, batch_size=16, topology=Topology())
    with pytest.raises(SampleError, match=r"raise KeyError\(.deep., number\)"):
        list(DataLoader(dataset, batch_size=None, num_workers=2))


WAYS: dict[str, Callable[[Any], Any]] = {
    "dataset": lambda dataset: dataset,
    "loader, 0 workers": lambda dataset: MPLoader(dataset, num_workers=0),
    "loader, 2 workers": lambda dataset: MPLoader(dataset, num_workers=2),
    "stock loader": lambda dataset: DataLoader(dataset, batch_size=None, num_workers=2),
}


def leaving(index: Path, way: str, kind: type[BaseException], on_error: str, folder: Path) -> Any:
    policy = ErrorPolicy(action=ErrorAction(on_error), report=folder / "errors.jsonl")
    decode = partial(decoders.leaving, kind=kind)
    dataset = MPDataset(index, decode=decode, batch_size=16, tail="ragged", topology=Topology(), on_error=policy)
    return WAYS[way](dataset)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:a bad sample")
@pytest.mark.parametrize(
    ("way", "kind"),
    [*((way, SystemExit) for way in WAYS), ("dataset", GeneratorExit), ("loader, 0 workers", GeneratorExit)],
)
def test_exit_exceptions_in_user_code_count_as_failed_samples(
    index: Path, tmp_path: Path, way: str, kind: type[BaseException]
) -> None:
    with pytest.raises(SampleError, match=f"{kind.__name__}: enough"):
        list(leaving(index, way, kind, "raise", tmp_path))
    labels = [label for _, labels in leaving(index, way, kind, "skip", tmp_path) for label in labels.tolist()]
    assert sorted(labels) == [number for number in range(60) if number != 7]


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:a bad sample")
@pytest.mark.parametrize(
    ("way", "on_error"),
    [("dataset", "raise"), ("dataset", "skip"), ("loader, 0 workers", "skip"), ("loader, 2 workers", "skip")],
)
def test_a_keyboard_interrupt_is_never_skipped_as_a_bad_sample(
    index: Path, tmp_path: Path, way: str, on_error: str
) -> None:
    expected = SampleError if "2" in way else KeyboardInterrupt  # workers ignore Ctrl-C: user code raised it
    with pytest.raises(expected, match="enough"):
        list(leaving(index, way, KeyboardInterrupt, on_error, tmp_path))


@pytest.mark.processes
@pytest.mark.parametrize("on_error", ErrorAction)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_index_that_changed_in_place_is_no_bad_sample(
    tmp_path: Path, num_workers: int, on_error: ErrorAction
) -> None:
    path = numbers_index(tmp_path, 60)
    policy = ErrorPolicy(action=on_error, report=tmp_path / "bad.jsonl")
    dataset = MPDataset(path, decode=decoders.number_in, batch_size=2, on_error=policy, topology=Topology())
    with MPLoader(dataset, num_workers=num_workers) as loader:
        batches = iter(loader)
        next(batches)
        with path.open("a") as text:
            text.write(path.read_text().splitlines()[-1] + "\n")
        with pytest.raises(IndexChangedError, match=r"changed after it was opened. Open it again"):
            list(chain(batches, loader))  # the workers may have read the rest of the first epoch
    assert not (tmp_path / "bad.jsonl").exists()


def _refers_to_a_changed_index(array: Any) -> Any:
    if int(array[0]) >= 40:
        raise IndexChangedError("other.txt: changed after it was opened. Open it again")
    return array


@pytest.mark.processes
@pytest.mark.parametrize("on_error", ErrorAction)
def test_an_index_that_changed_is_no_bad_sample_if_a_transform_reads_it_in_a_worker(
    index: Path, on_error: ErrorAction
) -> None:
    error = by_pipeline(index, 2, decoders.number_in, transform=_refers_to_a_changed_index, on_error=on_error)
    assert isinstance(error, IndexChangedError)
