"""MPLoader: the same batches as from the dataset alone, whatever happens to the workers."""

import gc
import inspect
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import albumentations as A  # type: ignore[import-untyped]  # noqa: N812
import numpy as np
import psutil
import pytest
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from mpload import (
    ErrorAction,
    ErrorPolicy,
    ImageDecoder,
    MPDataset,
    MPLoader,
    RandomResizedCrop,
    RawBytes,
    Topology,
    build_index,
)
from mpload.errors import ArgumentError, MploadWarning, SampleError, WorkerError
from mpload.memory.usage import anonymous_bytes
from mpload.transport.batches import PoolOptions
from tests.support.batches import flat, ids, numbers, same
from tests.support.decoders import add_noise, broken, changing, slow_number
from tests.support.transport_works import is_alive, leaves_nothing, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("numbers")


@pytest.fixture(scope="module")
def photos(photo_tree: Path) -> Path:
    return build_index(photo_tree, photo_tree.with_name("loader.txt"))


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 1, 2, 7])
def test_batches_do_not_depend_on_the_number_of_workers(photos: Path, num_workers: int) -> None:
    def dataset() -> MPDataset:
        return MPDataset(photos, decode=RandomResizedCrop(64), batch_size=5, shuffle=True, topology=Topology())

    alone = dataset()
    expected = [list(alone) for _ in range(2)]
    with MPLoader(dataset(), num_workers=num_workers) as loader:
        assert len(loader) == len(expected[0])
        for epoch in expected:
            assert same(list(loader), epoch)


@pytest.mark.processes
@pytest.mark.parametrize("tail", ["pad", "drop", "ragged"])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_every_tail_and_rank_yields_the_same_batches_as_the_dataset(folder: Path, tail: str, rank: int) -> None:
    options = {"tail": tail, "topology": Topology(rank=rank, world_size=3), "batch_size": 8}
    with MPLoader(numbers(folder, 50, **options), num_workers=2) as loader:
        assert ids(loader) == ids(numbers(folder, 50, **options))


PIPELINES: list[dict[str, Any]] = [
    {"decode": ImageDecoder()},
    {"decode": RawBytes()},
    {"decode": RawBytes(as_array=True)},
    {"decode": RandomResizedCrop(48), "transform": add_noise},
    {"decode": RandomResizedCrop(48), "transform": A.Compose([A.ColorJitter(p=1), A.Normalize()])},
    {"decode": ImageDecoder(), "transform": lambda image: image[:40, :40]},
]


@pytest.mark.processes
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_the_results_of_any_pipeline_arrive_unchanged(photos: Path, pipeline: dict[str, Any]) -> None:
    def dataset() -> MPDataset:
        return MPDataset(photos, batch_size=5, shuffle=True, tail="ragged", topology=Topology(), **pipeline)

    with MPLoader(dataset(), num_workers=2) as loader:
        assert same(list(loader), list(dataset()))


@pytest.mark.processes
def test_text_and_several_file_columns_arrive_unchanged(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"abcdefgh")
    lines = "".join(f"{i}+1@data\t{i % 3}+2@data\tcaption \u00e4\u00df {i}\t{i / 2}\n" for i in range(6))
    (tmp_path / "t.txt").write_text("#mpload 1\n#columns a:span b:span text:str weight:float\n" + lines)

    def dataset() -> MPDataset:
        return MPDataset(tmp_path / "t.txt", decode=RawBytes(), batch_size=4, topology=Topology())

    with MPLoader(dataset(), num_workers=2) as loader:
        batches = list(loader)
    assert same(batches, list(dataset()))
    assert batches[0][2][1] == "caption \u00e4\u00df 1"


@pytest.mark.processes
def test_a_hoarding_consumer_never_sees_a_batch_change(folder: Path) -> None:
    expected = ids(numbers(folder, 4000, batch_size=16))
    with MPLoader(numbers(folder, 4000, batch_size=16), num_workers=2) as loader:
        held = list(loader)
        assert loader.stats().num_copied_batches > 0
        assert ids(held) == expected
        ids(loader)
    assert ids(held) == expected


