"""The samples that a server sends are, bit for bit, those of the dataset, however their fields and failures look."""

import os
import re
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mpload import (
    Buckets,
    ErrorPolicy,
    ImageDecoder,
    MPDataset,
    RandomResizedCrop,
    RawBytes,
    Topology,
    build_index,
)
from mpload.errors import MploadWarning, SampleError, TooManyBadSamples
from mpload.transport.batches import PoolOptions
from tests.support.batches import flat, ids, numbers
from tests.support.decoders import add_noise, broken
from tests.support.photos import photo
from tests.support.running_servers import asked, asking, running_server, wanted, worker_pids
from tests.support.typed import comparable, typed, typed_index
from tests.support.web_faults import web_server

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux"),
    pytest.mark.processes,
]


def served(dataset: Callable[[], MPDataset[Any]], *, epochs: int = 1, **options: Any) -> list[Any]:
    """Return the batches of epochs whose samples a server makes."""
    with asked(dataset, **options) as asker:
        return [comparable(batch) for _ in range(epochs) for batch in asker.batches()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"decode": RandomResizedCrop(48)},
        {"decode": ImageDecoder()},
        {"decode": RawBytes()},
        {"decode": ImageDecoder(), "transform": add_noise},
    ],
    ids=["fixed", "ragged", "bytes", "noise"],
)
def test_images_are_those_of_the_dataset(photos: Path, options: dict[str, Any]) -> None:
    def dataset() -> MPDataset[Any]:
        return MPDataset(photos, **options, batch_size=5, shuffle=True, topology=Topology())

    alone = dataset()
    expected = [comparable(batch) for _ in range(2) for batch in alone]
    assert served(dataset, epochs=2) == expected


def test_columns_of_all_types_are_those_of_the_dataset(tmp_path: Path) -> None:
    index = typed_index(tmp_path)

    def dataset() -> MPDataset[Any]:
        return typed(index, batch_size=4, topology=Topology())

    assert served(dataset) == [comparable(batch) for batch in dataset()]


def test_samples_of_buckets_have_the_shape_of_their_bucket(tmp_path: Path, photos: Path) -> None:
    sized = build_index(photos.with_name("train"), tmp_path / "sized.txt", with_image_sizes=True)

    def dataset() -> MPDataset[Any]:
        buckets = Buckets(by="aspect", shapes=[(32, 64), (48, 48), (64, 32)])
        return MPDataset(sized, decode=RandomResizedCrop(48), buckets=buckets, batch_size=4, topology=Topology())

    expected = [comparable(batch) for batch in dataset()]
    assert len({str(batch[0][1]) for batch in expected}) > 1
    assert served(dataset) == expected


def test_samples_drawn_again_are_those_of_the_dataset(photos: Path) -> None:
    def dataset() -> MPDataset[Any]:
        return MPDataset(
            photos, decode=RandomResizedCrop(32), batch_size=5, epoch_samples=60, shuffle=True, topology=Topology()
        )

    expected = [comparable(batch) for batch in dataset()]
    assert len({batch[0][3] for batch in expected}) == 12
    assert served(dataset) == expected


