"""`ServedWork`: the work of workers that have samples made by servers."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.client.asking import Asking
from mpload.client.comparing import Comparing, aside, begin_arrays, new_count
from mpload.client.connection import Connection, RequestError
from mpload.client.evidence import changed_index, named, unread
from mpload.client.options import Servers
from mpload.client.protocol import MAX_SAMPLES, AnswerHead, Description, Wanted, read_answer
from mpload.client.requests import Piece
from mpload.errors import FAILURES, ServerError
from mpload.plan.batch_number import BatchNumber
from mpload.samples.counts import HEDGES, READ_NS, SERVED, SERVED_BYTES
from mpload.samples.index_work import PipelineWork
from mpload.samples.pipeline import Pipeline
from mpload.storage.notices import Notice
from mpload.transport.messages import MAX_COUNTS, Tally, details_of
from mpload.transport.ring import blank
from mpload.transport.worker import ChunkReport

__all__ = ["ServedWork"]

_MAX_OPEN = 3
"""Requests that a worker keeps open: while it receives one answer, servers work on the others."""
_MAX_OTHERS = 3
"""Servers that are asked for a sample which another one cannot read."""


@dataclass(kw_only=True)
class ServedWork:
    """Asks servers for samples, and receives them directly into the batch's slot.

    Samples that no server makes are made here, by `work`, if `servers.fallback` says so. Each worker makes some of the
    samples in the first answer over each of its connections itself, and compares them.

    A sample that a server cannot read is asked for elsewhere. If others can read it, the server has failed, and all
    samples of its answer are made elsewhere.

    Process: as `PipelineWork`. Each process has its own connections.
    """

    work: PipelineWork
    servers: Servers
    description: Description
    fields: tuple[str, ...]
    """Names of the fields of a slot that hold the samples, in the order in which answers have them."""
    num_differences: NDArray[np.int64] | None = field(default=None, init=False, repr=False)
    """See `Comparing`."""

    @property
    def pipeline(self) -> Pipeline:
        """Makes the samples that no server makes."""
        return self.work.pipeline

    def share(self) -> None:
        """Let all workers read the same files, as `PipelineWork` does, and know of each other's comparisons."""
        self.work.share()
        self.num_differences = new_count()

    def open(self, worker: int) -> None:
        """Prepare this process. Connections are made for the first requests."""
        self.work.open(worker)
        self._asks = self.servers.asking_workers is None or worker < self.servers.asking_workers
        self._report: ChunkReport | None = None
        self._asking = Asking(self.servers, self.description, notify=self._notify)
        count = new_count() if self.num_differences is None else self.num_differences
        self._comparing = Comparing(self.work, self.fields, count)

    def _notify(self, notice: Notice) -> None:
        assert self._report is not None
        facts = {"place": notice.place, "is_outage": notice.is_outage, "answered_at": notice.answered_at}
        self._report.notify(notice.text, facts)

    def unpacked(self, number: BatchNumber, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """Prepare for a batch, and return the arrays of its slot in the shape that its samples have."""
        return self.work.unpacked(number, arrays)

    def sample_ids(self, number: BatchNumber, first: int, last: int) -> NDArray[np.int64]:
        """Return the sample_ids at places `first` to `last` (exclusive) of a batch."""
        return self.work.sample_ids(number, first, last)

    def fill(
        self, task: tuple[int, ...], arrays: Mapping[str, Any], first: int, last: int, report: ChunkReport
    ) -> None:
        """Have samples `first` to `last` (exclusive) of the batch `task` made."""
        if not self._asks:
            self.work.fill(task, arrays, first, last, report)
            return
        self._report = report
        self._asking.use_topology(BatchNumber.of(task).topology)
        pieces = list(self._pieces(task, first, last))
        upcoming = report.upcoming(_MAX_OPEN - 1)
        chunks = [list(self._pieces(chunk.task, chunk.first, chunk.last)) for chunk in upcoming]
        later = [piece for chunk in chunks for piece in chunk]
        try:
            for number, piece in enumerate(pieces):
                wanted = [*pieces[number:], *later][:_MAX_OPEN]
                self._asking.ask_ahead({each: partial(self._body, each) for each in wanted})
                report.begun(sum(chunk[0] in wanted for chunk in chunks))
                self._fill_piece(piece, arrays, report)
        except ServerError as error:
            for place in range(first, last):
                blank(dict(arrays), place)
            report.failed(first, str(error), details_of(error))
        counts = self._asking.counts.take()
        if self.servers.list_file is None:  # servers of a list have another number in each worker
            report.tally.add(Tally(numbered=counts))

    def _pieces(self, task: tuple[int, ...], first: int, last: int) -> Iterator[Piece]:
        number, batching = BatchNumber.of(task), self.work.batching
        batch_first = number.start // number.topology.world_size
        if batching.buckets is None:
            batch_first += number.batch * batching.batch_size
        for start in range(first, last, MAX_SAMPLES):
            end = min(start + MAX_SAMPLES, last)
            yield Piece(task, start, end, turn=(batch_first + start) // (end - start))

    def _body(self, piece: Piece) -> bytes:
        number = BatchNumber.of(piece.task)
        return Wanted(
            seed=number.seed,
            epoch=number.epoch,
            bucket=0 if self.work.batching.buckets is None else number.batch,
            sample_ids=self.work.sample_ids(number, piece.first, piece.last),
        ).encode()

    def _served(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        return {name: arrays[name] for name in self.fields}

    def _fill_piece(self, piece: Piece, arrays: Mapping[str, Any], report: ChunkReport) -> None:
        start_ns = perf_counter_ns()
        live = partial(report.at, piece.first)
        served = self._served(arrays)
        views = self.work.unpacked(BatchNumber.of(piece.task), served)
        read = partial(self._read, views, piece, report)
        answered = self._asking.answer(piece, partial(self._body, piece), read, live=live)
        counts = [0] * MAX_COUNTS
        counts[READ_NS] = perf_counter_ns() - start_ns
        counts[HEDGES], self._asking.num_hedges = self._asking.num_hedges, 0
        if answered is not None:
            counts[SERVED], counts[SERVED_BYTES] = piece.last - piece.first, answered.num_bytes
        report.tally.add(Tally(counts=counts))
        if answered is None:
            begin_arrays(views.values(), piece.first, piece.last)
            self.work.fill(piece.task, arrays, piece.first, piece.last, report)
            return
        self._comparing.check(answered, piece, views, report)
        report.failures += [named(each, url=answered.url, first=piece.first) for each in answered.head.failures]

    def _read(
        self, arrays: Mapping[str, Any], piece: Piece, report: ChunkReport, connection: Connection, num_bytes: int
    ) -> AnswerHead:
        """Receive an answer.

        Raises:
            RequestError: the server lacks its index, or samples that others have.
        """
        head = _read(arrays, piece, connection, num_bytes)
        for failure in unread(head.failures):
            place = piece.first + failure.sample
            one = Piece(piece.task, place, place + 1, piece.turn)
            if has_it := self._who_reads(one, report, but=connection.url):
                raise RequestError(f"cannot read what {has_it} can: {failure.cause.rstrip('?.')}")
        return head

    def _who_reads(self, piece: Piece, report: ChunkReport, *, but: str) -> str:
        """Return who can read a sample that the server `but` cannot; empty if nobody can."""
        if report.private_arrays is None:
            return ""
        private = report.private_arrays()
        served = self._served(private)
        if self.servers.fallback == "local":
            mine = aside(report)
            begin_arrays(served.values(), piece.first, piece.last)
            with suppress(*FAILURES):
                self.work.fill(piece.task, private, piece.first, piece.last, mine)
                if not unread(mine.failures):
                    return "this machine"
        views, asked = self.work.unpacked(BatchNumber.of(piece.task), served), [but]
        live, read = partial(report.at, piece.first), partial(_read, views, piece)
        while len(asked) <= _MAX_OTHERS:
            answered = self._asking.elsewhere(piece, self._body(piece), read, than=asked, live=live)
            if answered is None or answered.url in asked:
                return ""
            if not unread(answered.head.failures):
                return answered.url
            asked.append(answered.url)
        return ""


def _read(arrays: Mapping[str, Any], piece: Piece, connection: Connection, num_bytes: int) -> AnswerHead:
    begin_arrays(arrays.values(), piece.first, piece.last)  # an earlier answer may have broken off
    head = read_answer(connection.read_into, num_bytes, arrays, piece.first, piece.last)
    if changed := changed_index(head.failures):
        raise RequestError(f"needs to be started again: {changed.cause}")
    return head