@pytest.mark.processes
def test_states_count_received_batches_and_resume_with_any_number_of_workers(folder: Path) -> None:
    whole = numbers(folder, 200)
    whole.set_epoch(1)
    expected = ids(whole)
    with MPLoader(numbers(folder, 200), num_workers=2) as loader:
        ids(loader)
        iterator = iter(loader)
        received = [ids([next(iterator)])[0] for _ in range(9)]
        pool = loader._pool
        assert pool is not None

        def is_ahead() -> bool:
            pool.wait()
            return loader.stats().num_samples > 36

        assert wait_until(is_ahead)
        state = loader.state_dict()
        assert state["position"] == 36
    for num_workers in (0, 3):
        with MPLoader(numbers(folder, 200), num_workers=num_workers) as resumed:
            resumed.load_state_dict(state)
            assert received + ids(resumed) == expected
            assert resumed.state_dict()["epoch"] == 2
    alone = numbers(folder, 200)
    alone.load_state_dict(state)
    assert received + ids(alone) == expected


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_state_taken_before_the_first_batch_of_an_iteration_is_at_the_start_of_its_epoch(
    folder: Path, num_workers: int
) -> None:
    with MPLoader(numbers(folder, 50, batch_size=8), num_workers=num_workers) as loader:
        for epoch in range(1, 3):
            list(loader)
            batches = iter(loader)
            assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (2 * epoch - 1, 0)
            next(batches)
            assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (2 * epoch - 1, 8)


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 1])
def test_two_loaders_of_one_dataset_have_separate_epochs_and_states(folder: Path, num_workers: int) -> None:
    dataset = numbers(folder, 50)
    with MPLoader(dataset, num_workers=num_workers) as one, MPLoader(dataset, num_workers=num_workers) as other:
        batches = iter(one), iter(other)
        received = [ids(itertools.islice(each, num)) for each, num in zip(batches, (3, 5), strict=True)]
        for epoch, loader in enumerate((one, other)):
            resumed, whole = numbers(folder, 50), numbers(folder, 50)
            whole.set_epoch(epoch)
            resumed.load_state_dict(loader.state_dict())
            assert received[epoch] + ids(resumed) == ids(whole)


@pytest.mark.processes
def test_a_new_iteration_ends_the_old_one(folder: Path) -> None:
    with MPLoader(numbers(folder, 200), num_workers=2) as loader:
        old = iter(loader)
        next(old)
        alone = numbers(folder, 200)
        alone.set_epoch(1)
        assert ids(loader) == ids(alone)
        with pytest.raises(ArgumentError, match="was iterated again, or released, since this iteration"):
            next(old)
        new = iter(loader)
        first = ids([next(new)])
        del old  # does not affect the new iteration
        gc.collect()
        assert first + ids(new) == ids(alone)


@pytest.mark.processes
def test_an_abandoned_or_failed_epoch_does_not_affect_the_next_one(folder: Path, tmp_path: Path) -> None:
    dataset, alone = numbers(folder, 200), numbers(folder, 200)
    with MPLoader(dataset, num_workers=2) as loader:
        for _ in loader:
            break
        ids(itertools.islice(alone, 1))
        assert ids(loader) == ids(alone)
    failing = numbers(folder, 60, shuffle=False)
    failing._run.pipeline.decode = broken
    with MPLoader(failing, num_workers=2) as loader:
        for _ in range(2):
            with pytest.raises(SampleError, match="sample 7 "):
                list(loader)


@pytest.mark.processes
def test_a_consumer_that_frees_its_batches_gets_views_and_not_copies(folder: Path) -> None:
    with MPLoader(numbers(folder, 4000, batch_size=16), num_workers=2) as loader:
        for _ in range(2):
            for _batch in loader:
                pass
        assert loader.stats().num_copied_batches == 0


def kill_now_and_then(loader: MPLoader, stop: threading.Event, chance: random.Random) -> int:
    num_kills = 0
    while not stop.wait(chance.uniform(0.005, 0.05)):
        pids = [pid for name, pid in loader.pids.items() if "worker" in name and pid]
        if pids:
            try:
                os.kill(chance.choice(pids), signal.SIGKILL)
            except ProcessLookupError:
                continue
            num_kills += 1
    return num_kills


@pytest.mark.slow
def test_epochs_are_bit_identical_under_hundreds_of_kills(folder: Path) -> None:
    alone = numbers(folder, 1500)
    expected = [ids(alone) for _ in range(3)]
    dataset = numbers(folder, 1500)
    dataset._run.pipeline.decode = slow_number
    stop, num_kills = threading.Event(), []
    with MPLoader(dataset, num_workers=3, options=PoolOptions(max_restarts=100_000)) as loader:
        killer = threading.Thread(
            target=lambda: num_kills.append(kill_now_and_then(loader, stop, random.Random(0))), daemon=True
        )
        killer.start()
        try:
            got = [ids(loader) for _ in range(3)]
            while loader.stats().num_deaths < 200:
                loader.set_epoch(2)
                assert ids(loader) == expected[2]
        finally:
            stop.set()
            killer.join()
        assert got == expected
        assert num_kills[0] >= 200


