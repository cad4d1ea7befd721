"""Machines that share a cache keep different samples, read each other's, and lose nothing when one of them is gone."""

import asyncio
import os
import time
import warnings
from collections import Counter
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from mpload import PartialCache, RandomResizedCrop, Topology, build_index
from mpload.errors import MploadWarning, StorageError
from mpload.samples.cache.machines import Machines
from mpload.servers.cached import CacheReader, Kept
from tests.support.cache_machines import NUM_FILES, epochs, load_ids, machines
from tests.support.caches import opened, segments
from tests.support.typed import comparable


def owners(num_machines: int, num_samples: int = 3000) -> list[int]:
    urls = tuple(f"http://node{number}:80" for number in range(num_machines))
    found = Machines(urls=urls, own=0, token=None)
    return [found.owner_of(sample_id) for sample_id in range(num_samples)]


@given(num_machines=st.integers(1, 40))
def test_another_machine_takes_its_share_from_the_others_and_moves_nothing_else(num_machines: int) -> None:
    before, after = owners(num_machines), owners(num_machines + 1)
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) <= {num_machines}
    share = 1 / (num_machines + 1)
    assert abs(len(moved) / len(before) - share) < 4 * (share * (1 - share) / len(before)) ** 0.5 + 1e-3


def test_each_kept_sample_has_one_machine(tmp_path: Path) -> None:
    with machines(tmp_path, 3, fraction=0.25) as made:
        caches = [opened(made.dataset(place)) for place in range(3)]
        keepers = Counter(sum(cache.holds(sample_id) for cache in caches) for sample_id in range(NUM_FILES))
    assert set(keepers) == {0, 1}
    assert caches[0].fraction == 0.75
    assert abs(keepers[1] / NUM_FILES - 0.75) < 0.12


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(("num_machines", "fraction"), [(2, 0.5), (3, 0.2)])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_later_epochs_read_only_what_no_machine_keeps(
    tmp_path: Path, num_machines: int, fraction: float, num_workers: int
) -> None:
    with machines(tmp_path, num_machines, fraction=fraction) as made:
        for place in range(num_machines):
            made.start(place)
        jobs = [epochs(made, place, num_workers=num_workers) for place in range(num_machines)]
        kept = [
            sample_id
            for sample_id in range(NUM_FILES)
            if any(opened(made.dataset(place)).holds(sample_id) for place in range(num_machines))
        ]
        for epoch in range(3):
            found: dict[int, bytes] = {}
            for _, load in jobs:
                found.update(load())
            assert found == dict(enumerate(made.source.files))
            reads = dict(made.source.reads)
            made.num_source_reads()
            if epoch == 0:  # a loader may have read the first few samples to learn their form
                assert reads.keys() == set(range(NUM_FILES))
                assert sum(reads.values()) < NUM_FILES + 16
            else:
                extra = reads.keys() & set(kept)  # a late answer is asked for again, at the source
                assert len(extra) < 5
                assert reads.keys() - extra == set(range(NUM_FILES)) - set(kept)
        hits = [loader.stats().metrics()["cache_hits"] for loader, _ in jobs]
        misses = [loader.stats().timings.num_cache_misses for loader, _ in jobs]
        for loader, _ in jobs:
            loader.close()
    assert 2 * len(kept) - 5 < sum(hits) < 2 * len(kept) + 16
    assert min(misses) >= 0
    assert 3 * NUM_FILES <= sum(hits) + sum(misses) < 3 * NUM_FILES + 16


@pytest.mark.processes
def test_a_machine_that_is_gone_costs_a_warning_and_time_until_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_SHORTEST_PAUSE_SECONDS", "_LONGEST_PAUSE_SECONDS", "_QUIET_SECONDS"):
        monkeypatch.setattr(f"mpload.samples.cache.elsewhere.{name}", 0.1)
    with machines(tmp_path, 2) as made:
        loader, load = epochs(made, 0)
        expected = {number: made.source.files[number] for number in load_ids(made)}
        with pytest.warns(
            MploadWarning, match=f"{made.urls[1]}: the cache of this machine is not read: connection refused"
        ):
            assert load() == expected
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # once is enough
            time.sleep(0.3)
            assert load().keys() <= set(range(NUM_FILES))
        made.start(1)
        time.sleep(0.3)
        with pytest.warns(MploadWarning, match="is read again"):
            load()
        made.stop(1)
        with pytest.warns(MploadWarning, match="is not read"):
            load()
        loader.close()


