"""A cache in a folder that others may write to: files that they plant are not overwritten, waited for or used."""

import fcntl
import os
import shutil
import socket
import stat
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from mpload import MPDataset, PartialCache, RawBytes, Topology
from mpload.cli.cache import clear, info, verify
from mpload.errors import MploadWarning, StorageError
from mpload.samples.cache.folder import caches_in
from mpload.samples.cache.opened import OpenCache
from tests.support.batches import numbers_index
from tests.support.programs import cache_command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="locks and users of Linux")
needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user"
)

NUM_SAMPLES = 200
PRECIOUS = b"precious\n" * 1000
OTHER_USER, THIRD_USER, SHARED_GROUP = 12_345, 12_346, 12_300


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user may enter, unlike `tmp_path`."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def dataset(folder: Path) -> MPDataset:
    cache = PartialCache(folder / "cache", fraction=1.0, max_bytes="8MiB")
    return MPDataset(
        numbers_index(folder, NUM_SAMPLES), decode=RawBytes(), batch_size=8, topology=Topology(), cache=cache
    )


def read_epoch(folder: Path, *, num_epochs: int = 1) -> OpenCache:
    """Read epochs, check every sample, and return the closed cache."""
    opened = dataset(folder)
    for _ in range(num_epochs):
        found = [data for batch in opened for data in batch[0]]
        assert found == [number.to_bytes(8, "little") for number in range(NUM_SAMPLES)]
    assert opened._run.cache is not None
    opened._run.cache.close()
    return opened._run.cache


def plant_link(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def plant_hard_link(path: Path, victim: Path) -> None:
    victim.touch()
    path.hardlink_to(victim)


def plant_pipe(path: Path, _: Path) -> None:
    os.mkfifo(path)


def plant_socket(path: Path, _: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))  # relative, since a socket's address has at most 108 bytes


def plant_folder(path: Path, _: Path) -> None:
    path.mkdir()


PLANTS = [plant_link, plant_hard_link, plant_pipe, plant_socket, plant_folder]
NAMES = ["about.json", "lock", "table", "segment-000001", ".table.unfinished", ".about.json.unfinished"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("is_filled", [False, True])
def test_planted_files_are_neither_written_to_nor_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[Path, Path], None], is_filled: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    inside = read_epoch(tmp_path).folder.path
    for name in NAMES:
        if not is_filled:
            for path in inside.iterdir():
                path.unlink() if not path.is_dir() else path.rmdir()
        victim, missing = tmp_path / "victim", tmp_path / "not-there"
        victim.write_bytes(PRECIOUS)
        for target in (victim, missing):
            (inside / name).unlink(missing_ok=True)
            plant(inside / name, target)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", MploadWarning)
                read_epoch(tmp_path)
                for cache, _ in caches_in(tmp_path / "cache"):
                    with suppress(OSError):
                        cache.open()
                        assert all(map(cache.read, *zip(*cache.places(), strict=True)))
                    cache.close()
            assert victim.read_bytes() == PRECIOUS
            assert not missing.exists() or not missing.stat().st_size
            missing.unlink(missing_ok=True)
            planted = inside / name
            if planted.is_dir():
                planted.rmdir()


@pytest.mark.parametrize("name", ["table", "segment-000001"])
def test_a_cache_recovers_after_a_pipe_replaced_one_of_its_files(tmp_path: Path, name: str) -> None:
    inside = read_epoch(tmp_path).folder.path
    (inside / name).unlink()
    os.mkfifo(inside / name)
    counts = read_epoch(tmp_path, num_epochs=3).counts
    assert counts.hits >= 2 * NUM_SAMPLES


@pytest.mark.processes
def test_a_link_in_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    inside = read_epoch(tmp_path).folder.path
    inside.rename(tmp_path / "elsewhere")
    inside.symlink_to(tmp_path / "elsewhere")
    before = sorted((path.name, path.read_bytes()) for path in (tmp_path / "elsewhere").iterdir())
    with pytest.warns(MploadWarning, match="choose another folder"):
        counts = read_epoch(tmp_path).counts
    assert counts.hits == 0
    for command in ("info", "verify", "clear"):
        assert cache_command(command, tmp_path / "cache")[1].endswith(
            "cache: no caches here. Name the folder given to PartialCache\n"
        )
    assert sorted((path.name, path.read_bytes()) for path in (tmp_path / "elsewhere").iterdir()) == before


@pytest.mark.processes
@pytest.mark.parametrize("about", ['{"format": "mpload-cache-1", "num_samples": Infinity}', "[" * 200_000])
def test_a_folder_with_an_invalid_description_is_not_a_cache(tmp_path: Path, about: str) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "about.json").write_text(about)
    assert cache_command("info", tmp_path)[1].startswith(f"{tmp_path}: no caches here. ")


@pytest.mark.processes
def test_clearing_leaves_the_targets_of_links_unchanged(tmp_path: Path) -> None:
    inside = read_epoch(tmp_path).folder.path
    (tmp_path / "victim").write_bytes(PRECIOUS)
    (inside / "segment-000002").symlink_to(tmp_path / "victim")
    (inside / "segment-000003").hardlink_to(tmp_path / "victim")
    assert cache_command("clear", tmp_path / "cache")[0] == 0
    assert (tmp_path / "victim").read_bytes() == PRECIOUS
    assert [path.name for path in inside.iterdir()] == ["segment-000002"]  # a link is not a file of the cache


