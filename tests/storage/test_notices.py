"""Notices of outages: sent once, when an outage has lasted for a while, and once when it is over."""

import multiprocessing
import re
import threading
import time
import warnings
from pathlib import Path

import pytest

from mpload import MPDataset, MPLoader, MploadWarning, OutageError, RemoteStorage, ResizeCenterCrop, Topology
from mpload.loader.outages import OutageWarnings
from mpload.storage.notices import Notice, Notices
from mpload.storage.object_facts import ObjectFacts
from mpload.storage.request_failure import RequestFailure, status_failure
from mpload.storage.retrying import RetryingClient
from mpload.storage.servers import Limits
from mpload.transport.messages import Failure
from tests.support.fault_runs import NUM_FILES, make_files, write_index
from tests.support.web_faults import AT_ONCE, web_server

URL = "http://data.example.com"


class Failing:
    """A client whose first requests for each good object fail."""

    def __init__(self, failure: RequestFailure, *, num_failures: int) -> None:
        self._failure = failure
        self._num_left = num_failures
        self._lock = threading.Lock()

    def fetch(self, url: str, key: str, span: tuple[int, int] | None, *, limit_seconds: float) -> bytes:
        with self._lock:
            self._num_left -= 1
            if self._num_left >= 0:
                raise self._failure
        if key == "bad":
            raise RequestFailure("connection reset")
        return b"data"

    def look_up(self, url: str, key: str, *, limit_seconds: float) -> ObjectFacts:
        raise NotImplementedError


def notices_of(
    failure: RequestFailure, *, num_failures: int, num_threads: int = 1, quiet_seconds: float = 0.05, key: str = "key"
) -> list[Notice]:
    """Read an object in several threads, and return the notices that were sent."""
    notices, sent = Notices(), list[Notice]()
    notices.send = sent.append
    limits = Limits(connect_seconds=0.1, request_seconds=0.5, retry_seconds=60.0, quiet_seconds=quiet_seconds)
    client = RetryingClient(Failing(failure, num_failures=num_failures), URL, limits, notices=notices)

    def read() -> None:
        try:
            client.fetch(key, None)
        except Exception as error:  # noqa: BLE001  a bad object
            assert "The server answers other requests" in str(error)  # noqa: PT017

    threads = [threading.Thread(target=read) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sent


@pytest.mark.parametrize("num_threads", [1, 8])
def test_an_outage_is_noticed_once_and_its_end_once(num_threads: int) -> None:
    failure = RequestFailure("connection refused", " by data.example.com:80: no server listens there")
    began, ended = notices_of(failure, num_failures=4 * num_threads, num_threads=num_threads)
    assert (began.place, began.is_outage, ended.place, ended.is_outage) == (URL, True, URL, False)
    assert began.text.startswith(f"{URL}: connection refused by data.example.com:80: no server listens there (")
    assert re.search(r"Requests are repeated for [\d.]+ s more,", began.text)
    assert "RemoteStorage(retry_seconds=60)" in began.text
    assert ended.text.startswith(f"{URL}: the server answers again, after ")


def test_a_server_that_asks_to_wait_is_noticed_before_the_wait() -> None:
    began, ended = notices_of(status_failure(503, wait_seconds=0.3), num_failures=1, quiet_seconds=0.2)
    assert began.text.startswith(f"{URL}: the server answered 503 Service Unavailable (1 attempt in 0.")
    assert ended.is_outage is False


@pytest.mark.slow
def test_a_short_outage_and_a_bad_object_are_not_noticed() -> None:
    assert notices_of(RequestFailure("connection reset"), num_failures=2, quiet_seconds=30.0) == []
    assert notices_of(RequestFailure("connection reset"), num_failures=0, key="bad") == []


def test_a_notice_that_a_filter_turns_into_an_error_is_an_outage_and_no_bad_sample() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", MploadWarning)
        with pytest.raises(OutageError, match="down"):
            Notices().send(Notice(place=URL, is_outage=True, text="down"))
        Notices().send(Notice(place=URL, is_outage=False, text="up"))


def test_a_notice_that_a_thread_has_dropped_as_an_error_is_raised_in_the_next_one() -> None:
    """Threads that read ahead drop errors, since the sample is read again when it is requested."""
    limits = Limits(connect_seconds=0.1, request_seconds=0.5, retry_seconds=60.0, quiet_seconds=0.05)
    client = RetryingClient(Failing(RequestFailure("connection refused"), num_failures=10_000), URL, limits)
    with warnings.catch_warnings():
        warnings.simplefilter("error", MploadWarning)
        for _ in range(2):
            with pytest.raises(OutageError, match="No request to this server succeeds"):
                client.fetch("key", None)


def message(text: str, *, is_outage: bool, place: str = URL, answered_at: float = float("-inf")) -> Failure:
    """Return what a worker sends."""
    details = {"place": place, "is_outage": is_outage, "answered_at": answered_at}
    return Failure(sample=-1, cause=text, details=details)


def test_another_outage_is_shown_though_the_workers_that_met_the_first_one_were_killed() -> None:
    later = time.monotonic() + 60
    messages = [
        message("down", is_outage=True, answered_at=0.0),
        message("down, says another", is_outage=True),
        message("down again", is_outage=True, answered_at=later),
        message("up", is_outage=False),
    ]
    with pytest.warns(MploadWarning) as found:
        list(map(OutageWarnings(), messages))
    assert [str(each.message) for each in found] == ["down", "down again", "up"]


def test_notices_of_several_workers_become_one_warning_each() -> None:

    texts = ("down", True), ("down 2", True), ("up", False), ("up 2", False), ("again", True)
    messages = [message(text, is_outage=is_outage) for text, is_outage in texts]
    messages.append(message("other", is_outage=True, place="s3://bucket"))
    with pytest.warns(MploadWarning) as found:
        list(map(OutageWarnings(), messages))
    assert [str(each.message) for each in found] == ["down", "up", "again", "other"]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_training_process_warns_of_an_outage_while_it_goes_on_and_when_it_is_over(
    num_workers: int, tmp_path: Path
) -> None:
    make_files(tmp_path / "files")
    with web_server(tmp_path / "files", "status 500", seconds=12.0, bad=AT_ONCE) as server:
        write_index(tmp_path / "index.txt", server.url, tmp_path / "files")
        dataset = MPDataset(
            tmp_path / "index.txt",
            decode=ResizeCenterCrop(16),
            batch_size=4,
            on_error="skip",
            storage=RemoteStorage(request_timeout_seconds=5.0, retry_seconds=60.0),
            topology=Topology(),
        )
        with MPLoader(dataset, num_workers=num_workers) as loader, pytest.warns(MploadWarning) as found:
            labels = [number for _, numbers in loader for number in numbers.tolist()]
    assert labels == list(range(NUM_FILES))
    began, ended = [str(each.message) for each in found if "http" in str(each.message)]
    assert began.startswith(f"{server.url}: the server answered 500 Internal Server Error (")
    assert ended.startswith(f"{server.url}: the server answers again, after 1")


@pytest.mark.processes
def test_a_process_whose_parent_was_killed_does_not_repeat_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = multiprocessing.get_context("spawn").Process()
    ended.start()
    ended.join()
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: ended)
    limits = Limits(connect_seconds=0.1, request_seconds=0.5, retry_seconds=60.0)
    client = RetryingClient(Failing(RequestFailure("connection refused"), num_failures=10_000), URL, limits)
    with pytest.raises(OutageError, match="the process that started this one has ended"):
        client.fetch("key", None)