class SlowStorage:
    """Reads files of zeros, each in a while, and counts them. One thread at a time may read."""

    cache_key = ""

    def __init__(self) -> None:
        self.reads: Counter[str] = Counter()

    def read(self, ranges: Any) -> list[bytes]:
        for item in ranges:
            self.reads[item.path] += 1
        time.sleep(0.02)
        return [bytes(100) for _ in ranges]


def test_requests_for_a_sample_at_the_same_time_share_one_read(tmp_path: Path) -> None:
    with machines(tmp_path, 2) as made:
        storage = SlowStorage()
        dataset = made.dataset(0, storage=storage)
        storage.reads.clear()
        own = [sample_id for sample_id in range(NUM_FILES) if opened(dataset).holds(sample_id)][:3]

        async def ask() -> list[Kept | None]:
            reader = CacheReader(dataset._run.pipeline)
            try:
                return await asyncio.gather(*(reader.read(sample_id, 0) for sample_id in own * 20))
            finally:
                reader.close()

        found = asyncio.run(ask())
    assert {None if each is None else bytes(each.data) for each in found} == {bytes(100)}
    assert set(storage.reads.values()) == {1}
    assert len(storage.reads) == 3


class NoStorage:
    """Can read nothing."""

    cache_key = ""

    def read(self, ranges: Any) -> list[bytes]:
        raise StorageError(f"{ranges[0].path}: access is denied")


def test_a_server_that_cannot_read_the_source_says_so_once(tmp_path: Path) -> None:
    with machines(tmp_path, 2) as made:
        dataset = made.dataset(0, storage=NoStorage())
        own = [sample_id for sample_id in range(NUM_FILES) if opened(dataset).holds(sample_id)][:3]

        async def ask() -> tuple[list[Kept | None], int]:
            reader = CacheReader(dataset._run.pipeline)
            try:
                return [await reader.read(sample_id, 0) for sample_id in own], reader.num_failures
            finally:
                reader.close()

        with pytest.warns(
            MploadWarning, match=f"sample {own[0]} cannot be read .* access is denied.* same cred"
        ) as shown:
            assert asyncio.run(ask()) == ([None] * 3, 3)
    assert len(shown) == 1


@pytest.mark.processes
def test_a_forked_child_reads_while_its_parent_reads(tmp_path: Path) -> None:
    with machines(tmp_path, 2) as made, warnings.catch_warnings():
        warnings.simplefilter("ignore", MploadWarning)  # the other machine does not run
        dataset = made.dataset(0, storage=SlowStorage())
        batches = iter(dataset)
        next(batches)
        loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="fork", timeout=60)
        assert len(list(loader)) == len(dataset)


def test_a_full_cache_makes_room_when_machines_share_it(tmp_path: Path) -> None:
    with machines(tmp_path, 2, fraction=None, max_bytes="1MiB", bytes_per_file=10_000) as made:
        alone = made.dataset(0, topology=Topology(), cache=PartialCache(tmp_path / "cache0", max_bytes="1MiB"))
        list(alone)
        assert 0.3 < opened(alone).fraction < 0.7
        opened(alone).close()  # as its process does when it ends
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MploadWarning)
            dataset = made.dataset(0, topology=Topology())
            cache = opened(dataset)
            for _ in range(2):
                list(dataset)
        held = [sample_id for sample_id in range(NUM_FILES) if cache.holds(sample_id)]
        assert sum(map(cache.has, held)) > 0.85 * len(held)


