"""Compares samples of servers with the same samples made here."""

import mmap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpload.client.requests import Answered, Piece
from mpload.errors import FAILURES, ServerError
from mpload.plan.batch_number import BatchNumber
from mpload.samples.index_work import PipelineWork
from mpload.transport.ragged import RaggedArray
from mpload.transport.worker import ChunkReport

__all__ = ["Comparing", "aside", "begin_arrays", "new_count"]

_NUM_COMPARED = 2
"""Samples that are compared with the same ones made here, while no server has made other ones."""
_MAX_VAIN = 4
"""If so many answers hold no sample that can be made here, the server is used without a comparison."""


def new_count() -> NDArray[np.int64]:
    """Return a zero, int64 [1], that this process will share with those that are forked from it."""
    return np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.int64, count=1)


class Comparing:
    """Compares some samples of the first answer over each connection, since the server may have been started again.

    As soon as a worker finds that a server makes other samples, all workers compare the next answer over each of their
    connections once more, and all of its samples: the difference may be rare.

    Args:
        work: makes the samples here.
        fields: names of the fields of a slot that an answer has.
        num_differences: int64 [1]. How many differences the workers of the loader have found, which all of them count.
    """

    def __init__(self, work: PipelineWork, fields: Sequence[str], num_differences: NDArray[np.int64]) -> None:
        self._work = work
        self._fields = fields
        self._num_differences = num_differences
        self._num_vain: dict[str, int] = {}  # by URL: answers since the last one that could be compared
        self._compared = set[str]()  # URLs of servers that were compared

    def check(self, answered: Answered, piece: Piece, theirs: Mapping[str, Any], report: ChunkReport) -> None:
        """Compare an answer that was received into the arrays `theirs`, unless its connection is known to be good.

        Raises:
            ServerError: samples differ.
        """
        num_differences, url = int(self._num_differences[0]), answered.url
        num_vain = self._num_vain.get(url, 0)
        if answered.connection.checked == num_differences or report.private_arrays is None:
            return
        if num_vain >= _MAX_VAIN and url not in self._compared and not num_differences:
            return
        last = piece.last if num_differences else min(piece.first + _NUM_COMPARED, piece.last)
        compared = self._places(answered, piece, last, private := report.private_arrays(), report)
        self._compare(answered, piece, theirs, private, compared)
        if num_differences and not compared:
            answered.connection.close()
            raise ServerError(
                f"{url}: servers have made other samples than this machine, and none of this answer can be made here "
                "to compare it. Mend the servers, and start again"
            )
        num_vain = 0 if compared else num_vain + 1
        if compared:
            self._compared.add(url)
        if compared or num_vain == _MAX_VAIN:
            answered.connection.checked = num_differences
        self._num_vain[url] = 0 if num_vain == _MAX_VAIN and url in self._compared else num_vain

    def _places(
        self, answered: Answered, piece: Piece, last: int, private: Mapping[str, Any], report: ChunkReport
    ) -> Sequence[int]:
        """Make the samples up to `last` in arrays of this process, and return the places of those to compare."""
        begin_arrays((private[name] for name in self._fields), piece.first, last)
        bad = {piece.first + each.sample for each in answered.head.failures}
        made = []
        for place in range(piece.first, last):
            mine = aside(report)
            with suppress(*FAILURES):  # the sample is bad, or its file is not here
                self._work.fill(piece.task, private, place, place + 1, mine)
                if not mine.failures and place not in bad:
                    made.append(place)
        return made

    def _compare(
        self,
        answered: Answered,
        piece: Piece,
        theirs: Mapping[str, Any],
        private: Mapping[str, Any],
        places: Iterable[int],
    ) -> None:
        number = BatchNumber.of(piece.task)
        ours = self._work.unpacked(number, private)
        for place in places:
            for name, array in theirs.items():
                if told := _difference(array[place], ours[name][place]):
                    self._num_differences += 1
                    answered.connection.close()
                    sample_id = self._work.sample_ids(number, place, place + 1)[0]
                    raise ServerError(
                        f"{answered.url} makes other samples than this machine: {name!r} of sample_id {sample_id} "
                        f"{told}. Use the same version of mpload and of its decoders (mpload.jpeg_backend()) and the "
                        "same code on both, and draw random numbers only from those that mpload seeds"
                    )


def aside(report: ChunkReport) -> ChunkReport:
    """Return a report for samples that are made here for a comparison."""
    return ChunkReport(at=report.at, sample=report.sample, wait_for_turn=report.wait_for_turn, layout=report.layout)


def begin_arrays(arrays: Iterable[Any], first: int, last: int) -> None:
    """Empty the places `first` to `last` (exclusive) of ragged arrays, so that they can be filled."""
    for array in arrays:
        if isinstance(array, RaggedArray):
            array.begin(first, last)


def _difference(theirs: NDArray[Any], ours: NDArray[Any]) -> str:
    """Return how two values differ, bit by bit; empty if they do not."""
    if theirs.shape != ours.shape:
        return f"has the shape {list(theirs.shape)} there and {list(ours.shape)} here"
    differing = _bytes_of(theirs) != _bytes_of(ours)
    return f"differs in {differing.mean():.1%} of its bytes" if differing.any() else ""


def _bytes_of(value: NDArray[Any]) -> NDArray[np.uint8]:
    return np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)
