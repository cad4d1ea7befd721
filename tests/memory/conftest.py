"""Fixtures for the tests of memory."""

import pytest

from tests.support.zygote_template import stop_template


@pytest.fixture(autouse=True)
def zygotes() -> None:
    """Start zygotes as users do, since other processes would count too."""
    stop_template()
