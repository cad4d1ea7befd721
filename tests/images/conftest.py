"""Fixtures that several tests of decoders share."""

import pytest

from tests.support.photos import Photos, make_special_photos


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Photos:
    """Files of all kinds that show the same photograph, by kind."""
    return make_special_photos(tmp_path_factory.mktemp("photos"))
