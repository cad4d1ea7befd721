"""MPLoader: the same batches as from the dataset alone, whatever happens to the workers."""

import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import albumentations as A  # type: ignore[import-untyped]  # noqa: N812
import pytest

from mpload import (
    ImageDecoder,
    MPDataset,
    MPLoader,
    MploadWarning,
    RandomResizedCrop,
    RawBytes,
    Topology,
)
from mpload.transport.batches import PoolOptions
from tests.support.batches import ids, numbers, same
from tests.support.decoders import add_noise, slow_number

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux")


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 1, 7])
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
    num_workers = 2 if rank == 2 else 0  # whose last batch differs
    with MPLoader(numbers(folder, 50, **options), num_workers=num_workers) as loader:
        assert ids(loader) == ids(numbers(folder, 50, **options))


NOTHING = (
    r"the epoch has no batch: 7 samples cannot fill one batch of 4 on each of 2 ranks, and tail=\"drop\" "
    r"\(or drop_last=True\) drops the rest\. Use smaller batches or fewer ranks, or tail=\"pad\""
)


@pytest.mark.processes
def test_an_epoch_without_a_batch_is_warned_of(folder: Path) -> None:
    options = {"tail": "drop", "topology": Topology(world_size=2)}
    dataset = numbers(folder, 7, **options)
    with pytest.warns(MploadWarning, match=rf"7\.txt: {NOTHING}"):
        assert not list(dataset)
    for num_workers in (0, 1):
        with MPLoader(dataset, num_workers=num_workers) as loader, pytest.warns(MploadWarning, match=NOTHING):
            assert not list(loader)
        for collate in (None, list):
            in_parts = {"batch_size": 4, "drop_last": True, "collate_fn": collate, "topology": Topology(world_size=2)}
            loader = MPLoader(range(7), num_workers=num_workers, **in_parts)  # type: ignore[call-overload]
            with loader, pytest.warns(MploadWarning, match=rf"range: {NOTHING}"):
                assert not list(loader)
    assert len(list(numbers(folder, 8, **options))) == 1
    begun, resumed = numbers(folder, 12, tail="drop"), numbers(folder, 12, tail="drop", batch_size=9)
    next(iter(begun))
    resumed.load_state_dict(begun.state_dict())
    assert not list(resumed)  # the epoch has had a batch


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
def test_a_consumer_that_frees_its_batches_gets_views_and_not_copies(folder: Path) -> None:
    with MPLoader(numbers(folder, 4000, batch_size=16), num_workers=2) as loader:
        for _ in range(2):
            for _batch in loader:
                pass
        assert loader.stats().num_copied_batches == 0


class Killer(threading.Thread):
    """Kills a worker at a random time after each batch, so that even on a busy machine no sample meets many kills."""

    def __init__(self, loader: MPLoader) -> None:
        super().__init__(daemon=True)
        self.loader = loader
        self.chance = random.Random(0)
        self.stop, self.has_batch = threading.Event(), threading.Event()
        self.num_kills = 0

    def run(self) -> None:
        while not self.stop.wait(self.chance.uniform(0.005, 0.05)):
            if not self.has_batch.wait(0.1):
                continue
            self.has_batch.clear()
            pids = [pid for name, pid in self.loader.pids.items() if "worker" in name and pid]
            if pids:
                with suppress(ProcessLookupError):
                    os.kill(self.chance.choice(pids), signal.SIGKILL)
                    self.num_kills += 1

    def watched(self) -> Iterator[Any]:
        for batch in self.loader:
            self.has_batch.set()
            yield batch


@pytest.mark.slow
def test_epochs_are_bit_identical_under_hundreds_of_kills(folder: Path) -> None:
    alone = numbers(folder, 1500)
    expected = [ids(alone) for _ in range(3)]
    dataset = numbers(folder, 1500)
    dataset._run.pipeline.maker.decode = slow_number
    with MPLoader(dataset, num_workers=3, options=PoolOptions(max_restarts=100_000)) as loader:
        killer = Killer(loader)
        killer.start()
        try:
            got = [ids(killer.watched()) for _ in range(3)]
            while loader.stats().num_deaths < 200:
                loader.set_epoch(2)
                assert ids(killer.watched()) == expected[2]
        finally:
            killer.stop.set()
            killer.join()
        assert got == expected
        assert killer.num_kills >= 200
