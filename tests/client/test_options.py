"""`Servers`, and the arguments of a loader that make them."""

from pathlib import Path
from typing import Any

import pytest

from mpload import ArgumentError, MPLoader, PoolOptions, Servers
from mpload.client.options import longest_pause_of
from tests.support.batches import numbers

URL = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "server",
        "server:80",
        "ftp://server",
        "http://",
        "http://a b",
        "http://u:p@server",
        "http://s?q",
        "http://s#f",
        "http://server:0",
        "http://server:99999",
        "http://[::1",
        "http://s\r\nX: y",
        "unix://host/path",
        "unix:///",
        5,
    ],
)
def test_url_that_names_no_server_is_refused(url: Any) -> None:
    with pytest.raises(ArgumentError, match="HOST:PORT"):
        Servers(urls=[url])


@pytest.mark.parametrize(
    "url", ["http://server", "https://server:1/", "http://[::1]:80", "http://gate/for/images", "unix:///a/b"]
)
def test_url_of_a_server_is_kept_without_a_slash_at_its_end(url: str) -> None:
    assert Servers(urls=[url]).urls == (url.rstrip("/"),)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"urls": []}, "at least one"),
        ({"urls": URL}, "list of"),
        ({"urls": [URL], "list_file": "servers.txt"}, "not both"),
        ({"urls": [], "list_file": "absent.txt"}, "absent.txt is no list of servers.*No such file"),
        ({"urls": [URL, URL + "/"]}, "differ"),
        ({"fallback": "maybe"}, "fallback"),
        ({"token": "two\nlines"}, "token"),
        ({"token": ""}, "token"),
        ({"token": "secret "}, "without spaces around"),
        ({"request_timeout_seconds": 0}, "request_timeout_seconds"),
        ({"retry_seconds": float("inf")}, "retry_seconds"),
        ({"asking_workers": 0}, "asking_workers"),
        ({"ca_file": "absent.pem"}, r"ca_file='absent.pem' has no certificates: No such file.*Pass a PEM file"),
        ({"ca_file": __file__}, "has no certificates: .*Pass a PEM file"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Servers(**{"urls": [URL], **options})


def test_token_is_not_shown() -> None:
    assert "secret" not in repr(Servers(urls=[URL], token="secret"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"servers": [URL], "num_workers": 0}, "num_workers is 0"),
        ({"servers": Path("absent.txt")}, "absent.txt is no list"),
        ({"token": "t"}, "belong to servers="),
        ({"fallback": "raise"}, "belong to servers="),
        ({"servers": Servers(urls=[URL]), "token": "t"}, "its own token"),
        ({"servers": Servers(urls=[URL]), "fallback": "raise"}, "its own token and fallback"),
        ({"servers": Servers(urls=[URL], asking_workers=3), "num_workers": 2}, "asking_workers=3"),
        ({"servers": Servers(urls=[URL], asking_workers=1), "num_workers": "auto"}, "asking_workers=1"),
        ({"servers": [URL], "options": PoolOptions(sample_timeout_seconds=30)}, "sample_timeout_seconds"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        MPLoader(numbers(tmp_path, 8), **options)


def test_servers_for_a_dataset_of_the_users_own_are_refused() -> None:
    loader: Any = MPLoader
    with pytest.raises(ArgumentError, match="servers make the samples of an MPDataset only"):
        loader(list(range(8)), servers=[URL], num_workers=1)


def test_a_server_is_asked_several_times_while_a_worker_waits_for_it() -> None:
    assert longest_pause_of(Servers(urls=["http://a:1"], fallback="raise", retry_seconds=8.0)) == 2.0
    assert longest_pause_of(Servers(urls=["http://a:1"], fallback="raise", retry_seconds=1e6)) == 30.0
    assert longest_pause_of(Servers(urls=["http://a:1"], retry_seconds=8.0)) == 30.0
