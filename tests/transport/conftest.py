"""Fixtures for the tests of the transport."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from mpload.transport.board import ParentBoard
from tests.support.zygote_template import stop_template


@pytest.fixture(autouse=True)
def zygotes() -> None:
    """Start zygotes as users do."""
    stop_template()


@pytest.fixture
def board(request: pytest.FixtureRequest) -> Iterator[ParentBoard]:
    with closing(ParentBoard(num_plain_entries=getattr(request, "param", 4))) as board:
        yield board
