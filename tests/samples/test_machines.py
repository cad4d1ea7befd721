"""The arguments that name the machines of a shared cache, and how a machine finds itself among them."""

import socket
import sys
from typing import Any

import psutil
import pytest

from mpload import PartialCache
from mpload.errors import ArgumentError
from mpload.samples.cache.machines import machines_of


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"machines": "http://a"}, "must be a list of URLs"),
        ({"machines": None}, "must be a list of URLs"),
        ({"machines": {"http://a", "http://b"}}, "must be a list of URLs"),
        ({"machines": (url for url in ["http://a"])}, "must be a list of URLs"),
        *(
            ({"machines": [url]}, "are URLs of servers")
            for url in (
                *("a:80", "s3://bucket", "http://", "http://:80", "http://a b", "http://a:0", "http://a:99999"),
                *(
                    "http://a:x",
                    "http://a/path",
                    "http://a#x",
                    "http://a?x",
                    "http://u:p@a",
                    "http://[::",
                    None,
                    b"http://a",
                ),
            )
        ),
        ({"machines": ["http://a:80", "http://A/"]}, "must be different"),
        ({"machines": ["https://[::1]", "https://[::1]:443"]}, "must be different"),
        ({"machine": 0}, "belong to machines="),
        ({"token": "x"}, "belong to machines="),
        ({"machines": ["http://a"], "machine": 1}, "0 to 0, got 1"),
        ({"machines": ["http://a"], "machine": True}, "0 to 0, got True"),
        ({"machines": ["http://a"], "token": "a\n"}, "printable ASCII"),
        ({"machines": ["http://a"], "token": "a" * 1001}, "1,000 characters, got 1,001"),
        ({"machines": ["http://a"], "token": 5}, "printable ASCII"),
    ],
)
def test_wrong_machines_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        PartialCache("cache", **arguments)


def test_the_machine_is_found_by_its_address() -> None:
    own = next(
        each.address
        for found in psutil.net_if_addrs().values()
        for each in found
        if each.family == socket.AF_INET and not each.address.startswith("127.")
    )
    others = [f"http://203.0.113.{number}:80" for number in range(3)]
    for address in (own, "127.0.1.1", "[::ffff:127.0.0.1]"):
        found = machines_of([*others, f"http://{address}:80"], None, None)
        assert found is not None
        assert found.own == 3
    with pytest.raises(ArgumentError, match=r"fit none of them. Pass machine=, its place in machines, 0 to 0"):
        machines_of(["http://203.0.113.1:80"], None, None)
    with pytest.raises(ArgumentError, match=r"fit http://127.0.0.1:1, http://127.0.0.1:2. Pass machine="):
        machines_of(["http://127.0.0.1:1", "http://127.0.0.1:2"], None, None)


def test_a_missing_package_is_said_before_any_sample_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "urllib3", None)
    with pytest.raises(ArgumentError, match=r"takes urllib3: pip install 'mpload\[servers\]'"):
        machines_of(["http://127.0.0.1"], 0, None)
    assert machines_of([], None, None) is None


def test_the_token_is_not_shown() -> None:
    assert "secret" not in repr(PartialCache("cache", machines=["http://a"], machine=0, token="secret"))
