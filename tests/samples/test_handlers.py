"""What a handler of a signal raises while a sample is made leaves the loop, and no sample is blamed for it."""

import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mpload import ImageDecoder, MPDataset, MPLoader, SampleError, Topology
from mpload.samples.handlers import raise_if_from_handler
from tests.support.map_styles import Sized


class PreemptedError(Exception):
    pass


def stop(*_: object) -> None:
    raise PreemptedError


class Handler:
    def method(self, *_: object) -> None:
        raise PreemptedError

    def __call__(self, *_: object) -> None:
        raise PreemptedError


@pytest.fixture(
    params=[stop, Handler().method, Handler(), partial(stop, 1)], ids=["function", "method", "object", "partial"]
)
def handled(request: pytest.FixtureRequest) -> Iterator[None]:
    handler: Callable[..., Any] = request.param
    before = signal.signal(signal.SIGUSR1, handler)
    yield
    signal.signal(signal.SIGUSR1, before)


def interrupted(image: Any) -> Any:
    signal.raise_signal(signal.SIGUSR1)
    return image


class Interrupted(Sized):
    def __getitem__(self, i: int) -> int:
        signal.raise_signal(signal.SIGUSR1)
        return i


@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize("on_error", ["raise", "skip", "substitute"])
def test_it_is_no_failure_of_the_sample(on_error: Any, photo_tree: Path, tmp_path: Path) -> None:
    photos = sorted(path for path in photo_tree.rglob("*") if path.is_file())[:4]
    (tmp_path / "x.txt").write_text("".join(f"{photo}\n" for photo in photos))
    dataset = MPDataset(
        tmp_path / "x.txt",
        decode=ImageDecoder(),
        transform=interrupted,
        batch_size=4,
        on_error=on_error,
        topology=Topology(),
    )
    with pytest.raises(PreemptedError):
        next(iter(MPLoader(dataset, num_workers=0)))
    assert not list(tmp_path.glob("*.errors.jsonl"))


@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize("options", [{}, {"collate_fn": list}, {"on_error": "skip"}])
def test_it_is_no_failure_of_a_map_style_dataset(options: dict[str, Any]) -> None:
    with pytest.raises(PreemptedError):
        next(iter(MPLoader(Interrupted(), num_workers=0, batch_size=4, topology=Topology(), **options)))


def test_errors_of_other_functions_are_failures() -> None:
    raise_if_from_handler(ValueError())
    try:
        stop()
    except PreemptedError as error:
        raise_if_from_handler(error)  # no handler now
    with pytest.raises(SampleError):
        next(iter(MPLoader(Raising(), num_workers=0, topology=Topology())))


class Raising(Sized):
    def __getitem__(self, i: int) -> int:
        raise PreemptedError