@pytest.mark.parametrize("action", ["skip", "substitute"])
def test_bad_samples_are_left_out_or_substituted_as_by_the_dataset(tmp_path: Path, action: Any) -> None:
    def dataset() -> MPDataset[Any]:
        policy = ErrorPolicy(action=action, report=tmp_path / "report.jsonl", max_error_fraction=1)
        made = numbers(tmp_path, 60, on_error=policy)
        made._run.pipeline.maker.decode = broken
        return made

    with pytest.warns(MploadWarning):
        expected = ids(dataset())
    with asked(dataset) as asker, pytest.warns(MploadWarning):
        assert ids(asker.batches()) == expected
    lines = (tmp_path / "report.jsonl").read_text().splitlines()
    assert len(lines) % 2 == 0
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of JPEGs, which are decoded many at a time, of PNGs, which are not, and of files that are no image."""
    folder = tmp_path_factory.mktemp("mixed")
    rng = np.random.default_rng(0)
    for number in range(60):
        path = folder / f"{number:02d}.jpg"
        Image.fromarray(photo(64, 64, rng)).save(path, "PNG" if number % 4 == 1 else "JPEG")
        if number % 10 == 3:
            path.write_bytes(b"no image")
    return folder


@pytest.mark.parametrize("action", ["raise", "skip", "substitute"])
@pytest.mark.parametrize("is_remote", [False, True])
def test_samples_that_are_not_decoded_in_bulk_are_those_of_the_dataset(
    mixed: Path, tmp_path: Path, action: Any, is_remote: bool
) -> None:
    with web_server(mixed, "slow", bad="none") if is_remote else nullcontext() as server:
        root, lines = mixed if server is None else server.url, [f"{number:02d}.jpg\t{number}" for number in range(60)]
        index = tmp_path / "index.txt"
        index.write_text("\n".join(["#mpload 1", f"#root {root}", "#columns image:path label:int", *lines, ""]))

        def dataset() -> MPDataset[Any]:
            policy = ErrorPolicy(action=action, report=tmp_path / "report.jsonl", max_error_fraction=1)
            return MPDataset(
                index, decode=RandomResizedCrop(32), batch_size=20, on_error=policy, shuffle=True, topology=Topology()
            )

        with warnings.catch_warnings(), asked(dataset, num_workers=2) as asker:
            warnings.simplefilter("ignore", MploadWarning)
            if action == "raise":
                with pytest.raises(SampleError, match="no image") as caught:
                    list(dataset())
                with pytest.raises(SampleError, match=re.escape(str(caught.value))):
                    list(asker.batches())
            else:
                assert list(map(comparable, asker.batches())) == list(map(comparable, dataset()))


def test_too_many_bad_samples_are_counted_by_the_loader(tmp_path: Path) -> None:
    def dataset(**policy: Any) -> MPDataset[Any]:
        made = numbers(tmp_path, 60, on_error=ErrorPolicy(action="skip", report=tmp_path / "report.jsonl", **policy))
        made._run.pipeline.maker.decode = broken
        return made

    with running_server(dataset(max_error_fraction=0)) as url:
        with asking(dataset(max_error_fraction=1), url) as asker, pytest.warns(MploadWarning):
            assert len(list(asker.batches())) == 15
        with (
            asking(dataset(max_error_fraction=0), url) as asker,
            pytest.warns(MploadWarning),
            pytest.raises(TooManyBadSamples),
        ):
            list(asker.batches())


def test_an_error_arrives_with_its_sample_cause_and_traceback(tmp_path: Path) -> None:
    def dataset() -> MPDataset[Any]:
        made = numbers(tmp_path, 60, shuffle=False)
        made._run.pipeline.maker.decode = broken
        return made

    cause = "sample 7 .*: ValueError: no such number"
    with asked(dataset) as asker, pytest.raises(SampleError, match=cause) as caught:
        list(asker.batches())
    assert isinstance(caught.value.__cause__, ValueError)
    assert 'raise ValueError("no such number")' in str(caught.value.__cause__.__cause__)


def _dies_at_41(data: bytes) -> Any:
    number = np.frombuffer(data, np.int64)
    if number[0] == 41:
        os.kill(os.getpid(), signal.SIGSEGV)
    return number


@pytest.mark.slow
@pytest.mark.parametrize(("action", "size"), [("raise", 0), ("skip", 3), ("substitute", 4)])
def test_a_sample_that_kills_workers_is_handled_by_the_error_policy(tmp_path: Path, action: Any, size: int) -> None:
    def dataset() -> MPDataset[Any]:
        policy = ErrorPolicy(action=action, report=tmp_path / "report.jsonl")
        made = numbers(tmp_path, 60, shuffle=False, on_error=policy)
        made._run.pipeline.maker.decode = _dies_at_41
        return made

    with asked(dataset) as asker:
        if action == "raise":
            with pytest.raises(SampleError, match=r"60.txt:44: sample 41 .*: killed its worker \(SIGSEGV\)"):
                list(asker.batches())
            return
        with pytest.warns(MploadWarning, match=action):
            batches = ids(asker.batches())
    assert [len(batch) for batch in batches] == [4] * 10 + [size] + [4] * 4
    assert 41 not in flat(batches)
    assert "killed its worker (SIGSEGV)" in (tmp_path / "report.jsonl").read_text()


def test_killed_workers_lose_and_change_no_sample(tmp_path: Path) -> None:
    def dataset() -> MPDataset[Any]:
        return numbers(tmp_path, 400, batch_size=40, shuffle=True)

    expected = [comparable(batch) for batch in dataset()]
    with asked(dataset, options=PoolOptions(max_restarts=1000)) as asker:
        found = []
        for batch in asker.batches():
            found.append(comparable(batch))
            with suppress(ProcessLookupError):  # the one that was killed before may still be listed
                os.kill(worker_pids()[0], signal.SIGKILL)
        assert found == expected
        assert asker.metric("deaths_total") >= 1
        assert asker.get("/healthz")[0] == 200


def test_an_id_of_a_later_lap_up_to_the_largest_is_its_row(tmp_path: Path) -> None:
    with asked(lambda: numbers(tmp_path, 10)) as asker:
        _, arrays = asker.samples(wanted([3, 13, (1 << 63) - 1]))
        assert arrays["label"].tolist() == [3, 3, ((1 << 63) - 1) % 10]
