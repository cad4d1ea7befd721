"""What other users leave beside an index, in a folder that they may write to, is neither believed nor in the way."""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from mpload import open_index
from mpload.errors import SidecarError
from mpload.index import sidecar_writing
from mpload.index.index import header_of, sidecar_of
from mpload.index.lookup import SidecarFile
from mpload.index.sidecar import rewrite_sidecar
from mpload.index.sidecar_writing import write_sidecar
from mpload.index.trusted import is_trusted
from mpload.ingest.image_sizes import measure_sizes
from mpload.ingest.parts import list_parts
from tests.support.programs import run_as_nobody

needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user"
)
OTHER_USER = 12_345
HEAD = "#mpload 1\n#columns image:path label:int\n"
LINES = "".join(f"d/{number}.jpg\t{number % 2}\n" for number in range(20))
LABELS = [number % 2 for number in range(20)]
SWAPPED = [1 - label for label in LABELS]
OPEN = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
os.environ["XDG_CACHE_HOME"] = sys.argv[2]
index = mpload.open_index(sys.argv[1])
print(index.labels[:].tolist(), index._layout.path.parent)
"""


@pytest.fixture
def base() -> Iterator[Path]:
    """A folder that every user may enter, unlike `tmp_path`, with a cache folder for any user."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    (path / "cache").mkdir()
    (path / "cache").chmod(0o777)
    yield path
    shutil.rmtree(path)


def text_in(folder: Path, *, mode: int) -> Path:
    """Make an index text in a new folder of this mode."""
    folder.mkdir()
    folder.chmod(mode)
    text = folder / "i.txt"
    text.write_text(HEAD + LINES)
    return text


def plant_swapped(path: Path) -> None:
    """Make a sidecar in which all labels are swapped, and everything else fits the text."""
    index = open_index(path.with_suffix(""))
    offsets = np.array(SidecarFile(sidecar_of(index)).columns["offset"])
    rows = {"offset": offsets, "label": np.array(SWAPPED, np.int64)}
    digest = sidecar_of(index).digest
    rewrite_sidecar(index.path, header_of(index), partial(iter, [rows]), num_samples=len(index), digest=digest)


def plant_stale(path: Path) -> None:
    open_index(path.with_suffix(""))
    with path.with_suffix("").open("a") as file:
        file.write("more.jpg\t1\n")


def plant_unreadable(path: Path) -> None:
    open_index(path.with_suffix(""))
    path.chmod(0o600)


PLANTS: dict[str, Callable[[Path], object]] = {
    "swapped labels": plant_swapped,
    "a stale sidecar": plant_stale,
    "an unreadable sidecar": plant_unreadable,
    "an empty file": Path.touch,
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to a file of root": lambda path: path.symlink_to("/etc/passwd"),
}


@pytest.mark.slow
@pytest.mark.processes
@needs_root
@pytest.mark.parametrize("mode", [0o1777, 0o777])
@pytest.mark.parametrize("what", PLANTS)
def test_what_another_user_left_in_a_shared_folder_is_as_good_as_nothing(base: Path, what: str, mode: int) -> None:
    text = text_in(base / "shared", mode=mode)
    warm_up = text_in(base / "other", mode=0o755)
    planted = Path(f"{text}.mpx")
    PLANTS[what](planted)
    os.chown(planted, OTHER_USER, OTHER_USER, follow_symlinks=False)
    labels = LABELS + [1] * (what == "a stale sidecar")
    for _ in range(2):  # when it is built, and when it is found
        out = run_as_nobody(OPEN, text, base / "cache", warm_up=warm_up)
        assert out == f"{labels} {base}/cache/mpload/sidecars\n"
    assert planted.lstat().st_uid == OTHER_USER


@pytest.mark.processes
@needs_root
@pytest.mark.parametrize(
    ("mode", "text_owner", "sidecar_owner"),
    [
        (0o1777, 0, 0),
        (0o1777, OTHER_USER, OTHER_USER),
        (0o1777, OTHER_USER, 0),
        (0o1777, 0, 65534),
        (0o1775, 0, 12_347),
    ],
    ids=["root", "the owner of the text", "root, of another's text", "this user", "a colleague"],
)
def test_a_sidecar_of_somebody_who_is_trusted_is_used_by_all(
    base: Path, mode: int, text_owner: int, sidecar_owner: int
) -> None:
    text = text_in(base / "shared", mode=mode)
    warm_up = text_in(base / "other", mode=0o755)
    plant_swapped(Path(f"{text}.mpx"))  # shows that it is used
    os.chown(text, text_owner, 0)
    os.chown(f"{text}.mpx", sidecar_owner, 0)
    assert run_as_nobody(OPEN, text, base / "cache", warm_up=warm_up) == f"{SWAPPED} {text.parent}\n"