def dies_at(sample_id: int) -> Any:
    def decode(data: bytes) -> NDArray[np.int64]:
        number = np.frombuffer(data, np.int64)
        if number[0] == sample_id:
            os.kill(os.getpid(), signal.SIGSEGV)
        return number

    return decode


def killing_dataset(folder: Path, **options: Any) -> MPDataset:
    dataset = numbers(folder, 60, shuffle=False, **options)
    dataset._run.pipeline.decode = dies_at(41)
    return dataset


@pytest.mark.processes
def test_a_sample_that_kills_workers_is_handled_by_the_error_policy(folder: Path, tmp_path: Path) -> None:
    with (
        MPLoader(killing_dataset(folder), num_workers=2) as loader,
        pytest.raises(SampleError, match=r"60.txt:44: sample 41 .*: killed its worker \(SIGSEGV\)"),
    ):
        list(loader)
    report = tmp_path / "report.jsonl"
    for action, size in ((ErrorAction.SKIP, 3), (ErrorAction.SUBSTITUTE, 4)):
        policy = ErrorPolicy(action=action, report=report)
        with (
            MPLoader(killing_dataset(folder, on_error=policy), num_workers=2) as loader,
            pytest.warns(MploadWarning, match=action),
        ):
            batches = ids(loader)
        assert [len(batch) for batch in batches] == [4] * 10 + [size] + [4] * 4
        assert 41 not in flat(batches)
        assert "killed its worker (SIGSEGV)" in report.read_text().splitlines()[-1]


@pytest.mark.processes
@pytest.mark.parametrize("action", ["skip", "substitute"])
def test_bad_samples_are_handled_as_by_the_dataset_alone(
    folder: Path, tmp_path: Path, action: Literal["raise", "skip", "substitute"]
) -> None:
    def dataset() -> MPDataset:
        policy = ErrorPolicy(action=action, report=tmp_path / "report.jsonl", max_error_fraction=1)
        made = numbers(folder, 60, on_error=policy)
        made._run.pipeline.decode = broken
        return made

    with pytest.warns(MploadWarning):
        expected = ids(dataset())
    with MPLoader(dataset(), num_workers=2) as loader, pytest.warns(MploadWarning):
        assert ids(loader) == expected


@pytest.mark.processes
def test_an_error_in_the_decoder_is_reported_with_its_sample(folder: Path) -> None:
    dataset = numbers(folder, 60, shuffle=False)
    dataset._run.pipeline.decode = broken
    with (
        MPLoader(dataset, num_workers=2) as loader,
        pytest.raises(SampleError, match=r"60.txt:10: sample 7 .*: ValueError: no such number"),
    ):
        list(loader)


@pytest.mark.processes
def test_a_transform_that_returns_different_shapes_is_refused(photos: Path) -> None:
    dataset = MPDataset(
        photos, decode=RandomResizedCrop(48), transform=changing, batch_size=4, topology=Topology()
    )  # fmt: skip
    with (
        MPLoader(dataset, num_workers=1) as loader,
        pytest.raises(SampleError, match="Make the transform return one shape"),
    ):
        list(loader)


def test_a_pipeline_that_cannot_be_pickled_is_refused_at_construction(folder: Path) -> None:
    lock = threading.Lock()
    dataset = numbers(folder, 60)
    dataset._run.pipeline.decode = lambda data: (lock, np.frombuffer(data, np.int64))[1]
    with pytest.raises(ArgumentError, match=r"workers cannot get a copy of .*lock"):
        MPLoader(dataset, num_workers=1)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"num_workers": -1}, "num_workers must be 'auto' or an integer of at least 0, got -1"),
    ({"num_workers": "many"}, "num_workers must be 'auto' or an integer of at least 0, got 'many'"),
    ({"memory_budget": "lots"}, "'lots' is not a size in bytes"),
    (
        {"num_workers": 2, "memory_budget": "1MiB"},
        r"memory_budget 1.0 MiB is too small: the loader needs at least 32.1 MiB",
    ),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_errors_name_wrong_arguments(photos: Path, options: dict[str, Any], message: str) -> None:
    dataset = MPDataset(photos, decode=RandomResizedCrop(48), batch_size=4, topology=Topology())
    with pytest.raises(ArgumentError, match=message):
        MPLoader(dataset, **options)
    with pytest.raises(ArgumentError, match="pass batch_size= to the MPDataset"):
        MPLoader(MPDataset(photos, topology=Topology()), num_workers=1)


