"""Servers that have other data, make other samples or want another token: an error at once, with any fallback."""

import sys
from pathlib import Path
from typing import Any

import pytest

from mpload.client.protocol import Description
from mpload.errors import ServerError
from tests.support.batches import ids, numbers
from tests.support.sample_servers import Handler, answering, sample_server
from tests.support.served_loaders import dataset, loading

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
    """Answer with samples that differ in a bit."""
    handler.reply(200, made[:-256] + bytes([made[-256] ^ 1]) + made[-255:])
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


def test_server_that_makes_other_samples_since_it_was_started_again_is_an_error(folder: Path) -> None:
    with sample_server(dataset(folder)) as server, loading(folder, server.url, num_workers=1) as loader:
        assert ids(loader) == ids(dataset(folder))
        server.answer = differing
        server.drop_connections()
        with pytest.raises(ServerError, match="makes other samples than this machine"):
            ids(loader)
