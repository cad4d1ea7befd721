"""An installation may lack packages that a job does not use, and the native decoder."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from mpload import build_index

pytestmark = pytest.mark.processes

ALBUMENTATIONS_PACKAGES = ("albumentations", "albucore", "scipy", "simsimd", "stringzilla", "yaml")
OPTIONAL = ("lmdb", "matplotlib", "obstore", "crc32c", "PIL", "torchvision", "pandas")
LACKING = """
import sys

class Lacking:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        lacks = name in {lacking!r} or name.partition(".")[0] in {lacking!r}
        return None if lacks else self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Lacking, sys.meta_path)
"""
TRAIN = """
import sys, torch, mpload
if __name__ == "__main__":
    dataset = mpload.MPDataset(sys.argv[1], decode=mpload.RandomResizedCrop(16), batch_size=8, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(3))
    with mpload.MPLoader(dataset, num_workers=2) as loader:
        for images, labels in loader:
            torch.nn.functional.cross_entropy(model(images.float() / 255), labels).backward()
    print("trained", sum(float(parameter.grad.abs().sum()) > 0 for parameter in model.parameters()))
"""


def run(*arguments: str | Path, lacking: Iterable[str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run Python so that neither it nor the processes that it starts can import some modules."""
    (folder / "site").mkdir(exist_ok=True)
    (folder / "site" / "sitecustomize.py").write_text(LACKING.format(lacking=tuple(lacking)))
    paths = os.pathsep.join([str(folder / "site"), str(Path(__file__).parents[1])])
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": paths, **more},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.fixture(scope="module")
def index(photo_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_index(photo_tree, tmp_path_factory.mktemp("index") / "train.txt")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="workers need Linux")
def test_a_job_that_does_not_use_albumentations_does_not_need_it(index: Path, tmp_path: Path) -> None:
    ran = run("-c", TRAIN, index, lacking=(*ALBUMENTATIONS_PACKAGES, *OPTIONAL), folder=tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "trained 2\n", "")


COMMANDS = """
import json
import sys
from mpload.cli.main import main

for command in json.loads(sys.argv[1]):
    sys.argv[1:] = command
    try:
        main()
    except SystemExit as end:
        assert not end.code, command
"""


def test_commands_that_only_read_and_write_files_need_no_torch(photo_tree: Path, tmp_path: Path) -> None:
    train = tmp_path / "train.txt"
    commands = (
        ("--help",),
        ("index", photo_tree, "-o", train),
        ("inspect", train, "--check"),
        ("pack", train, "-o", tmp_path / "packed", "--resize-short", "32"),
        ("merge", train, train, "-o", tmp_path / "both.txt"),
        ("plan", "--batch-size", "8", "--step-time", "0.1"),
    )
    words = json.dumps([[*map(str, command)] for command in commands])
    lacking = (*ALBUMENTATIONS_PACKAGES, *OPTIONAL, "torch")
    ran = run("-c", COMMANDS, words, lacking=lacking, folder=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_modules_that_these_tests_hide_cannot_be_imported(tmp_path: Path) -> None:
    ran = run("-c", "import mpload; mpload.MPDataset", lacking=["torch"], folder=tmp_path)
    assert "No module named 'torch'" in ran.stderr


SLOW = "JPEGs are decoded by simplejpeg"


def decode_without_native(code: str, *arguments: Path, folder: Path) -> str:
    ran = run("-c", code, *arguments, lacking=["mpload.images._jpeg"], folder=folder, PYTHONWARNINGS="")
    assert ran.returncode == 0, ran.stderr
    return ran.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="workers need Linux")
def test_a_missing_native_decoder_gives_one_warning_and_none_in_workers(index: Path, tmp_path: Path) -> None:
    twice = "import warnings; warnings.simplefilter('always'); import mpload; mpload.RandomResizedCrop(8); "
    errors = decode_without_native(twice + TRAIN, index, folder=tmp_path)
    assert errors.count(SLOW) == 1
    assert "apt install gcc libjpeg62-turbo-dev" in errors


@pytest.mark.parametrize(
    "code",
    ["mpload.ImageDecoder()", "mpload.RandomResizedCrop(8, backend='simplejpeg')", "mpload.jpeg_backend()"],
)
def test_there_is_no_warning_if_the_native_decoder_is_not_used(code: str, tmp_path: Path) -> None:
    assert decode_without_native(f"import mpload; {code}", folder=tmp_path) == ""


@pytest.mark.slow
def test_a_command_warns_of_a_missing_native_decoder_in_one_line(tmp_path: Path) -> None:
    lacking, options = ["mpload.images._jpeg"], ("--images", "8", "--workers", "1", "--batch-size", "4")
    ran = run("-m", "mpload", "demo", *options, lacking=lacking, folder=tmp_path, PYTHONWARNINGS="")
    assert ran.returncode == 0, ran.stderr
    assert re.fullmatch(rf"mpload: warning: {SLOW}.*\n", ran.stderr)


def test_a_pack_that_rewrites_jpegs_tells_how_to_build_the_module_that_it_needs(index: Path, tmp_path: Path) -> None:
    command = ("-m", "mpload", "pack", index, "-o", tmp_path / "packed")
    ran = run(*command, "--jpeg", "baseline", lacking=["mpload.images._transcode"], folder=tmp_path)
    assert ran.returncode != 0
    assert re.fullmatch(r"mpload: JPEGs cannot be rewritten: .*apt install gcc libjpeg62-turbo-dev.*\n", ran.stderr)
    ran = run(*command, lacking=["mpload.images._transcode"], folder=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_slowdown_in_the_warning_agrees_with_the_benchmark_records(tmp_path: Path) -> None:
    errors = decode_without_native("import mpload; mpload.ResizeCenterCrop(8)", folder=tmp_path)
    factors = re.search(r"([\d.]+) to ([\d.]+) times as long, ([\d.]+) to ([\d.]+) times as long with anti", errors)
    assert factors is not None
    records = Path(__file__).parents[1] / "benchmarks" / "records" / "decode.jsonl"
    times: dict[str, dict[int | None, float]] = defaultdict(dict)  # by contestant and size: of the latest record
    for line in records.read_text().splitlines():
        record: dict[str, Any] = json.loads(line)
        times[record["case"]["contestant"]][record["case"].get("short_side")] = record["figures"]["median_us"]
    for (low, high), kind in zip((factors.groups()[:2], factors.groups()[2:]), ("", "_antialias"), strict=True):
        for size, fast in times[f"mpload_native{kind}"].items():
            assert float(low) - 0.05 <= times[f"mpload_simplejpeg{kind}"][size] / fast <= float(high) + 0.05


def test_mpload_can_be_imported_from_a_zip(tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "all"), "zip", Path(__file__).parents[1], "mpload")
    code = "import mpload; print(mpload.Topology(), mpload.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": archive},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(f"Topology(rank=0, world_size=1) {archive}")
