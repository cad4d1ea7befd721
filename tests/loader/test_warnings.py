"""Warnings name the line of the user's, and an epoch in which `drop_last` drops all samples is warned of."""

import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler

from mpload import MPDataset, MPLoader, MploadWarning, RawBytes
from mpload.errors import warn


class Stream(IterableDataset[int]):
    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.num_samples))


class OwnBatches(BatchSampler):
    """Has no attributes of a `BatchSampler`, whose `__init__` was not called."""

    def __init__(self) -> None:
        pass

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[list[int]]:
        return iter([])


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        (range(7), {"sampler": SequentialSampler(range(7))}, "range: .*the sampler of 7 samples cannot fill one batch"),
        (range(7), {"sampler": iter(range(7))}, "range: .*the sampler cannot fill one batch of 8"),
        (range(7), {"batch_sampler": BatchSampler(SequentialSampler(range(7)), 8, drop_last=True)}, "of 7 samples"),
        (Stream(7), {}, "Stream: epoch 0 has no batch: .*fewer than 8 samples, and drop_last=True drops them"),
    ],
    ids=["sampler", "sampler without a length", "batch sampler", "stream"],
)
def test_an_epoch_without_a_batch_is_warned_of(
    dataset: Any, options: dict[str, Any], message: str, num_workers: int
) -> None:
    if "batch_sampler" not in options:
        options = {"batch_size": 8, "drop_last": True, **options}
    loader = MPLoader(dataset, num_workers=num_workers, **options)
    with loader, pytest.warns(MploadWarning, match=message) as caught:
        assert not list(loader)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (range(7), {"sampler": [], "batch_size": 8, "drop_last": True}),
        (range(8), {"sampler": SequentialSampler(range(8)), "batch_size": 8, "drop_last": True}),
        (range(7), {"batch_sampler": []}),
        (Stream(8), {"batch_size": 8, "drop_last": True}),
        (Stream(0), {"batch_size": 8, "drop_last": True}),
        (range(7), {"batch_sampler": OwnBatches()}),
        (Stream(0), {"batch_size": 8}),
    ],
    ids=["empty sampler", "one batch", "no batches", "stream of a batch", "drops of nothing", "own", "empty stream"],
)
def test_nothing_is_warned_of_where_nothing_was_dropped(
    dataset: Any, options: dict[str, Any], num_workers: int
) -> None:
    with MPLoader(dataset, num_workers=num_workers, **options) as loader:
        list(loader)


def test_a_warning_shows_the_innermost_line_that_is_not_mploads() -> None:
    package = str(Path(warn.__code__.co_filename).parent / "inner.py")
    names: dict[str, Any] = {"warn": warn}
    source = "import contextlib\n@contextlib.contextmanager\ndef inner():\n    warn('here')\n    yield\n"
    exec(compile(source, package, "exec"), names)
    names["own"] = names["inner"]
    exec(compile("def outer(callback):\n    callback()\n", package, "exec"), names)

    def callback() -> None:
        with names["own"]():
            pass

    with pytest.warns(MploadWarning, match="here") as caught:
        names["outer"](callback)
    (warning,) = caught
    assert (warning.filename, warning.lineno) == (__file__, callback.__code__.co_firstlineno + 1)


def test_a_warning_of_a_thread_shows_no_line() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        thread = threading.Thread(target=warn, args=("in a thread",))
        thread.start()
        thread.join()
    assert [(str(warning.message), warning.filename) for warning in caught] == [("in a thread", "sys")]


class _Own(np.exceptions.VisibleDeprecationWarning):
    pass


def heard(data: bytes) -> np.ndarray[Any, Any]:
    """Return how many warnings a worker shows; -1 if they are errors."""
    with warnings.catch_warnings(record=True) as caught:
        try:
            warnings.warn("user code is noisy", _Own, stacklevel=1)  # noqa: TID251
        except _Own:
            return np.array([-1])
    return np.array([len(caught)])


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    "options",
    [
        {"category": np.exceptions.VisibleDeprecationWarning},
        {"category": _Own, "message": "user CODE"},
        {"module": "tests"},
        {},
    ],
    ids=["class", "own class and message", "module", "all"],
)
@pytest.mark.parametrize(("action", "expected"), [("ignore", 0), ("always", 1), ("error", -1)])
def test_workers_filter_warnings_as_the_script_does(
    tmp_path: Path, action: Any, expected: int, options: dict[str, Any], num_workers: int
) -> None:
    (tmp_path / "a.bin").write_bytes(b"data")
    (tmp_path / "index.txt").write_text("a.bin 0\n")
    dataset = MPDataset(tmp_path / "index.txt", decode=RawBytes(), transform=heard, batch_size=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error" if expected == 0 else "ignore")
        warnings.filterwarnings(action, **options)
        for other in ({"category": ImportWarning}, {"message": "code"}, {"module": "noisy"}, {"lineno": 7}):
            warnings.filterwarnings("ignore" if expected else "error", **other)  # which do not apply
        with MPLoader(dataset, num_workers=num_workers) as loader:
            ((values, _),) = loader
    assert values.tolist() == [[expected]]
