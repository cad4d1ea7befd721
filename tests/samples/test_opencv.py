"""OpenCV is loaded only by jobs that use it, and before any code of the user is called."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from mpload import Mixture, PackOptions, open_index, pack_index
from mpload.images.backends import NATIVE
from mpload.images.decoders import ImageDecoder, NumpyDecoder, RandomResizedCrop, RawBytes
from mpload.index.index import Index
from mpload.loader.mixing import open_mixture
from mpload.samples.opencv_use import may_need_opencv
from tests.support.jpegs import make

NUM_FILES = 6
needs_native = pytest.mark.skipif(NATIVE is None, reason="the native decoder is not built")


def written(folder: Path, ending: str) -> Path:
    """Write images of one kind, and return their index."""
    for number in range(NUM_FILES):
        data = make("420", 60, 80, seed=number)
        if ending != ".jpg":
            image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
            assert image is not None
            data = cv2.imencode(ending, image)[1].tobytes()
        (folder / f"{number}{ending}").write_bytes(data)
    path = folder / f"{ending[1:]}.txt"
    path.write_text("".join(f"{number}{ending}\t{number}\n" for number in range(NUM_FILES)))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `jpg.txt`, an index of JPEGs, and `png.txt`."""
    folder = tmp_path_factory.mktemp("images")
    written(folder, ".jpg")
    written(folder, ".png")
    return folder


def printed(code: str, *arguments: object, path: Path | None = None) -> str:
    """Return what a program prints. It finds modules in the folder `path` first."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*([path] if path else []), *sys.path]))}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment, cwd=path)
    assert not done.returncode, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(("what", "is_used"), [("jpg.txt", NATIVE is None), ("png.txt", True), ("map-style", True)])
def test_a_job_of_jpegs_loads_it_in_no_process_and_others_before_they_start_workers(
    folder: Path, what: str, is_used: bool
) -> None:
    code = """
        import sys
        from pathlib import Path
        import mpload

        def maps_opencv(pid="self"):
            children = "".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")).split()
            inside = (each for child in children for each in maps_opencv(child))
            return ["cv2" in Path(f"/proc/{pid}/maps").read_text(), *inside]

        if sys.argv[1].endswith(".txt"):
            options = {"decode": mpload.RandomResizedCrop(32), "topology": mpload.Topology(), "batch_size": 2}
            dataset = mpload.MPDataset(sys.argv[1], **options)
            assert len(list(dataset)) == 3
            loader = mpload.MPLoader(dataset, num_workers=1)
        else:
            loader = mpload.MPLoader(range(4), num_workers=1)
        for _ in loader:
            found = maps_opencv()
        print("cv2" in sys.modules, len(found), *set(found))
    """
    assert printed(code, folder / what) == f"{is_used} 3 {is_used}"


@pytest.mark.slow
@pytest.mark.processes
def test_code_of_the_user_that_imports_it_is_called_once_with_a_seeded_generator(folder: Path) -> None:
    command = [sys.executable, "-m", "tests.support.opencv_users", str(folder / "jpg.txt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert not done.returncode, done.stderr
    one, other_seed, two, _ = json.loads(done.stdout)
    for job in one:
        numbers, others = np.ravel(one[job]), np.ravel(other_seed[job])
        assert (numbers != others).any(), job
        if job != "stream":  # its samples depend on the number of workers
            assert one[job] == two[job]
    assert [num_asked for _, num_asked in one["items"]] == [[1]] * 4
    assert [batch[:2] for batch in one["collate_fn"]] == [[0, 3], [3, 9]]
    assert len({number for worker, _, number in two["stream"]}) == 6


@needs_native
@pytest.mark.processes
@pytest.mark.parametrize("error", ["ImportError", "AttributeError"])
def test_no_sample_is_skipped_because_it_cannot_be_imported(folder: Path, tmp_path: Path, error: str) -> None:
    (tmp_path / "cv2.py").write_text(f"raise {error}('libGL.so.1: cannot open shared object file')")
    lines = [f"{folder}/{number}.{'png' if number == 3 else 'jpg'}\t{number}\n" for number in range(NUM_FILES)]
    (tmp_path / "mixed.txt").write_text("#mpload 1\n#root /\n#columns image:path label:int\n" + "".join(lines))
    code = """
        import sys
        import mpload

        options = {"decode": mpload.RandomResizedCrop(32), "topology": mpload.Topology(), "on_error": "skip"}
        for num_workers in (0, 1):
            dataset = mpload.MPDataset(sys.argv[1], batch_size=3, **options)
            with mpload.MPLoader(dataset, num_workers=num_workers) as loader:
                try:
                    print(len(list(loader)))
                except mpload.SampleError as error:
                    print(error)
    """
    lines = printed(code, tmp_path / "mixed.txt", path=tmp_path).splitlines()
    assert len(lines) == 2
    for line in lines:
        assert "3.png" in line
        assert "OpenCV is needed, but cannot be imported: libGL.so.1: cannot open shared object file" in line


@pytest.mark.parametrize("decode", [RawBytes(), NumpyDecoder()])
def test_decoders_that_never_use_it_do_not_need_it(folder: Path, decode: Callable[..., object]) -> None:
    assert not may_need_opencv(open_index(folder / "png.txt"), [decode], [0])
    assert may_need_opencv(open_index(folder / "png.txt"), [decode, ImageDecoder()], [0])
    assert may_need_opencv(open_index(folder / "jpg.txt"), [decode, RandomResizedCrop(32, backend="simplejpeg")], [0])


@needs_native
def test_the_first_row_of_each_source_tells_whether_it_is_needed(folder: Path, tmp_path: Path) -> None:
    def is_needed(index: Index) -> bool:
        return may_need_opencv(index, [RandomResizedCrop(32)], [0])

    jpegs, others = open_index(folder / "jpg.txt"), open_index(folder / "png.txt")
    assert (is_needed(jpegs), is_needed(others)) == (False, True)
    assert not is_needed(open_mixture(Mixture({jpegs: 1, folder / "jpg.txt": 1})))
    assert is_needed(open_mixture(Mixture({jpegs: 1, others: 1})))
    for source in (jpegs, others):
        packed = pack_index(source, tmp_path / source.path.stem, PackOptions())
        assert is_needed(open_index(packed)) == (source is others)
        (tmp_path / source.path.stem / "shard-000000.tar").unlink()
        assert is_needed(open_index(packed))  # the sample's own error comes later
    (tmp_path / "unknown.txt").write_text("photo\t0\n")
    unknown = open_index(tmp_path / "unknown.txt")
    assert is_needed(unknown)
    (tmp_path / "unknown.txt").write_text("other\t0\n")
    assert is_needed(unknown)  # an error of a changed index comes later, too
