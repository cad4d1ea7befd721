"""Pages of statistics that another user publishes: they may hold anything, and none of it harms a terminal."""

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from mpload.telemetry.page import _HEAD, _LENGTH, _WORD, StatsPage, page_facts, read_pages
from mpload.telemetry.stats import LoaderStats, SourceStats, Timings, WorkerStats
from tests.support.programs import mpload

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="pages need Linux"),
    pytest.mark.processes,
]
EVIL = "\x1b[2J\x1b[31m[red]EVIL\x07"


@pytest.fixture
def page() -> Iterator[StatsPage]:
    page = StatsPage()
    yield page
    page.close()


def write_text(page: StatsPage, text: bytes) -> None:
    page._map[_LENGTH] = _WORD.pack(len(text))
    page._map[_HEAD.size : _HEAD.size + len(text)] = text


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [("top", "--once", "--interval", "0.1"), ("top", "--once", "--interval", "0.1", "--json")]
)
def test_names_are_shown_without_control_characters(page: StatsPage, command: tuple[str, ...]) -> None:
    worker = WorkerStats(name=EVIL, pid=os.getpid(), timings=Timings())
    facts = page_facts(LoaderStats(workers=(worker,), sources={EVIL: SourceStats()}))
    page.write(facts)
    ran = mpload(*command, str(os.getpid()), COLUMNS="200")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.count("[red]EVIL") == 2
    assert not {"\x1b", "\x07"} & set(ran.stdout)


def with_servers(facts: dict[str, Any]) -> None:
    facts["stats"]["servers"] = {"http://x": {}}


def with_texts(facts: dict[str, Any]) -> None:
    facts["monotonic_seconds"] = "x"


def with_no_statistics(facts: dict[str, Any]) -> None:
    facts["stats"] = "x"


def with_a_large_number(facts: dict[str, Any]) -> None:
    facts["stats"]["num_batches"] = 10**400


BROKEN = {
    "servers": with_servers,
    "texts for numbers": with_texts,
    "no statistics": with_no_statistics,
    "a large number": with_a_large_number,
    "deep": b"[" * 30_000,
    "a list": b"[]",
    "not UTF-8": b'{"pid": "\xff"}',
    "cut off": b'{"pid": 1',
    "empty": b"",
}


@pytest.mark.slow
@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_page_that_is_broken_is_one_clear_error(page: StatsPage, broken: Any) -> None:
    facts = json.loads(json.dumps(page_facts(LoaderStats())))
    if callable(broken):
        broken(facts)
        page.write(facts)
    else:
        write_text(page, broken)
    for command in (("top", str(os.getpid())), ("doctor", "--pid", str(os.getpid()), "--seconds", "0.5")):
        ran = mpload(*command, *(["--once", "--interval", "0.1"] if command[0] == "top" else []))
        assert (ran.returncode, ran.stdout) == (1, ""), command
        assert f"mpload: the statistics that process {os.getpid()} publishes cannot be read" in ran.stderr
        assert ran.stderr.count("\n") == 1


def test_a_reader_in_the_same_process_gets_what_was_written(page: StatsPage) -> None:
    facts = json.loads(json.dumps(page_facts(LoaderStats(sources={"a b/ü.txt": SourceStats(num_samples=2**63)}))))
    page.write(facts)
    assert read_pages(os.getpid())[-1] == facts


@pytest.mark.parametrize("command", [("top", "--once"), ("doctor", "--pid")])
def test_a_number_that_no_process_has_is_a_clear_error(command: tuple[str, ...]) -> None:
    ran = mpload(*command, str(99_999_999_999))
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("mpload: there is no process 99999999999. ")
    assert ran.stderr.count("\n") == 1
