"""Fixtures for the tests of the transport."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from mpload.transport.board import ParentBoard


@pytest.fixture
def board(request: pytest.FixtureRequest) -> Iterator[ParentBoard]:
    with closing(ParentBoard(num_plain_entries=getattr(request, "param", 4))) as board:
        yield board
