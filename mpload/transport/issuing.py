"""Puts chunks on the board, each with a serial number, and keeps them until they are answered."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mpload.errors import ArgumentError
from mpload.transport.batches import BatchTask
from mpload.transport.board import ParentBoard
from mpload.transport.chunks import Chunk

__all__ = ["Issuing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _AnnouncedBatch:
    task: BatchTask
    number: int
    chunks: Mapping[int, Chunk]
    """By serial number."""


class Issuing:
    """The chunks that are on the board or being filled, and those of later batches that workers already know of."""

    def __init__(self, board: ParentBoard) -> None:
        self._board = board
        self._serial = 0
        self._backlog: deque[Chunk] = deque()  # chunks for which the board has no room yet
        self._announced: deque[_AnnouncedBatch] = deque()
        self.issued: dict[int, Chunk] = {}
        """By serial number: chunks queued on the board or being filled."""
        self.max_announced = 0
        """Maximum number of samples that workers know of before their batches have slots."""

    def new_number(self) -> int:
        """Return the next serial number."""
        self._serial += 1
        return self._serial

    def may_announce(self, task: BatchTask) -> bool:
        """Return whether a batch may be announced. One with a further input may not: workers could not read that."""
        num_samples = sum(batch.task.num_samples for batch in self._announced)
        return num_samples + task.num_samples <= self.max_announced and task.input is None

    def announce(self, task: BatchTask, number: int, chunks: Sequence[Chunk], *, num_workers: int) -> bool:
        """Let workers reserve the chunks of batch `number`, which has no slot yet; return False if there is no room.

        Batches must be posted in the order in which they are announced.

        Args:
            task: the batch.
            number: its serial number.
            chunks: its chunks, without a slot.
            num_workers: number of workers that share them.
        """
        batch = _AnnouncedBatch(task=task, number=number, chunks=self._numbered(chunks))
        if not self._board.announce(batch.chunks, num_workers=num_workers):
            return False
        self._announced.append(batch)
        return True

    def check_next(self, task: BatchTask) -> None:
        """Raise `ArgumentError` if another batch than this was announced first."""
        if self._announced and self._announced[0].task is not task:
            raise ArgumentError(
                f"the batch with numbers {self._announced[0].task.numbers} was announced, so submit it first"
            )

    @property
    def next_number(self) -> int | None:
        """Serial number of the first announced batch; None if there is none."""
        return self._announced[0].number if self._announced else None

    def post_announced(self, slot: int, *, layout: int) -> None:
        """Put the chunks of the first announced batch on the board, now that it has a slot."""
        chunks = self._announced.popleft().chunks
        self._post({serial: replace(chunk, slot=slot, layout=layout) for serial, chunk in chunks.items()}, urgent=False)

    def withdraw(self) -> list[Chunk]:
        """Forget all announced batches and the chunks for which the board had no room. Return the latter."""
        dropped, self._backlog = list(self._backlog), deque()
        self._announced.clear()
        return dropped

    def issue(self, chunks: Sequence[Chunk], *, urgent: bool) -> None:
        """Put chunks on the board; keep those for which it has no room until `issue_rest`."""
        self._post(self._numbered(chunks), urgent=urgent)

    def issue_rest(self) -> None:
        """Put chunks on the board for which there was no room."""
        if self._backlog:
            rest, self._backlog = self._backlog, deque()
            self.issue(rest, urgent=True)

    def _numbered(self, chunks: Sequence[Chunk]) -> dict[int, Chunk]:
        return {self.new_number(): chunk for chunk in chunks}

    def _post(self, chunks: Mapping[int, Chunk], *, urgent: bool) -> None:
        num_posted = 0
        for serial, chunk in chunks.items():
            if self._board.post(serial, chunk, urgent=urgent):
                self.issued[serial] = chunk
                num_posted += 1
            else:
                self._backlog.append(chunk)
        self._board.wake(num_posted)
