"""A published file replaces a regular file, and nothing else: devices, pipes and links survive."""

import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

import pytest

from mpload.errors import ArgumentError, StorageError
from mpload.index.publishing import check_local, check_out, file_at, new_file, new_path


def publish(path: Path, data: bytes = b"new") -> None:
    with new_file(path) as file:
        file.write(data)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("is_chained", [True, False])
def test_a_link_stays_and_the_file_that_it_leads_to_is_replaced(
    tmp_path: Path, *, is_there: bool, is_chained: bool
) -> None:
    target, link = tmp_path / "disk" / "real.txt", tmp_path / "link.txt"
    target.parent.mkdir()
    if is_there:
        target.write_bytes(b"old")
    for name in ("link.txt.mpx", "disk/real.txt.mpx"):
        (tmp_path / name).write_bytes(b"sidecar of the old text")
    link.symlink_to("disk/real.txt")
    if is_chained:
        link, inner = tmp_path / "outer.txt", link
        link.symlink_to(inner)
    leads_to = link.readlink()
    publish(link)
    assert (link.is_symlink(), link.readlink()) == (True, leads_to)
    assert (target.is_symlink(), target.read_bytes()) == (False, b"new")
    assert not target.with_name("real.txt.mpx").exists()
    assert is_chained or not (tmp_path / "link.txt.mpx").exists()
    assert sorted(each.name for each in target.parent.iterdir()) == ["real.txt"]


@pytest.mark.parametrize("kind", ["pipe", "socket", "directory"])
@pytest.mark.parametrize("is_linked", [True, False])
def test_what_is_not_a_regular_file_is_named_and_stays(tmp_path: Path, kind: str, *, is_linked: bool) -> None:
    made = tmp_path / "made"
    if kind == "pipe":
        os.mkfifo(made)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(made))
    else:
        made.mkdir()
    out = tmp_path / "link" if is_linked else made
    if is_linked:
        out.symlink_to(made)
    before = made.stat()
    with pytest.raises(ArgumentError, match=f"is a (named )?{kind}"):
        publish(out)
    with pytest.raises(ArgumentError, match=f"is a (named )?{kind}"):
        check_out(out, [])
    assert (made.stat().st_ino, made.stat().st_mode) == (before.st_ino, before.st_mode)
    assert out.is_symlink() is is_linked


def test_a_device_is_named() -> None:
    with pytest.raises(ArgumentError, match="/dev/null: is a character device, and is not replaced by a file"):
        file_at(Path(os.devnull))  # never publish there: as root, it would be the end of the device if this broke


def test_a_link_to_itself_and_one_to_a_deleted_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ArgumentError, match="cannot be written: Too many levels of symbolic links"):
        publish(tmp_path / "loop")
    with (tmp_path / "gone").open("wb") as file:
        (tmp_path / "gone").unlink()
        with pytest.raises(ArgumentError, match="no name any more"):
            publish(Path(f"/proc/self/fd/{file.fileno()}"))


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o666, 0o200])
@pytest.mark.parametrize("by_path", [True, False])
def test_a_replaced_file_keeps_its_permissions_and_its_group(tmp_path: Path, mode: int, *, by_path: bool) -> None:
    path = tmp_path / "index.txt"
    path.write_bytes(b"old")
    groups = [*os.getgroups(), 65534] if os.geteuid() == 0 else os.getgroups()
    with suppress(OSError):
        os.chown(path, -1, groups[-1])
    path.chmod(mode)
    before = path.stat()
    if by_path:
        with new_path(path) as unfinished:
            unfinished.write_bytes(b"new")
    else:
        publish(path)
    after = path.stat()
    assert (mode_of(path), after.st_uid, after.st_gid) == (mode, before.st_uid, before.st_gid)
    assert after.st_ino != before.st_ino
    path.chmod(0o600)
    assert path.read_bytes() == b"new"


def test_others_cannot_read_a_new_file_before_it_has_the_permissions_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "index.txt"
    path.write_bytes(b"old")
    path.chmod(0o600)
    with new_file(path) as file:
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600


def test_a_group_that_cannot_be_kept_gives_its_permissions_to_no_other_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "index.txt"
    path.write_bytes(b"old")
    path.chmod(0o664)
    if os.geteuid():
        pytest.skip("only root can give a file to a group that it is not in")
    os.chown(path, -1, 65534)

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "chown", refuse)
    publish(path)
    assert mode_of(path) == 0o644


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    publish(tmp_path / "new")
    assert mode_of(tmp_path / "new") == mode_of(tmp_path / "usual")


def test_an_error_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    target, link = tmp_path / "real", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    with pytest.raises(StorageError, match="No space left"), new_file(link):
        raise OSError(28, "No space left on device")
    assert (target.read_bytes(), link.is_symlink()) == (b"old", True)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "real"]


@pytest.mark.parametrize(
    ("out", "shown"),
    [
        ("s3://bucket/a.txt", "s3://bucket/a.txt"),
        (Path("s3://bucket/a.txt"), "s3://bucket/a.txt"),
        (Path("https://me:secret@host/a.txt"), "https://host/a.txt"),
        ("file:///data/a.txt", "file:///data/a.txt"),
    ],
)
def test_a_url_is_no_place_to_write_to(out: str | Path, shown: str) -> None:
    with pytest.raises(
        ArgumentError, match=rf"^{shown}: an index is written to a local file\. Give its path, and upload"
    ):
        check_local(out)


@pytest.mark.parametrize("out", ["a.txt", "/data/a.txt", "a:/b.txt", Path("c:/d.txt"), "data/s3:/x.txt"])
def test_a_path_with_a_colon_is_no_url(out: str | Path) -> None:
    check_local(out)
