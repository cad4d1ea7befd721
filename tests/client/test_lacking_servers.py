"""Servers that lack files, or whose index was changed: their samples are made elsewhere, and errors name them."""

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from mpload import ErrorPolicy
from mpload.errors import MploadWarning, SampleError
from tests.support.batches import ids
from tests.support.programs import run_script
from tests.support.sample_servers import sample_server
from tests.support.served_loaders import NUM_SAMPLES, cut_off, dataset, loading, server_in

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux"),
    pytest.mark.processes,
]
ACTIONS = ["raise", "skip", "substitute"]


@pytest.mark.slow
@pytest.mark.parametrize("num_left", [0, 596])
@pytest.mark.parametrize("on_error", ACTIONS)
@pytest.mark.parametrize("fallback", ["local", "raise"])
def test_samples_that_a_server_cannot_read_are_made_elsewhere(
    folder: Path, tmp_path: Path, fallback: str, on_error: str, num_left: int
) -> None:
    with (
        server_in(tmp_path / "lacks", on_error=on_error) as lacking,
        sample_server(dataset(folder, on_error=on_error)) as good,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        cut_off(tmp_path / "lacks", num_left)
        with loading(folder, lacking.url, good.url, fallback=fallback, on_error=on_error) as loader:
            assert ids(loader) == ids(dataset(folder))
    told = [str(each.message) for each in caught if issubclass(each.category, MploadWarning)]
    assert told
    other = "this machine" if fallback == "local" else good.url
    assert told[0].startswith(f"{lacking.url} cannot read what {other} can: "), told


def test_samples_that_the_only_server_cannot_read_are_made_here(folder: Path, tmp_path: Path) -> None:
    with server_in(tmp_path / "lacks", on_error="skip") as lacking:
        cut_off(tmp_path / "lacks", 0)
        with (
            loading(folder, lacking.url, on_error="skip") as loader,
            pytest.warns(MploadWarning, match="cannot read what this machine can"),
        ):
            assert ids(loader) == ids(dataset(folder))


@pytest.mark.parametrize("fallback", ["local", "raise"])
@pytest.mark.parametrize("on_error", ["skip", "substitute"])
def test_samples_that_nobody_can_read_are_bad_and_no_server_has_failed(
    tmp_path: Path, on_error: Any, fallback: str
) -> None:
    policy = ErrorPolicy(action=on_error, report=tmp_path / "report")
    folders = [tmp_path / name for name in ("here", "a", "b")]
    folders[0].mkdir()
    dataset(folders[0])
    with (
        server_in(folders[1], on_error=policy) as first,
        server_in(folders[2], on_error=policy) as second,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        with loading(folders[0], first.url, second.url, fallback=fallback, on_error=policy) as loader:
            for each in folders:
                cut_off(each, 597)
            found = ids(loader)
            assert loader.stats().timings.num_served >= NUM_SAMPLES
        report = (tmp_path / "report").read_text()
        assert found == ids(dataset(folders[0], on_error=ErrorPolicy(action=on_error, report=tmp_path / "other")))
    assert report.count("600.bin: the span") >= 3
    assert report.count(f"on {first.url}: ") + report.count(f"on {second.url}: ") == report.count("\n")
    told = [str(each.message) for each in caught if issubclass(each.category, MploadWarning)]
    assert not [text for text in told if "a bad sample" not in text]


PROGRAM = """
import sys, warnings
from pathlib import Path
from mpload import ErrorPolicy
from tests.support.batches import ids
from tests.support.served_loaders import cut_off, loading, server_in

if __name__ == "__main__":
    here = Path(sys.argv[1])
    policy = ErrorPolicy(action="skip", report=here / "report")
    with server_in(here / "a", on_error=policy) as first, server_in(here / "b", on_error=policy) as second:
        with loading(here, first.url, second.url, fallback="raise", on_error=policy) as loader:
            cut_off(here / "a", 597)
            cut_off(here / "b", 597)
            warnings.simplefilter("ignore")
            found = {number for batch in ids(loader) for number in batch}
            print(len(found), *(each.num_failures for each in loader.stats().servers.values()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["0", "1"])
def test_answers_are_understood_with_any_hash_seed_of_python(tmp_path: Path, seed: str) -> None:
    done = run_script(PROGRAM, str(tmp_path), PYTHONHASHSEED=seed)
    assert (done.stdout, done.stderr) == (f"{NUM_SAMPLES - 3} 0 0\n", "")


def test_error_of_a_sample_names_the_server(folder: Path, tmp_path: Path) -> None:
    with server_in(tmp_path / "lacks") as lacking:
        cut_off(tmp_path / "lacks", 0)
        with (
            loading(folder, lacking.url, fallback="raise") as loader,
            pytest.raises(SampleError, match=f"^on {lacking.url}: .*600.bin"),
        ):
            ids(loader)


@pytest.mark.slow
@pytest.mark.parametrize("on_error", ACTIONS)
@pytest.mark.parametrize("fallback", ["local", "raise"])
def test_server_whose_index_was_changed_is_left_out(folder: Path, tmp_path: Path, fallback: str, on_error: str) -> None:
    with (
        server_in(tmp_path / "changed", on_error=on_error) as changed,
        sample_server(dataset(folder, on_error=on_error)) as good,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        text = tmp_path / "changed" / f"{NUM_SAMPLES}.txt"
        lines = text.read_text().splitlines(keepends=True)
        text.write_text("".join(lines[:2] + lines[:1:-1]))
        with loading(folder, changed.url, good.url, fallback=fallback, on_error=on_error) as loader:
            assert ids(loader) == ids(dataset(folder))
    told = [str(each.message) for each in caught if issubclass(each.category, MploadWarning)]
    assert told
    assert told[0].startswith(f"{changed.url} needs to be started again: {text}: changed after it was opened"), told
