"""Lists of servers in a file: workers ask those that it names at present."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mpload import ArgumentError, MPLoader, Servers
from mpload.client.listing import ServerList, urls_in, write_urls
from tests.support.batches import ids, numbers
from tests.support.sample_servers import sample_server


def test_a_list_is_read_again_when_it_changes_and_is_empty_without_its_file(tmp_path: Path) -> None:
    path, now = tmp_path / "servers.txt", 0.0
    listed = ServerList((), path)
    for urls in (["http://a:1"], ["http://a:1", "https://b"], [], ["http://c:2"]):
        write_urls(path, urls)
        now += 10
        assert listed.update(now)
        assert listed.urls == tuple(urls)
        assert not listed.update(now + 5)
        write_urls(path, ["http://soon"])
        assert not listed.update(now + 5.5)  # so soon after, it does not look
    path.unlink()
    assert listed.update(now + 10)
    assert listed.urls == ()
    assert not list(tmp_path.iterdir())


def test_what_is_no_list_is_refused_once_and_the_servers_remain(tmp_path: Path) -> None:
    path = tmp_path / "servers.txt"
    write_urls(path, ["http://a:1"])
    listed = ServerList((), path)
    assert listed.update(0.0)
    for content in (b"http://a:1 http://b:2\n", b"http://a\nhttp://a\n", b"\xff\xfe", b"not a URL"):
        path.write_bytes(content)
        with pytest.raises(ArgumentError, match="is no list of servers"):
            Servers(list_file=path)
        with pytest.raises(ArgumentError, match="is no list of servers"):
            listed.update(float(len(content) * 100))
        assert not listed.update(float("inf"))
        listed._looks_at = float("-inf")
        assert listed.urls == ("http://a:1",)


def test_spaces_and_empty_lines_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "servers.txt"
    path.write_text("\n http://a:1/ \r\n\nhttp://b\n")
    assert urls_in(path) == ("http://a:1", "http://b")


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")
def test_a_loader_asks_the_servers_that_the_list_names_at_present(tmp_path: Path) -> None:
    dataset, path = numbers(tmp_path, 200, batch_size=8), tmp_path / "servers.txt"
    expected = numbers(tmp_path, 200, batch_size=8)
    with sample_server(dataset) as first, sample_server(dataset) as second:
        write_urls(path, [first.url])

        def train_until(is_seen: Callable[[], bool]) -> None:
            deadline, seen = time.monotonic() + 60, False
            while not seen:
                assert time.monotonic() < deadline
                epoch, before = len(num_served), first.num_samples + second.num_samples
                loader.set_epoch(epoch)
                expected.set_epoch(epoch)
                assert ids(loader) == ids(expected)
                num_served.append(first.num_samples + second.num_samples - before)
                seen = is_seen()

        num_served: list[int] = []
        with MPLoader(dataset, servers=path, num_workers=1) as loader:
            train_until(lambda: first.num_samples > 0)
            assert not second.num_samples
            write_urls(path, [second.url])
            train_until(lambda: second.num_samples > 0)
            of_first = first.num_samples
            train_until(lambda: second.num_samples > 200)
            assert first.num_samples == of_first
            write_urls(path, [])
            train_until(lambda: num_served[-1] == 0)
            write_urls(path, [first.url])
            train_until(lambda: first.num_samples > of_first)
