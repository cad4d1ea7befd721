"""Servers that have other data, make other samples or want another token: an error at once, with any fallback."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mpload.client.protocol import Description
from mpload.errors import ServerError
from tests.support.batches import ids, numbers
from tests.support.sample_servers import Handler, answering, sample_server
from tests.support.served_loaders import NUM_SAMPLES, dataset, loading

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux"),
    pytest.mark.processes,
]


@pytest.mark.parametrize("fallback", ["local", "raise"])
def test_other_token_is_an_error_at_once(folder: Path, fallback: Any) -> None:
    with sample_server(dataset(folder), token="right") as server:
        with loading(folder, server.url, token="right", fallback=fallback) as loader:
            assert ids(loader) == ids(dataset(folder))
        for token in ("wrong", None):
            with (
                loading(folder, server.url, token=token, fallback=fallback) as loader,
                pytest.raises(ServerError, match=f"{server.url} wants another token"),
            ):
                next(iter(loader))


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_other_index_is_an_error_at_once(folder: Path, on_error: str) -> None:
    with (
        sample_server(numbers(folder, 599, batch_size=16, on_error=on_error)) as server,
        loading(folder, server.url, on_error=on_error) as loader,
        pytest.raises(ServerError, match=r"its index is .*599 samples.*, not .*600 samples"),
    ):
        next(iter(loader))


def test_other_pipeline_is_an_error_at_once(folder: Path) -> None:
    with (
        sample_server(dataset(folder, on_error="skip")) as server,
        loading(folder, server.url) as loader,
        pytest.raises(ServerError, match=r"its pipeline is .*on_error=skip.*, not .*on_error=raise"),
    ):
        next(iter(loader))


def test_other_version_is_an_error_at_once(folder: Path) -> None:
    with sample_server(dataset(folder)) as server:
        later = server.description.encode().replace(b'"version": 1', b'"version": 2')
        server.answer = answering(later, status=409, kind="application/json")
        with (
            loading(folder, server.url) as loader,
            pytest.raises(ServerError, match="speaks version 2 of the protocol, and this loader version 1"),
        ):
            next(iter(loader))


def test_control_characters_of_a_server_do_not_reach_the_terminal(folder: Path) -> None:
    theirs = Description(index="\x1b[2J\nindex", pipeline="\x1b[31m\nred é", fields=("\x1b[1m",))
    with sample_server(dataset(folder)) as server:
        server.answer = answering(theirs.encode(), status=409, kind="application/json")
        with loading(folder, server.url) as loader, pytest.raises(ServerError) as caught:
            next(iter(loader))
    assert str(caught.value).isprintable()
    assert r"\x1b[2J\nindex" in str(caught.value)
    assert r"\x1b[31m\nred é" in str(caught.value)


def differing(handler: Handler, made: bytes) -> bool:
    """Answer with samples of which the first one differs in a bit."""
    first = len(made) - 2 * (len(made) - 4 - int.from_bytes(made[:4], "little")) // 3  # shapes, numbers and labels
    handler.reply(200, made[:first] + bytes([made[first] ^ 1]) + made[first + 1 :])
    return True


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_server_whose_samples_differ_is_an_error(folder: Path, on_error: str) -> None:
    with sample_server(dataset(folder, on_error=on_error)) as server:
        server.answer = differing
        with (
            loading(folder, server.url, on_error=on_error, num_workers=1) as loader,
            pytest.raises(ServerError, match=r"makes other samples than this machine: 'number' of sample_id"),
        ):
            next(iter(loader))


@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_server_that_makes_other_samples_since_it_was_started_again_gives_no_worker_any(
    folder: Path, num_workers: int
) -> None:
    alone = dataset(folder)
    with sample_server(dataset(folder)) as server, loading(folder, server.url, num_workers=num_workers) as loader:
        assert ids(loader) == ids(alone)
        server.answer = differing
        server.drop_connections()
        expected, found = ids(alone), list[Any]()
        batches = iter(loader)
        with pytest.raises(ServerError, match="makes other samples than this machine"):
            found.extend(ids([batch])[0] for batch in batches)
        assert found == expected[: len(found)]


@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_server_whose_samples_differ_is_refused_until_they_are_equal(folder: Path, num_workers: int) -> None:
    with sample_server(dataset(folder)) as server:
        server.answer = differing
        with loading(folder, server.url, num_workers=num_workers) as loader:
            batches = iter(loader)
            for _ in range(8):
                with pytest.raises(ServerError, match="makes other samples than this machine"):
                    next(batches)
            server.answer, found = None, list[Any]()
            for _ in range(9):
                with suppress(ServerError):  # of what was asked for before
                    found.extend(ids([batch])[0] for batch in batches)
            assert found == ids(dataset(folder))
            assert loader.stats().timings.num_served >= NUM_SAMPLES
