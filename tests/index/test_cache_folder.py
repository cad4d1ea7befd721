"""Users without a home directory: mpload's files go to a private folder for temporary ones, and only if needed."""

import os
import pwd
import stat
import tempfile
from pathlib import Path

import pytest

from mpload import open_index
from mpload.errors import SidecarError, StorageError
from mpload.index.cache_folder import cache_folder
from mpload.index.index import sidecar_of

LINES = "#mpload 1\n#columns name:str label:int\na\t0\nb\t1\n"


@pytest.fixture(params=["", None], ids=["HOME is empty", "HOME is unset"])
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """Take the home directory away, and return the path of the private folder."""

    def unknown(user: int) -> None:
        raise KeyError(user)

    monkeypatch.delenv("XDG_CACHE_HOME")
    if request.param is None:
        monkeypatch.delenv("HOME", raising=False)
        monkeypatch.setattr(pwd, "getpwuid", unknown)
    else:
        monkeypatch.setenv("HOME", request.param)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return tmp_path / "temporary" / f"mpload-{os.geteuid()}"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "index").mkdir()
    text = tmp_path / "index" / "i.txt"
    text.write_text(LINES)
    return text


def test_an_index_is_opened_and_its_sidecar_is_beside_it(private: Path, text: Path) -> None:
    assert open_index(text).labels[:].tolist() == [0, 1]
    assert Path(f"{text}.mpx").is_file()
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


def test_a_sidecar_that_cannot_be_beside_the_text_is_in_a_private_folder(private: Path, text: Path) -> None:
    Path(f"{text}.mpx").mkdir()
    assert sidecar_of(open_index(text)).path.parent == private / "sidecars"


def test_a_folder_that_is_not_private_is_not_used_and_not_needed(private: Path, text: Path) -> None:
    private.mkdir()
    private.chmod(0o755)
    assert cache_folder() is None
    assert open_index(text).labels[:].tolist() == [0, 1]
    Path(f"{text}.mpx").unlink()
    Path(f"{text}.mpx").mkdir()
    with pytest.raises(SidecarError, match="XDG_CACHE_HOME"):
        open_index(text)
    with pytest.raises(StorageError, match=r"http://host/i\.txt: cannot be copied .* no home directory"):
        open_index("http://host/i.txt")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("is_link", [False, True])
def test_a_folder_that_another_user_has_made_is_not_used(private: Path, tmp_path: Path, *, is_link: bool) -> None:
    (tmp_path / "own").mkdir(mode=0o700)
    if is_link:
        private.symlink_to(tmp_path / "own")
    else:
        private.mkdir(mode=0o700)
        os.chown(private, 12_345, 12_345)
    assert cache_folder() is None
    os.environ["XDG_CACHE_HOME"] = str(tmp_path)
    assert cache_folder() == tmp_path / "mpload"