def test_a_lock_that_is_never_released_ends_filling_but_not_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpload.samples.cache.folder._LOCK_SECONDS", 0.1)
    inside = read_epoch(tmp_path).folder.path
    with (inside / "lock").open("rb") as held:  # read permission suffices to lock a file
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.warns(MploadWarning, match="another process has held the lock"):
            counts = read_epoch(tmp_path).counts
    assert counts.hits == NUM_SAMPLES


# Users


def as_user(user: int, act: Callable[[], None], *, umask: int = 0o022) -> None:
    """Call `act` as another user of the group, in a process of that user."""
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(SHARED_GROUP)
            os.setuid(user)
            os.umask(umask)
            act()
            os._exit(0)
        except BaseException:  # noqa: BLE001  the forked process must not continue as a test
            traceback.print_exc()
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@needs_root
def test_another_users_folder_inside_a_world_writable_one_is_refused(shared: Path) -> None:
    inside = read_epoch(shared).folder.path
    for path in (inside, *inside.iterdir()):
        os.chown(path, OTHER_USER, SHARED_GROUP)
    (shared / "cache").chmod(0o1777)
    before = {path.name: path.stat().st_mtime_ns for path in inside.iterdir()}
    with pytest.warns(MploadWarning, match=f"belongs to user {OTHER_USER} and is in a folder that every user may"):
        counts = read_epoch(shared).counts
    assert counts.hits == 0
    assert {path.name: path.stat().st_mtime_ns for path in inside.iterdir()} == before


@pytest.mark.processes
@needs_root
def test_commands_name_the_cache_that_a_user_may_not_read_or_delete(shared: Path) -> None:
    inside = read_epoch(shared).folder.path

    def refuses(command: Callable[[Path], None], message: str) -> None:
        with pytest.raises(StorageError, match=rf"{message}: Permission denied\. .* its owner, user 0$"):
            command(shared / "cache")

    as_user(OTHER_USER, partial(refuses, clear, f"^{inside}: the cache cannot be deleted"))
    assert (inside / "table").exists()
    for folder in (inside, shared / "cache"):
        folder.chmod(0o700)
        for command in (info, verify, clear):
            as_user(OTHER_USER, partial(refuses, command, f"^{folder}: cannot be read"))


@needs_root
def test_another_users_link_above_the_folder_is_refused(shared: Path) -> None:
    read_epoch(shared)
    (shared / "cache").rename(shared / "real")
    (shared / "cache").symlink_to("real")
    assert read_epoch(shared).counts.hits == NUM_SAMPLES  # the user's own link is followed
    os.chown(shared / "cache", OTHER_USER, SHARED_GROUP, follow_symlinks=False)
    shared.chmod(0o777)
    with pytest.warns(MploadWarning, match="every user may write to|Permission denied"):
        counts = read_epoch(shared).counts
    assert counts.hits == 0


@needs_root
@pytest.mark.parametrize("name", ["table", "segment-000001"])
def test_another_users_files_in_a_world_writable_folder_are_not_used(shared: Path, name: str) -> None:
    inside = read_epoch(shared).folder.path
    inside.chmod(0o777)
    os.chown(inside / name, OTHER_USER, SHARED_GROUP)
    cache = read_epoch(shared)
    assert cache.counts.hits == 0
    assert stat.S_IMODE((shared / "cache").stat().st_mode) & stat.S_IWOTH == 0  # the folder that the cache itself made


@pytest.mark.processes
@needs_root
def test_users_of_one_group_share_a_cache(shared: Path) -> None:
    numbers_index(shared, NUM_SAMPLES)
    read_epoch(shared)  # makes the sidecar, in a folder that they may not write to
    shutil.rmtree(shared / "cache")
    (shared / "cache").mkdir()
    os.chown(shared / "cache", OTHER_USER, SHARED_GROUP)
    (shared / "cache").chmod(0o2770)

    def fill() -> None:
        cache = dataset(shared)._run.cache
        assert cache is not None
        for number in range(0, NUM_SAMPLES, 2):
            cache.read(number, [f"{NUM_SAMPLES}.bin"], lambda number=number: [bytes([number]) * 8])  # type: ignore[misc]
        assert cache.counts.misses == NUM_SAMPLES // 2
        cache.close()

    def continue_filling() -> None:
        cache = dataset(shared)._run.cache
        assert cache is not None
        for number in range(NUM_SAMPLES):
            data = bytes([number]) * 8
            assert cache.read(number, [f"{NUM_SAMPLES}.bin"], lambda data=data: [data]) == [data]  # type: ignore[misc]
        assert (cache.counts.hits, cache.counts.misses) == (NUM_SAMPLES // 2, NUM_SAMPLES // 2)
        assert len(cache.folder.segments()) == 1
        cache.close()

    def only_read() -> None:
        with pytest.warns(MploadWarning, match="Permission denied"):
            cache = dataset(shared)._run.cache
        assert cache is not None
        assert cache.read(1, [f"{NUM_SAMPLES}.bin"], lambda: [b""]) == [bytes([1]) * 8]

    as_user(OTHER_USER, fill, umask=0o002)
    as_user(THIRD_USER, continue_filling, umask=0o002)
    for path in (shared / "cache").glob("*/*"):
        path.chmod(0o644)
    as_user(THIRD_USER, only_read)
