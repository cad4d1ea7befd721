"""Fixtures and hooks for all tests."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from mpload.samples import held_generators
from mpload.transport import launch
from tests.support.cpu_report import CpuReport
from tests.support.no_processes import refuse_processes, unmarked
from tests.support.photos import make_photo_tree
from tests.support.zygote_template import IS_SUPPORTED, stop_template, subprocess_with_template

# An example's duration depends on how busy the machine is, and says nothing about the law under test.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture(scope="session")
def photo_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree of real photographs with one folder per class."""
    root = tmp_path_factory.mktemp("photos") / "train"
    make_photo_tree(root, num_images=24, num_classes=3, seed=0)
    return root


@pytest.fixture(autouse=True, scope="session")
def own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keep locks and sidecars of read-only folders out of the user's cache folder."""
    folder = tmp_path_factory.mktemp("cache")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    return folder


@pytest.fixture(autouse=True)
def own_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo `warn_of_copies`, which tests call that open the work of a worker in this process."""
    monkeypatch.setattr(held_generators, "_warns", False)


@pytest.fixture(autouse=True)
def zygotes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start zygotes as copies of a process that has imported torch, unless the test needs new interpreters."""
    if request.node.get_closest_marker("new_interpreters"):
        stop_template()
    elif IS_SUPPORTED and request.node.get_closest_marker("processes"):
        monkeypatch.setattr(launch, "subprocess", subprocess_with_template())


def pytest_xdist_auto_num_workers() -> int:
    """Run three tests on two cores at a time, since many of them mostly wait for processes."""
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return num_cores + num_cores // 2


def pytest_configure(config: pytest.Config) -> None:
    """Set up the interpreter for the tests.

    - Silence the warning about a missing native decoder in commands under test; pyproject.toml does so for the tests.
    - Report what the tests cost.
    - Let only tests that are marked `processes` start processes.
    - Register the late device as torch's accelerator if MPLOAD_TEST_DEVICE says so.
    - Handle Ctrl-C even if a shell has started the tests in the background and made them ignore it: commands under test
      would inherit that.
    """
    os.environ.setdefault("PYTHONWARNINGS", "ignore:JPEGs are decoded by simplejpeg")
    config.pluginmanager.register(CpuReport())
    sys.addaudithook(refuse_processes)
    if os.environ.get("MPLOAD_TEST_DEVICE") == "late":
        from tests.support.late_device import install

        install()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Exclude tests that are slow, need a quiet machine or need an accelerator from `-m "not processes"` too.

    Slow tests have more time, unless they say how much: on a machine with other work, some take minutes.
    """
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(600))
        if any(item.get_closest_marker(name) for name in ("slow", "quiet", "gpu")):
            item.add_marker("processes")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Record the running test if it may not start processes."""
    if not item.get_closest_marker("processes"):
        unmarked.append(item.nodeid)
    try:
        return (yield)
    finally:
        unmarked.clear()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked `gpu` if there is no accelerator, or fail them if MPLOAD_REQUIRE_GPU=1 requires one."""
    if item.get_closest_marker("gpu") is None:
        return
    import torch

    if torch.accelerator.is_available():
        return
    if os.environ.get("MPLOAD_REQUIRE_GPU") == "1":
        pytest.fail("MPLOAD_REQUIRE_GPU=1, but torch finds no accelerator", pytrace=False)
    pytest.skip("no accelerator")
