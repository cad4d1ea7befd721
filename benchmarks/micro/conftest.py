"""What the micro-benchmarks read: photographs, and an index of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mpload import Index, open_index
from mpload.cli.photos import make_photos

NUM_PHOTOS = 16
NUM_LINES = 1 << 16


@pytest.fixture(autouse=True, scope="session")
def own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep locks out of the user's cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 16 photographs of five classes, mostly of 500 x 375 pixels and 40 kB."""
    folder = tmp_path_factory.mktemp("photos")
    make_photos(folder, num_images=NUM_PHOTOS, seed=0, progress=lambda _: None)
    return folder


@pytest.fixture(scope="session")
def photo(photos: Path) -> bytes:
    """One of the photographs: a JPEG, 353 pixels high and 500 wide."""
    return (photos / "desert/000000.jpg").read_bytes()


@pytest.fixture(scope="session")
def photo_index(photos: Path) -> Index:
    """An index in which each photograph occurs 1024 times."""
    path = photos.with_suffix(".txt")
    files = sorted(photos.glob("*/*.jpg"))
    lines = "".join(f"{file.relative_to(photos)}\t{number}\n" for number, file in enumerate(files))
    path.write_text(f"#mpload 1\n#root {photos}\n#columns image:path label:int\n" + lines * 1024)
    return open_index(path)


@pytest.fixture(scope="session")
def line_index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """An index of 65,536 lines of 100 bytes, whose paths lead nowhere."""
    path = tmp_path_factory.mktemp("lines") / "lines.txt"
    text = "".join(f"{number:08d}/{'x' * 82}.jpg\t{number % 1000:03d}\n" for number in range(NUM_LINES))
    path.write_text("#mpload 1\n#columns image:path label:int\n" + text)
    return open_index(path)
