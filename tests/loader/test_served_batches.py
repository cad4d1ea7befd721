"""Batches whose samples servers make are the same, bit for bit, as those that a loader's own workers make."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
import pytest

from mpload import (
    Buckets,
    ErrorPolicy,
    ImageDecoder,
    MPDataset,
    MPLoader,
    Pad,
    RandomResizedCrop,
    RawBytes,
    Topology,
)
from mpload.errors import MploadWarning, SampleError
from tests.support.batches import ids, numbers, same
from tests.support.collates import drawing
from tests.support.decoders import add_noise, broken
from tests.support.sample_servers import sample_server
from tests.support.typed import comparable, typed, typed_index

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux"),
    pytest.mark.processes,
]


def served(
    dataset: Callable[[], MPDataset[Any]], *, num_servers: int = 1, num_workers: int = 2, epochs: int = 1
) -> list[Any]:
    """Return the batches of epochs whose samples servers make, and check that they make all of them."""
    with ExitStack() as stack:
        servers = [stack.enter_context(sample_server(dataset())) for _ in range(num_servers)]
        urls = [server.url for server in servers]
        loader = stack.enter_context(MPLoader(dataset(), servers=urls, fallback="raise", num_workers=num_workers))
        batches = [comparable(batch) for _ in range(epochs) for batch in loader]
        stats = loader.stats()
        timings = stats.timings
        assert timings.num_served == timings.num_samples > 0
        assert list(stats.servers) == urls
        by_server = stats.servers.values()
        assert sum(each.num_samples for each in by_server) == timings.num_served
        assert sum(each.received_bytes for each in by_server) == timings.served_bytes > 0
        assert [each.num_requests for each in by_server] == [sum(each.latencies.counts) for each in by_server]
        assert not any(each.num_failures for each in by_server)
        assert all(server.num_samples for server in servers)
        return batches


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"decode": RandomResizedCrop(48)},
        {"decode": ImageDecoder()},
        {"decode": RawBytes(as_array=True)},
        {"decode": RandomResizedCrop(48), "transform": add_noise},
        {"decode": ImageDecoder(), "transform": add_noise},
    ],
    ids=["fixed", "ragged", "bytes", "noise", "ragged noise"],
)
def test_images_are_those_of_the_dataset(photos: Path, options: dict[str, Any]) -> None:
    def dataset() -> MPDataset[Any]:
        return MPDataset(photos, **options, batch_size=5, shuffle=True, topology=Topology())

    alone = dataset()
    expected = [comparable(batch) for _ in range(2) for batch in alone]
    assert served(dataset, epochs=2) == expected


@pytest.mark.parametrize("num_servers", [1, 2, 3])
@pytest.mark.parametrize("rank", [0, 1])
def test_any_number_of_servers_serves_any_rank(folder: Path, num_servers: int, rank: int) -> None:
    def dataset() -> MPDataset[Any]:
        return numbers(folder, 200, batch_size=24, tail="ragged", topology=Topology(rank=rank, world_size=2))

    assert served(dataset, num_servers=num_servers) == [comparable(batch) for batch in dataset()]


@pytest.mark.parametrize("collate", [None, drawing, {"sound": Pad(0)}], ids=["stacked", "callable", "padded"])
def test_columns_with_their_own_decoders_and_collate(tmp_path: Path, collate: Any) -> None:
    index = typed_index(tmp_path)
    expected = [comparable(batch) for batch in typed(index, collate=collate)]
    assert served(lambda: typed(index, collate=collate)) == expected


def test_images_have_the_shape_of_their_bucket(tmp_path: Path) -> None:
    rng, lines = np.random.default_rng(0), ["#mpload 1\n#columns image:path number:int width:int height:int\n"]
    for number in range(30):
        height, width = [(60, 130), (90, 100), (150, 70)][number % 3]
        cv2.imwrite(str(tmp_path / f"{number}.jpg"), rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        lines.append(f"{number}.jpg\t{number}\t{width}\t{height}\n")
    index = tmp_path / "images.txt"
    index.write_text("".join(lines))
    buckets = Buckets(by="aspect", shapes=[(32, 64), (48, 48), (64, 32)])

    def dataset() -> MPDataset[Any]:
        options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "tail": "ragged", "topology": Topology()}
        return MPDataset(index, decode=RandomResizedCrop(8), buckets=buckets, **options)

    found = served(dataset)
    assert found == [comparable(batch) for batch in dataset()]


@pytest.mark.slow
def test_batches_larger_than_a_request(folder: Path) -> None:
    def dataset() -> MPDataset[Any]:
        return numbers(folder, 20_000, batch_size=20_000)

    assert served(dataset) == [comparable(batch) for batch in dataset()]


@pytest.mark.parametrize("action", ["skip", "substitute"])
def test_bad_samples_are_handled_as_by_the_dataset_alone(
    folder: Path, tmp_path: Path, action: Literal["skip", "substitute"]
) -> None:
    def dataset(name: str = "of_servers") -> MPDataset[Any]:
        policy = ErrorPolicy(action=action, report=tmp_path / name, max_error_fraction=1)
        made = numbers(folder, 120, batch_size=40, on_error=policy)  # several chunks a batch
        made._run.pipeline.maker.decode = broken
        return made

    with pytest.warns(MploadWarning, match=action):
        expected = ids(dataset("alone"))
    with (
        sample_server(dataset()) as server,
        MPLoader(dataset("served"), servers=[server.url], num_workers=2) as loader,
        pytest.warns(MploadWarning, match=action),
    ):
        assert ids(loader) == expected
    served = (tmp_path / "served").read_text().replace(f"on {server.url}: ", "")
    assert served.splitlines() == (tmp_path / "alone").read_text().splitlines()


def test_error_of_a_sample_is_that_of_the_server(folder: Path) -> None:
    def dataset() -> MPDataset[Any]:
        made = numbers(folder, 60, shuffle=False)
        made._run.pipeline.maker.decode = broken
        return made

    with (
        sample_server(dataset()) as server,
        MPLoader(dataset(), servers=[server.url], num_workers=2) as loader,
        pytest.raises(SampleError, match=r"60.txt:10: sample 7 .*: ValueError: no such number") as caught,
    ):
        list(loader)
    assert isinstance(caught.value.__cause__, ValueError)


def test_run_is_resumed_in_the_middle_of_an_epoch_with_and_without_servers(folder: Path) -> None:
    whole = numbers(folder, 100)
    expected = [ids(whole), ids(whole)]
    with sample_server(numbers(folder, 100)) as server:
        with MPLoader(numbers(folder, 100), servers=[server.url], num_workers=2) as loader:
            batches = iter(loader)
            begun = ids(next(batches) for _ in range(7))
            state = loader.state_dict()
        with MPLoader(numbers(folder, 100), num_workers=1) as without:
            without.load_state_dict(state)
            assert begun + ids(without) == expected[0]
        with MPLoader(numbers(folder, 100), servers=[server.url], num_workers=3) as again:
            again.load_state_dict(state)
            assert begun + ids(again) == expected[0]
            assert ids(again) == expected[1]


def test_epoch_that_is_left_early_leaves_no_answer_to_the_next(folder: Path) -> None:
    expected = numbers(folder, 400, batch_size=16)
    with (
        sample_server(numbers(folder, 400, batch_size=16)) as server,
        MPLoader(numbers(folder, 400, batch_size=16), servers=[server.url], fallback="raise", num_workers=2) as loader,
    ):
        for epoch in range(6):
            loader.set_epoch(epoch)
            expected.set_epoch(epoch)
            batches, right = iter(loader), iter(expected)
            for _ in range(1 + epoch):
                assert same(next(batches), next(right))


@pytest.mark.slow
def test_equal_jobs_ask_the_same_server_for_the_same_samples(folder: Path) -> None:
    def dataset() -> MPDataset[Any]:
        return numbers(folder, 1200, batch_size=48, seed=3)

    num_servers = 3
    with ExitStack() as stack:
        asked: list[dict[bytes, int]] = []  # by job: which server was asked for an answer
        servers = [stack.enter_context(sample_server(dataset())) for _ in range(num_servers)]
        for number, server in enumerate(servers):
            server.answer = lambda _, made, number=number: bool(asked[-1].update({_samples_in(made): number}))
        for _ in range(2):
            asked.append({})
            urls = [server.url for server in servers]
            with MPLoader(dataset(), servers=urls, fallback="raise", num_workers=2) as loader:
                assert ids(loader) == ids(dataset())
        both = asked[0].keys() & asked[1].keys()
        assert len(both) > len(asked[0]) / 2
        num_same = sum(asked[0][each] == asked[1][each] for each in both)
        assert num_same > 0.6 * len(both)  # by chance, a third of them
        assert set(asked[0].values()) == set(range(num_servers))


def _samples_in(answer: bytes) -> bytes:
    """Return an answer without its head, which holds times."""
    return answer[4 + int.from_bytes(answer[:4], "little") :]