@pytest.mark.processes
def test_the_budget_that_the_error_suggests_is_the_least_that_is_accepted(photos: Path) -> None:
    dataset = MPDataset(photos, decode=RandomResizedCrop(224), batch_size=4, topology=Topology())
    with pytest.raises(
        ArgumentError, match=r"too small: the loader needs .*, for 3 batches of .* and 2 workers of 16\.0 MiB"
    ) as raised:
        MPLoader(dataset, num_workers=2, memory_budget="10MB")
    (suggested,) = re.findall(r'Pass memory_budget="(\d+)MiB" or more', str(raised.value))
    with pytest.raises(ArgumentError, match="too small"):
        MPLoader(dataset, num_workers=2, memory_budget=f"{int(suggested) - 1}MiB")
    with MPLoader(dataset, num_workers=2, memory_budget=f"{suggested}MiB") as loader:
        assert len(list(loader)) == len(dataset)


OF_A_DATA_LOADER = inspect.signature(DataLoader).parameters.keys() - inspect.signature(MPLoader).parameters.keys()


@pytest.mark.parametrize("name", [*sorted(OF_A_DATA_LOADER), "num_worker"])
def test_an_argument_of_a_data_loader_is_refused_with_what_to_use_instead(name: str) -> None:
    unknown: dict[str, Any] = {name: None}
    with pytest.raises(ArgumentError, match=rf" {name}: .*docs/from-dataloader\.md") as raised:
        MPLoader([*range(8)], batch_size=4, num_workers=0, **unknown)
    assert ("there is no such argument" in str(raised.value)) == (name == "num_worker")


@pytest.mark.processes
def test_a_budget_bounds_the_slots(photos: Path) -> None:
    dataset = MPDataset(photos, decode=RandomResizedCrop(224), batch_size=2, topology=Topology())
    with MPLoader(dataset, num_workers=2, memory_budget="34MiB") as loader:
        assert loader._pool is not None
        assert loader._pool.ring.num_slots == 5
        assert len(list(loader)) == len(dataset)


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Check that a test leaves no processes and no descriptors behind."""
    gc.collect()
    with leaves_nothing():
        yield
        gc.collect()


@pytest.mark.processes
@pytest.mark.usefixtures("nothing_left")
def test_closing_collecting_and_releasing_leave_nothing(folder: Path) -> None:
    for _ in range(3):
        loader = MPLoader(numbers(folder, 60), num_workers=2)
        next(iter(loader))
        loader.close()
        loader.close()
        with pytest.raises(ArgumentError, match="the loader is closed"):
            iter(loader)
    forgotten = MPLoader(numbers(folder, 60), num_workers=1)
    batch = next(iter(forgotten))
    del forgotten
    gc.collect()
    assert ids([batch])
    with MPLoader(numbers(folder, 60), num_workers=1) as loader:
        first = ids(loader)
        loader.release()
        assert not loader.pids
        assert ids(loader) != first
    del loader, batch


@pytest.mark.processes
@pytest.mark.usefixtures("nothing_left")
def test_using_a_loader_in_a_forked_child_fails_without_affecting_the_parent(folder: Path) -> None:
    with MPLoader(numbers(folder, 60), num_workers=1) as loader:
        iterator = iter(loader)
        next(iterator)
        pid = os.fork()
        if not pid:
            try:
                next(iterator)
            except WorkerError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert len(ids(iterator)) == len(loader) - 1


PROGRAM = """
import signal, sys
from tests.support.decoders import add_noise, broken, changing, slow_number
from tests.support.batches import numbers
from mpload import MPLoader
from pathlib import Path
loader = MPLoader(numbers(Path(sys.argv[1]), 60), num_workers=3)
iterator = iter(loader)
next(iterator)
try:
    print("ready", flush=True)
    for batch in iterator: signal.pause()
except KeyboardInterrupt:
    print('interrupted', flush=True)
    sys.exit(3)
"""


@pytest.mark.processes
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_all_processes_end_with_the_parent(folder: Path, how: signal.Signals) -> None:
    numbers(folder, 60)
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        pids = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        assert len(pids) >= 2  # the zygote, and workers that have started so far
        process.send_signal(how)
        out, _ = process.communicate(timeout=60)
        assert ("interrupted" in out) == (how is signal.SIGINT)
    assert wait_until(lambda: not any(map(is_alive, pids)))


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_dozens_of_loaders_leak_no_descriptors_and_no_memory(folder: Path) -> None:
    def cycle() -> None:
        with MPLoader(numbers(folder, 8), num_workers=1) as loader:
            assert len(ids(loader)) == 2

    for _ in range(5):
        cycle()
    gc.collect()
    before = anonymous_bytes(os.getpid())
    for _ in range(20):
        cycle()
    gc.collect()
    assert anonymous_bytes(os.getpid()) - before < 4 * 2**20
