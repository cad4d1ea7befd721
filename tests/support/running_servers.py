"""Servers of `mpload.serve` in a thread of the test, with workers of their own, and what asks them over plain HTTP."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil
from numpy.typing import ArrayLike

from mpload import MPDataset
from mpload.client.protocol import DATASET_HEADER, AnswerHead, Description, Wanted, read_answer
from mpload.loader.index_source import IndexSource
from mpload.plan.batch_number import BatchNumber
from mpload.servers.serving import serve
from mpload.transport.batches import FilledBatch
from mpload.transport.ragged import RaggedArray
from mpload.transport.ring import SlotRing
from mpload.transport.slots import SlotLayout

__all__ = ["Asker", "asked", "asking", "running_server", "wanted", "worker_pids"]

_SECONDS = 60


@contextmanager
def running_server(dataset: MPDataset[Any], *, ends_by_itself: bool = False, **options: Any) -> Iterator[str]:
    """Start a server, yield its URL, and at the end stop it, or wait until it has ended by itself."""
    found: dict[str, Any] = {}
    ready = threading.Event()

    def on_ready(url: str) -> None:
        found.update(url=url, loop=asyncio.get_running_loop(), task=asyncio.current_task())
        ready.set()

    def run() -> None:
        try:
            with suppress(asyncio.CancelledError):
                chosen = {"port": 0, "num_workers": 2, "memory_budget": "512MiB", **options}
                serve(dataset, on_ready=on_ready, **chosen)
        except BaseException as error:  # noqa: BLE001  raised below
            found["error"] = error
        ready.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(_SECONDS)
    try:
        if "url" in found:
            yield found["url"]
    finally:
        if "url" in found and not ends_by_itself:
            with suppress(RuntimeError):  # it has ended by itself
                found["loop"].call_soon_threadsafe(found["task"].cancel)
        thread.join(_SECONDS)
        assert not thread.is_alive()
    if "error" in found:
        raise found["error"]


@contextmanager
def asking(dataset: MPDataset[Any], url: str, *, token: str | None = None) -> "Iterator[Asker]":
    """Connect to a server, and disconnect at the end."""
    source = IndexSource(dataset._runs)
    fields = source.sample_fields()
    with closing(HTTPConnection(urlsplit(url).netloc, timeout=_SECONDS)) as connection:
        yield Asker(
            source=source,
            connection=connection,
            layout=SlotLayout(num_samples=256, fields=fields),
            description=source.describe(fields),
            token=token,
        )


@contextmanager
def asked(dataset: Callable[[], MPDataset[Any]], **options: Any) -> "Iterator[Asker]":
    """Start a server of a dataset, and ask it for another dataset that is equal."""
    with running_server(dataset(), **options) as url, asking(dataset(), url, token=options.get("token")) as asker:
        yield asker


def worker_pids() -> list[int]:
    """Return the process ids of the workers below this process."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.name().startswith("mpload-worker"):
                found.append(process.pid)
    return found


def wanted(sample_ids: ArrayLike, *, seed: int = 0, epoch: int = 0, bucket: int = 0) -> Wanted:
    """Return a request."""
    return Wanted(seed=seed, epoch=epoch, bucket=bucket, sample_ids=np.asarray(sample_ids, np.int64))


@dataclass
class Asker:
    """Asks a server for the samples of a dataset, one request after another on one connection."""

    source: IndexSource
    connection: HTTPConnection
    layout: SlotLayout
    description: Description
    """Of the dataset here."""
    token: str | None = None

    def get(self, path: str) -> tuple[int, bytes]:
        """Return status and body of a page."""
        self.connection.request("GET", path, headers=self.headers())
        response = self.connection.getresponse()
        return response.status, response.read()

    def metric(self, name: str) -> float:
        """Return the value of a metric without labels."""
        lines = self.get("/metrics")[1].decode().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"mpload_server_{name} "))

    def await_metric(self, name: str, value: float) -> None:
        """Wait until a metric has a value."""
        deadline = time.monotonic() + _SECONDS
        while (found := self.metric(name)) != value:
            assert time.monotonic() < deadline, (name, found)
            time.sleep(0.02)

    def labels(self, request: Wanted) -> list[int]:
        """Return the labels of the samples of a request."""
        found: list[int] = self.samples(request)[1]["label"].tolist()
        return found

    @property
    def address(self) -> str:
        """Host and port of the server."""
        return f"{self.connection.host}:{self.connection.port}"

    def headers(self, digest: str | None = None) -> dict[str, str]:
        """Return the headers of a request for samples."""
        token = {} if self.token is None else {"Authorization": f"Bearer {self.token}".encode().decode("latin-1")}
        return {DATASET_HEADER: digest or self.description.digest, **token}

    def post(self, body: bytes, *, digest: str | None = None) -> HTTPResponse:
        """Send a request for samples."""
        self.connection.request("POST", "/v1/samples", body=body, headers=self.headers(digest))
        return self.connection.getresponse()

    def refusal(self, body: bytes, *, digest: str | None = None) -> tuple[int, str]:
        """Return status and error of a request that the server refuses."""
        response = self.post(body, digest=digest)
        return response.status, json.loads(response.read())["error"]

    def samples(self, request: Wanted) -> tuple[AnswerHead, dict[str, Any]]:
        """Return the samples of a request, as the arrays of a slot."""
        response, num_samples = self.post(request.encode()), len(request.sample_ids)
        assert response.status == 200, response.read()
        ring = SlotRing(num_slots=1, layout=self.layout)
        slot = ring.take()
        assert slot is not None
        arrays = ring.lend(slot, num_samples)
        for array in arrays.values():
            if isinstance(array, RaggedArray):
                array.begin(0, num_samples)
        if self.source._run.batching.buckets is not None:
            self.source._run.pipeline.makers.use_bucket(request.bucket)
        shaped = self.source._run.pipeline.makers.unpacked(arrays)
        num_bytes = int(response.headers["Content-Length"])

        def read_into(buffer: memoryview) -> None:
            while len(buffer):
                num_read = response.readinto(buffer)
                assert num_read
                buffer = buffer[num_read:]

        head = read_answer(read_into, num_bytes, shaped, 0, num_samples)
        assert not response.read()
        ring.close()
        return head, arrays

    def batches(self) -> Iterator[Any]:
        """Yield the batches of the next epoch, presented as a loader does."""
        epoch = self.source.epochs.begin(worker=0, num_workers=1)
        batching = self.source._run.batching
        for task in self.source.tasks(epoch):
            number = BatchNumber.of(task.numbers)
            bucket = 0 if batching.buckets is None else number.batch
            sample_ids = batching.sample_ids(number)
            head, arrays = self.samples(wanted(sample_ids, seed=number.seed, epoch=number.epoch, bucket=bucket))
            filled = FilledBatch(task=task, arrays=arrays, layout=self.layout, failures=head.failures, tally=head.tally)
            yield self.source.present(epoch, filled)
