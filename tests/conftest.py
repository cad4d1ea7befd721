"""What all tests share."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.no_processes import refuse_processes, unmarked
from tests.support.photos import make_photo_tree

# How long an example takes says how busy the machine is, and nothing about the law that it tests.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture(scope="session")
def photo_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A class-per-folder tree of real photographs."""
    root = tmp_path_factory.mktemp("photos") / "train"
    make_photo_tree(root, num_images=24, num_classes=3, seed=0)
    return root


@pytest.fixture(autouse=True, scope="session")
def own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keep locks and sidecars of read-only folders out of the user's cache folder."""
    folder = tmp_path_factory.mktemp("cache")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    return folder


def pytest_configure() -> None:
    """Make the late device torch's accelerator where that is asked for.

    Keep commands under test quiet about a native decoder that is not built; pyproject.toml does it for the tests.

    Refuse processes to tests that are not marked `processes`.

    Hear Ctrl-C also where a shell has started the tests in the background: commands under test inherit that.
    """
    os.environ.setdefault("PYTHONWARNINGS", "ignore:JPEGs are decoded by simplejpeg")
    sys.addaudithook(refuse_processes)
    if os.environ.get("MPLOAD_TEST_DEVICE") == "late":
        from tests.support.late_device import install

        install()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave tests that are slow, quiet or for an accelerator out of `-m "not processes"` too."""
    for item in items:
        if any(item.get_closest_marker(name) for name in ("slow", "quiet", "gpu")):
            item.add_marker("processes")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note which test runs, where it may start no process."""
    if not item.get_closest_marker("processes"):
        unmarked.append(item.nodeid)
    try:
        return (yield)
    finally:
        unmarked.clear()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Without an accelerator skip tests marked `gpu`, or fail them where MPLOAD_REQUIRE_GPU=1 promises one."""
    if item.get_closest_marker("gpu") is None:
        return
    import torch

    if torch.accelerator.is_available():
        return
    if os.environ.get("MPLOAD_REQUIRE_GPU") == "1":
        pytest.fail("MPLOAD_REQUIRE_GPU=1, but torch finds no accelerator", pytrace=False)
    pytest.skip("no accelerator")
