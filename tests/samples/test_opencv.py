"""OpenCV is loaded only by jobs that use it."""

import subprocess
import sys
import textwrap
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.support.jpegs import make

pytestmark = pytest.mark.processes

NUM_FILES = 12
BEGIN = """
    import os, sys
    from pathlib import Path
    import numpy as np
    import mpload

    def batches(data, num_workers=1, **options):
        options = {"decode": mpload.RandomResizedCrop(32), "topology": mpload.Topology(), "seed": 3} | options
        with mpload.MPLoader(mpload.MPDataset(data, **options), num_workers=num_workers) as loader:
            yield from loader

    def pids(pid="self"):
        children = Path(f"/proc/{pid}/task").glob("*/children")
        return [pid, *(each for child in children for pid in child.read_text().split() for each in pids(pid))]

    def maps_opencv(pid):
        return "cv2" in Path(f"/proc/{pid}/maps").read_text()
"""


@pytest.fixture(scope="module", params=[".jpg", ".png"])
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of images, all of one kind."""
    folder, ending = tmp_path_factory.mktemp("images"), str(request.param)
    for number in range(NUM_FILES):
        data = make("420", 60, 80, seed=number)
        if ending == ".png":
            image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
            assert image is not None
            data = cv2.imencode(ending, image)[1].tobytes()
        (folder / f"{number}{ending}").write_bytes(data)
    (folder / "train.txt").write_text("".join(f"{number}{ending}\t{number}\n" for number in range(NUM_FILES)))
    return folder / "train.txt"


def printed(code: str, index: Path) -> str:
    """Return what a program prints that begins with `BEGIN` and gets the index."""
    program = textwrap.dedent(BEGIN) + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", program, str(index)], capture_output=True, text=True, timeout=60, check=False
    )
    assert not done.returncode, done.stderr
    return done.stdout.strip()


def test_a_job_of_jpegs_loads_it_in_no_process_and_one_of_others_before_it_starts_workers(index: Path) -> None:
    code = """
        for _ in batches(sys.argv[1], batch_size=4, shuffle=True):
            found = [maps_opencv(pid) for pid in pids()]
        print(len(found), *set(found))
        dataset = mpload.MPDataset(sys.argv[1], decode=mpload.RandomResizedCrop(32), topology=mpload.Topology())
        print("cv2" in sys.modules, len(list(dataset)))
    """
    is_used = index.with_name("0.png").exists()
    assert printed(code, index) == f"3 {is_used}\n{is_used} {NUM_FILES}"


@pytest.mark.parametrize("index", [".jpg"], indirect=True)
def test_a_sample_that_loads_it_gets_one_thread_and_the_numbers_that_it_would_get_later(index: Path) -> None:
    code = """
        def drawn(image):
            import cv2
            return np.array([cv2.randu(np.empty((2, 1)), 0, 1)[0, 0], cv2.getNumThreads()])

        class Dataset:
            def __len__(self):
                return 4

            def __getitem__(self, number):
                return drawn(None)

        found = []
        for num_workers in (1, 2, 3):
            options = dict(decode=mpload.ImageDecoder(), transform=drawn, batch_size=1)
            rows = [batch[0] for batch in batches(sys.argv[1], num_workers, **options)]
            assert "cv2" not in sys.modules
            with mpload.MPLoader(Dataset(), batch_size=1, num_workers=num_workers, seed=3) as loader:
                found.append(np.concatenate([*rows, *loader]))
        assert all((rows == found[0]).all() for rows in found)
        print(len(found[0]), len({row[0] for row in found[0]}), {row[1] for row in found[0]} == {1.0})
    """
    assert printed(code, index) == f"{NUM_FILES + 4} {NUM_FILES} True"  # the numbers depend on seed, epoch and sample
