"""Workers of a map-style dataset that are forked from the process of the loader: as safe as other workers."""

import gc
import os
import resource
import signal
import subprocess
import sys
import threading
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from mpload import MPLoader, SampleError, Topology
from mpload.errors import ArgumentError
from tests.support import forked_program
from tests.support.forked_program import Locked
from tests.support.map_styles import Broken, Drawn, Killing, Tensors, Tuples
from tests.support.whole_batches import Scene, Scenes, as_list

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux"),
    pytest.mark.processes,
]


def forked(dataset: Any, **options: Any) -> MPLoader[Any]:
    return MPLoader(
        dataset,
        **{"batch_size": 5, "tail": "ragged", "num_workers": 2, "multiprocessing_context": "fork", **options},
    )


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.slow
def test_a_plain_process_is_forked_and_one_with_threads_is_not() -> None:
    program = Path(forked_program.__file__)
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""
    *plain, harmless, refused = done.stdout.splitlines()
    assert plain == ["40", "True", "40", "True"]
    assert harmless == "2 None"
    assert "Open files and make locks" in refused
    assert refused.endswith("which needs no copy: this process has other threads (busy)")


@pytest.mark.parametrize("kind", [Tuples, Tensors, Drawn])
@pytest.mark.parametrize("options", [{}, {"collate_fn": as_list}])
def test_forked_workers_make_the_same_batches(kind: Any, options: dict[str, Any]) -> None:
    with (
        forked(kind(), **options, seed=2, shuffle=True, topology=Topology()) as there,
        forked(kind(), **options, seed=2, shuffle=True, topology=Topology(), num_workers=0) as here,
    ):
        assert str(list(there)) == str(list(here))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_may_have_more_descriptors_than_select_takes(method: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip("the limit of descriptors cannot be raised")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with forked(Tuples(), multiprocessing_context=method) as there, forked(Tuples(), num_workers=0) as here:
            assert str(list(there)) == str(list(here))
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_cannot_be_pickled_serves_in_a_fork() -> None:
    held = threading.Lock()

    def collate(samples: list[Any]) -> int:
        with held:
            return len(samples)

    with forked(Locked(), collate_fn=collate) as loader:
        assert list(loader) == [5] * 8
    with pytest.raises(ArgumentError, match="workers cannot get a copy of"):
        forked(Locked(), collate_fn=collate, multiprocessing_context="spawn")


def test_classes_of_the_script_keep_their_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scene, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "Scene", Scene, raising=False)
    with forked(Scenes(), collate_fn=as_list) as loader:
        assert {type(scene) for batch in loader for scene in batch} == {Scene}


class Split(Enum):
    TRAIN = "train"
    TEST = "test"


class BySplit(Tuples):
    def __getitem__(self, split: Any) -> int:
        return int(split is Split.TRAIN)


@pytest.mark.parametrize("name", ["__main__", "__mp_main__"])
def test_classes_of_the_script_that_a_sampler_yields_keep_their_identity(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Split, "__module__", name)
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules[name], "Split", Split, raising=False)
    with forked(BySplit(), sampler=[Split.TRAIN, Split.TEST, Split.TRAIN], tail=None) as loader:
        assert [batch.tolist() for batch in loader] == [[1, 0, 1]]


def test_a_killed_worker_loses_and_repeats_no_sample(tmp_path: Path) -> None:
    with forked(Killing(tmp_path / "once")) as loader:
        assert torch.cat(list(loader)).tolist() == list(range(23))
        assert loader.stats().num_deaths == 1


def test_a_killed_zygote_is_replaced() -> None:
    with forked(Tuples(100)) as loader:
        received = []
        for number, batch in enumerate(loader):
            received += batch[1].tolist()
            if number == 3:
                os.kill(loader.pids["mpload-zygote"], signal.SIGKILL)
        assert received == list(range(100))


def test_processes_close_their_sockets(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)  # warnings are errors, which it prints
    with forked(Tuples()) as loader:
        assert len(list(loader)) == 5
    assert capfd.readouterr().err == ""


def test_an_error_arrives_with_its_cause() -> None:
    with (
        forked(Broken()) as loader,
        pytest.raises(SampleError, match="sample 7 of Broken: KeyError: 'seven'") as raised,
    ):
        list(loader)
    assert isinstance(raised.value, KeyError)


def test_loaders_that_were_forked_from_each_other_are_closed_one_by_one() -> None:
    first = forked(Tuples())
    second = forked(Tuples())  # inherits what belongs to the first
    assert len(list(first)) == len(list(second)) == 5
    pids = {loader: list(loader.pids.values()) for loader in (first, second)}
    first.close()
    assert not any(map(is_alive, pids[first]))
    assert len(list(second)) == 5
    second.close()
    assert not any(map(is_alive, pids[second]))


def test_handlers_of_signals_stay_with_the_training_process(tmp_path: Path) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:
        with forked(Tuples(100)) as loader:
            next(iter(loader))
            os.kill(next(reversed(loader.pids.values())), signal.SIGTERM)  # a worker: the zygote comes first
            for _ in range(100):  # the loader may notice the death only in a later epoch
                assert len(list(loader)) == 20
                if loader.stats().num_deaths:
                    break
            assert loader.stats().num_deaths == 1
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not seen


def test_what_the_training_process_is_done_with_is_not_destroyed_in_a_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loader of PyTorch that waits for the collector would try to stop the workers of its own process."""
    destroyed, real_fork, threshold = tmp_path / "destroyed", os.fork, gc.get_threshold()
    parent = os.getpid()

    class Cycle:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            with destroyed.open("a") as file:
                print(os.getpid(), file=file)

    def fork() -> int:
        if os.getpid() == parent:
            Cycle()
        pid = real_fork()
        if not pid:
            gc.set_threshold(1)  # the fork collects as soon as it may
        return pid

    monkeypatch.setattr(os, "fork", fork)
    with forked(Tuples()) as loader:
        assert len(list(loader)) == 5
    gc.collect()
    assert gc.isenabled()
    assert gc.get_threshold() == threshold
    assert {int(line) for line in destroyed.read_text().split()} == {parent}


def test_libraries_that_have_computed_with_threads_before_do_not_hang_the_workers() -> None:
    def work() -> float:
        image = np.ones((1000, 1000, 3), np.float32)
        return float(cv2.GaussianBlur(cv2.resize(image, (1500, 1500)), (9, 9), 2).sum() + torch.ones(2000, 2000).sum())

    class Computing(Tuples):
        def __getitem__(self, i: int) -> float:
            return work() + float((np.ones((300, 300)) @ np.ones((300, 300))).sum())

    number = cv2.getNumThreads()
    cv2.setNumThreads(4)
    try:
        work()
        with forked(Computing(8), collate_fn=as_list) as loader:
            assert len({value for batch in loader for value in batch}) == 1
        assert cv2.getNumThreads() == 4
    finally:
        cv2.setNumThreads(number)
