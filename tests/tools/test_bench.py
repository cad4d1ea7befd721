"""`mpload bench` as a user sees it: real processes and real images."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpload.errors import ArgumentError, MploadError
from mpload.images.decoders import jpeg_backend
from mpload.index.opening import open_index
from mpload.tools.bench.decoders import CROP, DECODE, Speed, installed_backends, measure_speeds, read_images
from mpload.tools.bench.memory import (
    LOADER_NAMES,
    MemoryCase,
    MemoryResult,
    Outcome,
    all_cases,
    measure_case,
    measure_memory,
    predict_bytes,
)
from mpload.tools.bench.memory_report import memory_tables
from mpload.tools.bench.sample_lists import write_list
from mpload.units import GIB, MIB
from tests.support.photos import make_photo_tree
from tests.support.programs import mpload

NUM_PHOTOS = 12


def write_index(folder: Path) -> Path:
    lines = [f"{path.relative_to(folder)}\t0\n" for path in sorted(folder.rglob("*.*")) if path.suffix != ".txt"]
    index = folder / "all.txt"
    index.write_text("#mpload 1\n#columns image:path label:int\n" + "".join(lines))
    return index


@pytest.fixture
def index(tmp_path: Path) -> Path:
    make_photo_tree(tmp_path, num_images=NUM_PHOTOS, num_classes=2, seed=0)
    return write_index(tmp_path)


@pytest.mark.slow
@pytest.mark.processes
def test_every_decoder_is_measured_in_both_tasks(index: Path) -> None:
    ran = mpload("bench", "decode", index, "--rounds", "1", "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    told = json.loads(ran.stdout)
    assert told["num_images"] == NUM_PHOTOS
    speeds = [Speed(**speed) for speed in told["speeds"]]
    names = list(dict.fromkeys(speed.backend for speed in speeds))
    assert names[:4] == [f"mpload, {jpeg_backend()}", "simplejpeg", "OpenCV", "PIL"]  # imageio may not be installed
    assert [speed.task for speed in speeds] == [DECODE, CROP] * (len(speeds) // 2)
    assert all(speed.failed == 0 and (speed.images_per_second or 0) > 1 for speed in speeds)


def test_all_backends_make_the_same_crop_of_an_image(index: Path) -> None:
    data = read_images(open_index(index), num_images=1, seed=0)[0]
    ours, *others = installed_backends(64)[0]
    expected = ours.crop(data, np.random.default_rng(3)).astype(float)
    assert expected.shape == (64, 64, 3)
    for other in others:
        got = other.crop(data, np.random.default_rng(3))
        assert np.abs(got - expected).mean() < 12, other.name  # some resize with antialiasing, some without
        assert np.abs(got[:, ::-1] - expected).mean() > np.abs(got - expected).mean()


@pytest.mark.processes
def test_an_image_that_cannot_be_decoded_is_counted_as_failed(index: Path, tmp_path: Path) -> None:
    broken = sorted(tmp_path.rglob("*.JPEG"))[3]
    broken.write_bytes(b"\xff\xd8\xff" + bytes(1000))
    ran = mpload("bench", "decode", index, "--rounds", "1", "--images", "100")
    assert ran.returncode == 0, ran.stderr
    assert f"{NUM_PHOTOS} images of" in ran.stdout
    rows = [line.split() for line in ran.stdout.splitlines()[2:]]
    assert {row[0] for row in rows} >= {"mpload,", "simplejpeg", "OpenCV", "PIL"}
    assert all(row[-1] == "1" for row in rows), ran.stdout


def test_a_backend_that_decodes_no_image_has_no_speed(tmp_path: Path) -> None:
    for number in range(2):
        pixels = np.full((40, 40, 3), number * 50, np.uint8)
        (tmp_path / f"{number}.png").write_bytes(cv2.imencode(".png", pixels)[1].tobytes())
    speeds = measure_speeds(
        installed_backends(32)[0],
        read_images(open_index(write_index(tmp_path)), num_images=9, seed=0),
        rounds=2,
        seed=0,
    )
    rates = {speed.backend: (speed.images_per_second, speed.failed) for speed in speeds}
    assert rates.pop("simplejpeg") == (None, 2)
    assert all(rate and failed == 0 for rate, failed in rates.values())


@pytest.mark.slow
def test_files_without_any_image_are_an_error() -> None:
    with pytest.raises(MploadError, match="none of 2 files is an image"):
        measure_speeds(installed_backends(8)[0], [b"no", b"image"], rounds=1, seed=0)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("decode", "empty.txt"), 1, "holds no sample"),
        (("decode", "nowhere.txt"), 1, "nowhere.txt"),
        (("memory", "--samples", "1e4,many"), 2, "--samples '1e4,many': not a list of whole numbers"),
        (("memory", "--workers", "-1"), 2, "num_workers at least 0, got 10000 and -1"),
        (("memory", "--loaders", "lists"), 2, "'lists' is not a loader. Choose from list-fork, list-spawn"),
        (("memory", "--reserve", "much"), 2, "'much' is not a size in bytes"),
    ],
)
def test_wrong_use_is_reported_in_one_clear_line(
    index: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    (tmp_path / "empty.txt").write_text("#mpload 1\n#columns image:path label:int\n")
    ran = mpload("bench", *arguments, cwd=tmp_path)
    assert (ran.returncode, len(ran.stderr.splitlines())) == (code, 1), ran.stderr
    assert message in ran.stderr


def done(case: MemoryCase, peak_pss_bytes: int) -> MemoryResult:
    return MemoryResult(case=case, outcome=Outcome.DONE, peak_pss_bytes=peak_pss_bytes)


@given(st.integers(0, GIB), st.integers(0, 1000), st.lists(st.integers(1, 10**6), min_size=2, max_size=5, unique=True))
def test_memory_that_grows_linearly_with_the_samples_is_predicted(
    base_bytes: int, bytes_per_sample: int, samples: list[int]
) -> None:
    cases = all_cases(["numpy-fork", "list-fork"], samples, [3])
    results = [
        done(case, base_bytes + bytes_per_sample * case.num_samples * (2 if case.loader == "list-fork" else 1))
        for case in cases
    ]
    longer = MemoryCase(loader="numpy-fork", num_samples=10**8, num_workers=3)
    assert predict_bytes(results, longer) == pytest.approx(base_bytes + bytes_per_sample * 10**8, rel=1e-6)


def test_one_length_or_other_cases_predict_nothing() -> None:
    longer = MemoryCase(loader="mpdataset", num_samples=100, num_workers=1)
    results = [done(MemoryCase(loader="mpdataset", num_samples=n, num_workers=w), 5) for n, w in ((1, 1), (2, 2))]
    assert predict_bytes(results, longer) is None


def test_without_workers_fork_and_spawn_are_one_case() -> None:
    cases = all_cases(list(LOADER_NAMES), [10], [0, 1])
    assert [case.loader for case in cases if case.num_workers == 0].count("list-spawn") == 0
    assert len(cases) == 2 * len(LOADER_NAMES) - 1


@pytest.mark.processes
@pytest.mark.parametrize(
    "loaders", [["list-fork", "mploader"], pytest.param(list(LOADER_NAMES), marks=pytest.mark.slow)]
)
def test_every_list_is_read_completely_and_its_memory_is_measured(
    tmp_path_factory: pytest.TempPathFactory, loaders: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("lists")
    temporary = tmp_path_factory.mktemp("t")  # a DataLoader's workers hang if the path of a socket in it is too long
    monkeypatch.setenv("TMPDIR", str(temporary))
    cases = all_cases(loaders, [3000], [2])
    results = list(measure_memory(cases, num_epochs=2, max_seconds=60.0, folder=folder))
    assert [result.case for result in results] == cases
    for result in results:
        assert (result.outcome, result.num_epochs, result.needed_bytes) == (Outcome.DONE, 2, None)
        assert 0 < (result.first_batch_seconds or 0) < 60
        assert 20 * MIB < result.peak_uss_bytes < result.peak_pss_bytes < GIB
        assert max(moment.pss_bytes for moment in result.curve) == result.peak_pss_bytes
    assert list(folder.iterdir()) == list(temporary.iterdir()) == []


def measured(tmp_path: Path, *, max_seconds: float, reserve_bytes: int) -> MemoryResult:
    write_list(tmp_path / "list.txt", 1000)
    open_index(tmp_path / "list.txt")
    case = MemoryCase(loader="list-fork", num_samples=1000, num_workers=1)
    return measure_case(case, tmp_path / "list.txt", num_epochs=1, max_seconds=max_seconds, reserve_bytes=reserve_bytes)


@pytest.mark.processes
def test_a_case_that_exhausts_memory_is_stopped_with_all_its_processes(tmp_path: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    result = measured(tmp_path, max_seconds=60.0, reserve_bytes=1 << 60)
    assert result.outcome is Outcome.OUT_OF_MEMORY
    assert set(psutil.Process().children(recursive=True)) <= before
    assert memory_tables([result])[0].rows[0][-1].startswith("stopped; needs over ")


@pytest.mark.processes
def test_a_case_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    assert measured(tmp_path, max_seconds=0.3, reserve_bytes=0).outcome is Outcome.OUT_OF_TIME


@pytest.mark.slow
def test_a_case_that_does_not_fit_is_skipped_and_its_list_is_not_written(tmp_path: Path) -> None:
    cases = all_cases(["list-fork"], [10_000, 300_000, 10**12], [0])
    *_, last = measure_memory(cases, num_epochs=1, max_seconds=60.0, folder=tmp_path, reserve_bytes=0)
    assert last.outcome is Outcome.NOT_RUN
    assert last.needed_bytes is not None
    assert 50 * 10**12 < last.needed_bytes < 500 * 10**12  # per sample: a tuple, a string and a pointer to an integer
    assert "TiB" in memory_tables([last])[0].rows[0][-1]


@pytest.mark.slow
@pytest.mark.processes
def test_a_failed_case_reports_why(tmp_path: Path) -> None:
    case = MemoryCase(loader="list-fork", num_samples=1, num_workers=0)
    with pytest.raises(MploadError, match="ended with exit code 1: FileNotFoundError"):
        measure_case(case, tmp_path / "none.txt", num_epochs=1, max_seconds=60.0, reserve_bytes=0)


def test_a_list_that_does_not_fit_on_the_disk_is_refused(tmp_path: Path) -> None:
    cases = all_cases(["mpdataset"], [10**14], [0])
    with pytest.raises(MploadError, match="Name another folder with --folder"):
        next(measure_memory(cases, num_epochs=1, max_seconds=60.0, folder=tmp_path, reserve_bytes=0))


def test_a_case_needs_samples() -> None:
    with pytest.raises(ArgumentError, match="num_samples must be at least 1 and num_workers at least 0, got 0 and 0"):
        MemoryCase(loader="list-fork", num_samples=0, num_workers=0)


@pytest.mark.slow
def test_one_command_prints_tables() -> None:
    options = ["--samples", "1e3,2e3", "--workers", "0", "--loaders", "mpdataset", "--epochs", "1"]
    ran = mpload("bench", "memory", *options)
    assert (ran.returncode, ran.stderr) == (0, "")
    rows = [line for line in ran.stdout.splitlines() if line.startswith(LOADER_NAMES["mpdataset"])]
    assert [row.count("MiB") for row in rows] == [2, 2, 0, 0]


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    """A copy of the files that `benchmarks/report.py` reads and writes."""
    root = Path(__file__).parents[2]
    shutil.copytree(root / "benchmarks", tmp_path / "benchmarks", ignore=shutil.ignore_patterns("peers"))
    shutil.copytree(root / "docs", tmp_path / "docs")
    shutil.copy(root / "README.md", tmp_path)
    return tmp_path


def report(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "benchmarks/report.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.slow
@pytest.mark.processes
def test_the_tables_on_the_pages_match_the_records(reports: Path) -> None:
    before: dict[Path, str] = {}
    for name, row_of in (("README.md", "| mpload |"), ("docs/benchmarks.md", f"| {LOADER_NAMES['mploader']} |")):
        page = reports / name
        before[page] = text = page.read_text()
        row = next(line for line in text.splitlines() if line.startswith(row_of) and "iB" in line)
        page.write_text(text.replace(row, row.replace("iB", "B")))
    checked = report(reports, "--check")
    assert checked.returncode == 1
    assert "README.md, docs/benchmarks.md: not what the records say. Run: python benchmarks" in checked.stderr
    assert report(reports).returncode == 0
    assert {page: page.read_text() for page in before} == before
    assert report(reports, "--check").returncode == 0
