"""Servers that listen at a Unix socket: only for this user, never in the place of another file or server."""

import os
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpload import MPDataset, MPLoader, Servers
from mpload.errors import ArgumentError
from tests.support.batches import ids
from tests.support.running_servers import running_server

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux"),
    pytest.mark.processes,
]


def test_samples_come_through_a_socket_of_this_user_which_is_gone_afterwards(
    tmp_path: Path, dataset: Callable[[], MPDataset[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mpload.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))  # as a server that was killed leaves it
    mask = os.umask(0)
    try:
        with running_server(dataset(), socket_file="mpload.sock") as url:
            assert url == f"unix://{path}"
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            with MPLoader(dataset(), servers=Servers(urls=[url], fallback="raise"), num_workers=1) as loader:
                assert ids(loader) == ids(dataset())
                assert loader.stats().timings.num_served == 100
            with (
                pytest.raises(OSError, match="another server listens there"),
                running_server(dataset(), socket_file=path),
            ):
                pass
            assert path.exists()
    finally:
        os.umask(mask)
    assert not path.exists()


def test_a_file_is_never_replaced_by_a_socket(tmp_path: Path, dataset: Callable[[], MPDataset[Any]]) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(FileExistsError, match="is no socket"), running_server(dataset(), socket_file=path):
        pass
    assert path.read_text() == "data"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, dataset: Callable[[], MPDataset[Any]]) -> None:
    path = tmp_path / "missing" / "socket"
    with pytest.raises(FileNotFoundError, match=str(path)), running_server(dataset(), socket_file=path):
        pass


@pytest.mark.parametrize("path", ["/tmp/" + "x" * 103, "/tmp/a b", "/tmp/a?b", "/tmp/a\nb"])
def test_a_path_that_cannot_be_that_of_a_socket_is_refused(path: str, dataset: Callable[[], MPDataset[Any]]) -> None:
    with pytest.raises(ArgumentError, match="the path of a socket"), running_server(dataset(), socket_file=path):
        pass