@needs_root
def test_the_owner_of_a_text_replaces_the_sidecar_of_another_user(base: Path) -> None:
    text = text_in(base / "shared", mode=0o777)
    plant_swapped(Path(f"{text}.mpx"))
    os.chown(f"{text}.mpx", OTHER_USER, OTHER_USER)
    index = open_index(text)
    assert index.labels[:].tolist() == LABELS
    assert sidecar_of(index).path.stat().st_uid == 0
    assert sidecar_of(index).path.parent == text.parent


@needs_root
def test_a_local_copy_leaves_the_sidecar_of_another_user(base: Path) -> None:
    for mode, labels in ((0o1777, LABELS), (0o775, SWAPPED)):
        text = text_in(base / f"shared{mode}", mode=mode)
        plant_swapped(Path(f"{text}.mpx"))
        os.chown(f"{text}.mpx", OTHER_USER, OTHER_USER)
        assert open_index(text, local_copy=base / f"copies{mode}").labels[:].tolist() == labels


@pytest.mark.processes
@needs_root
@pytest.mark.parametrize("what", ["a pipe", "a link to a device", "an empty file", "a folder"])
def test_files_of_another_user_do_not_keep_a_list_of_parts_from_being_opened(base: Path, what: str) -> None:
    text = text_in(base / "parts", mode=0o755)
    shared = base / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    listed = list_parts([text, text], shared / "i.txt")
    planted = Path(f"{listed}.mpx")
    planted.unlink(missing_ok=True)
    PLANTS[what](planted)
    os.chown(planted, OTHER_USER, OTHER_USER, follow_symlinks=False)
    code = OPEN.replace("index._layout.path.parent", "len(index)")
    out = run_as_nobody(code, listed, base / "cache", warm_up=text)
    assert out == f"{LABELS + LABELS} 40\n"


@pytest.mark.processes
@needs_root
def test_files_of_another_user_do_not_keep_the_owner_from_rewriting_a_text(base: Path) -> None:
    text = text_in(base / "shared", mode=0o1777)
    plant_swapped(Path(f"{text}.mpx"))
    os.chown(f"{text}.mpx", OTHER_USER, OTHER_USER)
    os.chown(text, 65534, 65534)
    code = f"""
from pathlib import Path
from mpload.index.publishing import new_file
with new_file(Path(sys.argv[1])) as file:
    file.write({(HEAD + LINES).encode()!r})
{OPEN}"""
    out = run_as_nobody(code, text, base / "cache", warm_up=text_in(base / "other", mode=0o755))
    assert out == f"{LABELS} {base}/cache/mpload/sidecars\n"


@pytest.mark.parametrize("what", ["an empty file", "a folder", "a pipe", "a link to a device", "a link to itself"])
def test_in_a_folder_of_ones_own_anything_but_a_folder_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = text_in(tmp_path / "own", mode=0o755)
    PLANTS[what](Path(f"{text}.mpx"))
    index = open_index(text)
    assert index.labels[:].tolist() == LABELS
    assert (sidecar_of(index).path == Path(f"{text}.mpx")) == (what != "a folder")


def test_a_link_to_a_sidecar_is_followed_in_a_folder_of_ones_own(tmp_path: Path) -> None:
    text = text_in(tmp_path / "own", mode=0o755)
    stored = tmp_path / "stored"
    plant_swapped(Path(f"{text}.mpx"))
    Path(f"{text}.mpx").rename(stored)
    Path(f"{text}.mpx").symlink_to(stored)
    assert open_index(text).labels[:].tolist() == SWAPPED
    text.parent.chmod(0o1777)
    assert not is_trusted(Path(f"{text}.mpx"), text)
    assert open_index(text).labels[:].tolist() == LABELS


def test_a_sidecar_is_written_to_the_cache_folder_if_the_disk_of_the_index_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(path: Path, *arguments: object) -> None:
        write_sidecar(path, *arguments)  # type: ignore[arg-type]
        if path.parent.name in full:
            raise OSError(errno.ENOSPC, "No space left on device")

    text = text_in(tmp_path / "full", mode=0o755)
    cache, full = tmp_path / "cache", {"full"}
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr(sidecar_writing, "write_sidecar", write)
    index = open_index(text)
    assert (len(index), index.labels[:].tolist()) == (20, LABELS)
    assert sidecar_of(index).path.is_relative_to(cache)
    assert [path.name for path in text.parent.iterdir()] == ["i.txt"]
    (text.parent / "d").mkdir()
    for number in range(20):
        (text.parent / f"d/{number}.jpg").write_bytes(bytes(number))
    layout = measure_sizes(index)
    assert layout.path.is_relative_to(cache)
    sizes = open_index(text).nbytes
    assert sizes is not None
    assert sizes[:].tolist() == list(range(20))
    full.add("sidecars")
    layout.path.unlink()
    with pytest.raises(
        SidecarError, match=r"cannot be written anywhere \(.*i\.txt\.mpx: No space left.*Free some space"
    ):
        open_index(text)
