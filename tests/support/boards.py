"""Chunks and workers for tests of the board, and the bytes in its pipe."""

import fcntl
import termios
from array import array

from mpload.transport.board import ParentBoard, WorkerBoard
from mpload.transport.chunks import Chunk


def chunk(first: int) -> Chunk:
    return Chunk(batch=0, slot=3, first=first, last=first + 2, task=(first, -7))


def worker_of(board: ParentBoard, number: int) -> WorkerBoard:
    worker = WorkerBoard(board.fds)
    worker.use_row(number)
    return worker


def num_unread(board: ParentBoard) -> int:
    count = array("i", [0])
    fcntl.ioctl(board.fds.tokens, termios.FIONREAD, count)
    return count[0]