@pytest.mark.processes
def test_a_server_gives_only_its_own_samples_and_only_to_those_who_fit(tmp_path: Path) -> None:
    with machines(tmp_path, 2, token="secret") as made:
        made.start(0, token="secret")
        cache = opened(made.dataset(0))
        key = f"{cache.folder.key:016x}"
        own = next(filter(cache.holds, range(NUM_FILES)))
        others = next(each for each in range(NUM_FILES) if not cache.holds(each))
        connection = HTTPConnection(made.urls[0].removeprefix("http://"), timeout=30)

        def status(path: str, **headers: str) -> int:
            fitting = {"Authorization": "Bearer secret", "Mpload-Machine": "0 of 2"}
            connection.request(
                "GET", f"/v1/cached/{path}", headers={**fitting, **{k.replace("_", "-"): v for k, v in headers.items()}}
            )
            response = connection.getresponse()
            response.read()
            return response.status

        assert status(f"{key}/{own}/0") == 200
        assert status(f"{key}/{others}/0") == 204
        assert status(f"{key}/{NUM_FILES}/0") == status(f"{key}/{own}/1") == 204
        assert status(f"{key}/{own}/0", Authorization="Bearer wrong") == 401
        assert status(f"{key}/{own}/0", Mpload_Machine="1 of 2") == 409
        assert status(f"{key}/{own}/0", Mpload_Machine="0 of 3") == 409
        assert status(f"{'0' * 16}/{own}/0") == 409
        assert status(f"{key}/-1/0") == status(f"{key}/x/0") == status(f"{key}/{'9' * 19}/0") == 404
        connection.request("GET", "/metrics")
        metrics = connection.getresponse().read().decode()
        assert "mpload_server_cache_misses_total 1\n" in metrics
        connection.close()


@pytest.mark.processes
def test_resized_images_are_the_same_from_any_machine(tmp_path: Path, photo_tree: Path) -> None:
    index = build_index(photo_tree, tmp_path / "photos.txt")
    with machines(tmp_path, 2, what="resized", fraction=0.5, check_source=False) as made:
        (tmp_path / "index.txt").unlink()
        os.link(index, tmp_path / "index.txt")
        options: dict[str, Any] = {"decode": RandomResizedCrop(64)}
        alone = PartialCache(tmp_path / "alone", what="resized", fraction=1.0)
        expected = [comparable(batch) for batch in made.dataset(0, **options, cache=alone)]
        made_dataset = made.dataset
        made.dataset = lambda place, **more: made_dataset(place, **{**options, **more})  # type: ignore[method-assign]
        with pytest.warns(MploadWarning, match="is not read"):  # read and resized here
            assert [comparable(batch) for batch in made.dataset(0)] == expected
        made.start(1)
        for _ in range(2):
            assert [comparable(batch) for batch in made.dataset(0)] == expected


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the system cannot tell what is in the page cache")
def test_an_entry_is_read_at_once_if_it_is_in_the_page_cache_and_valid(tmp_path: Path) -> None:
    with machines(tmp_path, 2) as made, warnings.catch_warnings():
        warnings.simplefilter("ignore", MploadWarning)  # the other machine does not run
        dataset = made.dataset(0, topology=Topology())
        cache, files = opened(dataset), made.source.files
        own = [sample_id for sample_id in range(NUM_FILES) if cache.holds(sample_id)]
        assert {cache.read_at_once(sample_id) for sample_id in range(NUM_FILES)} == {None}
        list(dataset)
        found = [cache.read_at_once(sample_id) for sample_id in own]
        assert [None if each is None else bytes(each) for each in found] == [files[sample_id] for sample_id in own]
        for path in segments(cache):
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        found = [cache.read_at_once(sample_id) for sample_id in own]
        assert all(each is None or bytes(each) == files[number] for number, each in zip(own, found, strict=True))
        for path in segments(cache):
            path.write_bytes(bytes(path.stat().st_size))
        assert {cache.read_at_once(sample_id) for sample_id in own} == {None}
