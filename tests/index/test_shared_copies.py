"""Copies on a local disk that users share: another user's copy is neither believed nor in the way."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpload import open_index
from mpload.errors import MploadWarning, StorageError
from mpload.index.copy_sources import digest_of
from tests.support.programs import run_as_nobody

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user"),
]
OTHER_USER, NOBODY = 12_345, 65_534
HEAD = "#mpload 1\n#columns name:str label:int\n"
OPEN = """
import warnings
os.environ["XDG_CACHE_HOME"] = sys.argv[2]
with warnings.catch_warnings(record=True) as caught:
    index = mpload.open_index(sys.argv[1], local_copy=sys.argv[3])
print(index.labels[:].tolist(), index.path.parents[1], *(each.message for each in caught))
"""


@pytest.fixture
def base() -> Iterator[Path]:
    """A folder that every user may enter, unlike `tmp_path`, with a folder for caches and one for copies."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    for name in ("cache", "copies"):
        (path / name).mkdir()
        (path / name).chmod(0o1777)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def text(base: Path) -> Path:
    text = base / "i.txt"
    text.write_text(f"{HEAD}a\t0\nb\t1\n")
    return text


def opened_by_nobody(text: Path, base: Path) -> str:
    return run_as_nobody(OPEN, text, base / "cache", base / "copies", warm_up=text).rstrip("\n")


def copy_with_swapped_labels(text: Path, copies: Path, *, owner: int) -> Path:
    """Make a copy in which the labels are swapped, and everything else fits. Return its place, `HASH`."""
    copy = open_index(text, local_copy=copies).path
    status = copy.stat()
    copy.write_text(f"{HEAD}a\t1\nb\t0\n")
    os.utime(copy, ns=(status.st_mtime_ns, status.st_mtime_ns))
    copy.with_name("i.txt.mpx").unlink()
    facts = json.loads(copy.with_name("copy.json").read_text())
    copy.with_name("copy.json").write_text(json.dumps({**facts, "digest": digest_of(copy)}))
    open_index(copy)
    place = copy.parents[1]
    give(place, owner)
    return place


def give(place: Path, owner: int) -> None:
    for path in (place, *place.rglob("*")):
        os.chown(path, owner, owner)


def test_the_copy_of_another_user_is_not_believed(base: Path, text: Path) -> None:
    place = copy_with_swapped_labels(text, base / "copies", owner=OTHER_USER)
    for _ in range(2):  # when a copy is made, and when it is found
        assert opened_by_nobody(text, base) == f"[0, 1] {place}-{NOBODY}"
        index = open_index(text, local_copy=base / "copies")
        assert (index.labels[:].tolist(), index.path.parents[1]) == ([0, 1], Path(f"{place}-0"))
    assert place.stat().st_uid == OTHER_USER


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text_owner", "copy_owner"),
    [(0, 0), (OTHER_USER, OTHER_USER), (0, NOBODY)],
    ids=["root", "the owner of the text", "this user"],
)
def test_the_copy_of_somebody_who_is_trusted_is_used_by_all(
    base: Path, text: Path, text_owner: int, copy_owner: int
) -> None:
    place = copy_with_swapped_labels(text, base / "copies", owner=copy_owner)
    os.chown(text, text_owner, text_owner)
    assert opened_by_nobody(text, base) == f"[1, 0] {place}"  # shows that it is used


def test_the_copy_of_a_colleague_is_used_in_a_folder_of_a_group(base: Path, text: Path) -> None:
    (base / "copies").chmod(0o775)
    place = copy_with_swapped_labels(text, base / "copies", owner=OTHER_USER)
    assert opened_by_nobody(text, base) == f"[1, 0] {place}"


def test_a_user_who_may_not_read_or_renew_a_copy_has_another_one(base: Path, text: Path) -> None:
    place = open_index(text, local_copy=base / "copies").path.parents[1]
    place.chmod(0o700)
    assert opened_by_nobody(text, base) == f"[0, 1] {place}-{NOBODY}"
    place.chmod(0o755)
    text.write_text(f"{HEAD}a\t3\nb\t4\nc\t5\n")
    assert opened_by_nobody(text, base) == f"[3, 4, 5] {place}-{NOBODY}"


def test_nobody_else_may_change_a_copy_whatever_the_umask(base: Path, text: Path) -> None:
    before = os.umask(0)
    try:
        copy = open_index(text, local_copy=base / "copies").path
    finally:
        os.umask(before)
    assert not copy.parent.stat().st_mode & 0o002


def test_without_a_folder_for_copies_the_index_is_read_where_it_is_with_a_warning(base: Path, text: Path) -> None:
    copies = base / "copies"
    os.chown(copies, OTHER_USER, OTHER_USER)
    copies.chmod(0o755)
    advice = "The index is read where it is, which may be slow. To have a copy, name another folder as local_copy"
    warning = f"{copies}: a copy can neither be used nor made: Permission denied. {advice}"
    assert opened_by_nobody(text, base) == f"[0, 1] {text.parents[1]} {warning}"
    base.chmod(0o1777)
    with pytest.warns(MploadWarning, match=rf"copies belongs to user {OTHER_USER} and is in a folder that every user"):
        assert open_index(text, local_copy=copies).path == text


def test_a_full_disk_is_an_error_that_does_not_speak_of_the_cache_folder(
    base: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StorageError, match=r"No space left on device\. Free some space") as caught:
        open_index(text, local_copy=base / "copies")
    assert "XDG_CACHE_HOME" not in str(caught.value)
    assert str(caught.value).endswith("Free some space there, or name another folder as local_copy")
