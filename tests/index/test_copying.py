"""Indexes at URLs: copied once a machine, whole or not at all, and again when they have changed."""

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from mpload import MPDataset, RandomResizedCrop, RawBytes, RemoteStorage, Topology, build_index, list_parts, open_index
from mpload.errors import ArgumentError, IndexNotFoundError, MploadWarning, OutageError, StorageError
from mpload.index.columns import parse_columns
from mpload.index.opening import root_at
from mpload.index.text import Header
from mpload.ingest.merge import merge_indexes
from mpload.samples.row_index import find_row_index, make_row_index
from tests.support.photos import make_photo_tree
from tests.support.programs import mpload
from tests.support.web_faults import web_server

pytestmark = pytest.mark.processes
OPEN = "import mpload, sys; print(mpload.open_index(sys.argv[1]).fingerprint)"
LIMITS = RemoteStorage(request_timeout_seconds=0.5, retry_seconds=1.0)


class Server:
    """A web server in a thread, which counts requests and says which version of a file it has unless `is_terse`."""

    def __init__(self, folder: Path) -> None:
        self.paths: list[str] = []
        self.is_terse = False
        server = self

        class Handler(SimpleHTTPRequestHandler):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args, directory=str(folder))

            def send_header(self, keyword: str, value: str) -> None:
                if keyword == "Last-Modified":
                    status = (folder / self.path.lstrip("/")).stat()
                    keyword, value = "ETag", f'"{status.st_mtime_ns}-{status.st_ino}"'
                    if server.is_terse:
                        return
                super().send_header(keyword, value)

            def log_message(self, *args: object) -> None:
                server.paths.append(self.path)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def num_reads(self, name: str) -> int:
        """Return how often a file was requested."""
        return self.paths.count(f"/{name}")

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "served"
    make_photo_tree(folder / "train", num_images=6, num_classes=2, seed=0)
    build_index(folder / "train", folder / "train.txt", relative=True)
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    yield server
    server.stop()


def copies() -> list[Path]:
    """Return the folders of all versions that are copied, and of copies under way."""
    return [path for path in (platformdirs.user_cache_path("mpload") / "indexes").glob("*/*") if path.is_dir()]


@pytest.fixture(autouse=True)
def own_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.slow
def test_an_index_at_a_url_is_copied_once_with_its_sidecar_and_reads_as_the_local_one(
    folder: Path, server: Server
) -> None:
    local = open_index(folder / "train.txt")
    make_row_index(local)
    indexes = [open_index(f"{server.url}/train.txt") for _ in range(2)]
    assert [index.fingerprint for index in indexes] == [local.fingerprint] * 2
    assert indexes[0].root == f"{server.url}/train"
    sidecar = indexes[0].path.with_name("train.txt.mpx")
    assert sidecar.read_bytes() == (folder / "train.txt.mpx").read_bytes()
    assert find_row_index(indexes[0]) is not None
    assert server.num_reads("train.txt.mpx") == 2, "it is looked up, and read once"
    assert server.num_reads("train.txt") == 4, "it is looked up before and after it is read, and when opened again"

    def samples(index: str | Path) -> list[object]:
        return list(MPDataset(index, decode=RawBytes(), shuffle=True, topology=Topology()))

    assert samples(f"{server.url}/train.txt") == samples(folder / "train.txt")
    MPDataset(f"{server.url}/train.txt", decode=RandomResizedCrop(8), storage=LIMITS)


@pytest.mark.slow
def test_processes_that_start_at_once_make_one_copy(server: Server) -> None:
    command = [sys.executable, "-c", OPEN, f"{server.url}/train.txt"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(4)]
    assert len({process.communicate(timeout=60)[0] for process in running}) == 1
    assert [process.returncode for process in running] == [0] * 4
    assert server.num_reads("train.txt.mpx") == 2
    assert len(copies()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("is_terse", [False, True])
def test_a_changed_index_is_copied_again_and_the_old_one_can_still_be_read(
    folder: Path, server: Server, *, is_terse: bool
) -> None:
    server.is_terse = is_terse
    old = open_index(f"{server.url}/train.txt")
    lines = (folder / "train.txt").read_text()
    (folder / "new.txt").write_text(lines.replace("\t1\n", "\t0\n"))
    (folder / "new.txt").replace(folder / "train.txt")
    new = open_index(f"{server.url}/train.txt")
    assert set(new.labels[:].tolist()) == {0}
    assert set(old.labels[:].tolist()) == {0, 1}
    assert old[5].cells[1] == 1
    assert len(copies()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "flipped", "facts"])
def test_a_damaged_copy_is_replaced(server: Server, damage: str) -> None:
    index = open_index(f"{server.url}/train.txt")
    whole, status = index.path.read_bytes(), index.path.stat()
    if damage == "facts":
        index.path.with_name("copy.json").write_text("{")
    else:
        index.path.write_bytes(whole[:-1] + (b"" if damage == "cut" else b"x"))
        os.utime(index.path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert open_index(f"{server.url}/train.txt").path.read_bytes() == whole
    assert len(copies()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("sidecar", ["missing", "stale", "damaged"])
def test_a_sidecar_that_does_not_fit_is_built_from_the_copy(folder: Path, server: Server, sidecar: str) -> None:
    fingerprint = open_index(folder / "train.txt").fingerprint
    served = folder / "train.txt.mpx"
    match sidecar:
        case "missing":
            served.unlink()
        case "damaged":
            served.write_bytes(served.read_bytes()[:-500] + bytes(500))
        case "stale":  # of a text of the same size
            text = (folder / "train.txt").read_bytes()
            (folder / "train.txt").write_bytes(text.replace(b".JPEG\t1", b".JPEG\t0"))
            open_index(folder / "train.txt")
            (folder / "train.txt").write_bytes(text)
    copy = open_index(f"{server.url}/train.txt")
    assert (copy.fingerprint, set(copy.labels[:].tolist())) == (fingerprint, {0, 1})


@pytest.mark.slow
def test_without_its_server_the_copy_is_used_with_a_warning_and_without_a_copy_that_is_an_outage(
    folder: Path, server: Server
) -> None:
    copied, other = f"{server.url}/train.txt", f"{server.url}/other.txt"
    wanted = open_index(copied).fingerprint
    server.stop()
    with pytest.warns(MploadWarning, match=r"connection refused .*The copy of 2.* UTC is used") as caught:
        assert open_index(copied, storage=LIMITS).fingerprint == wanted
    assert caught[0].filename == __file__
    with pytest.raises(OutageError, match="connection refused"):
        open_index(other, storage=LIMITS)


@pytest.mark.slow
def test_a_killed_process_leaves_no_child_and_nothing_wrong(folder: Path) -> None:
    text = (folder / "train.txt").read_bytes()
    (folder / "train.txt").write_bytes(
        text + text[text.index(b"\nn") + 1 :] * 8_000
    )  # more than 1 MB, which take seconds
    with web_server(folder, "bandwidth", bad="") as slow:
        url = f"{slow.url}/train.txt"
        process = subprocess.Popen([sys.executable, "-c", OPEN, url])
        deadline = time.monotonic() + 60
        while not (begun := [path for path in copies() if path.suffix == ".tmp"]):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        while any(url.encode() in line for line in command_lines()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert copies() == begun
        (folder / "train.txt").write_bytes(text)
        assert open_index(url).path.read_bytes() == text
    assert begun[0] not in copies()


def command_lines() -> list[bytes]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:  # it has ended
            continue
    return found


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_copy_of_another_user_in_a_shared_folder_is_not_believed(server: Server, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    place = open_index(f"{server.url}/train.txt", local_copy=shared).path.parents[1]
    for path in (place, *place.rglob("*")):
        os.chown(path, 12_345, 12_345)
    index = open_index(f"{server.url}/train.txt", local_copy=shared)
    assert index.path.parents[1] == shared / f"{place.name}-0"
    server.stop()
    with pytest.warns(MploadWarning, match="The copy of"):
        assert open_index(f"{server.url}/train.txt", local_copy=shared, storage=LIMITS).path == index.path


@pytest.mark.slow
def test_a_disk_that_refuses_the_copy_is_a_clear_error_and_nothing_is_left(server: Server) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))  # the child inherits it
    try:
        with pytest.raises(StorageError, match=f"cannot be copied to .*{os.strerror(errno.EFBIG)}.*XDG_CACHE_HOME"):
            open_index(f"{server.url}/train.txt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert copies() == []
    assert len(open_index(f"{server.url}/train.txt")) == 6


def test_what_is_no_index_is_an_error_that_reveals_no_secret(server: Server) -> None:
    with pytest.raises(IndexNotFoundError, match=r"There is no index at http://.*/nothing\.txt"):
        open_index(f"{server.url}/nothing.txt")
    with pytest.raises(ArgumentError, match="is a folder"):
        open_index(f"{server.url}/")
    for url in ("https://me:password@host/x.txt", "https://host/x.txt?X-Amz-Signature=hidden"):
        with pytest.raises(ArgumentError) as caught:
            open_index(url)
        assert "hidden" not in str(caught.value)
        assert "password@" not in str(caught.value)


@pytest.mark.slow
def test_an_index_may_have_the_name_of_the_facts_about_copies(folder: Path, server: Server) -> None:
    build_index(folder / "train", folder / "copy.json", relative=True)
    for _ in range(2):
        index = open_index(f"{server.url}/copy.json")
        assert len(index) == 6
        assert index.root == f"{server.url}/train"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["inspect", "doctor"])
def test_commands_accept_a_url(server: Server, command: str, tmp_path: Path) -> None:
    options = [] if command == "inspect" else ["--seconds", "0.5", "--workers", "1", "--batch-size", "2"]
    ran = mpload(command, f"{server.url}/train.txt", *options, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "6 samples" in ran.stdout or "samples      6" in ran.stdout


@pytest.mark.parametrize(
    ("url", "root", "wanted"),
    [
        ("s3://bucket/index/train.txt", None, "s3://bucket/index"),
        ("s3://bucket/index/train.txt", "../photos", "s3://bucket/photos"),
        ("s3://bucket/train.txt", None, "s3://bucket"),
        ("s3://bucket/train.txt", "../../photos/.", "s3://bucket/photos"),
        ("https://host/a%20b/train.txt", "c d", "https://host/a%20b/c%20d"),
        ("https://host/train.txt", "s3://bucket/x", "s3://bucket/x"),
        ("https://host/train.txt", "/data/train", "/data/train"),
    ],
)
def test_a_relative_root_is_relative_to_the_url(url: str, root: str | None, wanted: str) -> None:
    assert root_at(url, Header(columns=parse_columns("image:path"), root=root)) == wanted


@pytest.mark.slow
def test_indexes_at_urls_are_merged_with_local_ones(folder: Path, server: Server, tmp_path: Path) -> None:
    for number in range(2):
        (folder / f"part{number}").mkdir()
        text = f"#mpload 1\n#root ./data\n#columns image:path label:int\n{number}.jpg\t{number}\n"
        (folder / f"part{number}" / "index.txt").write_text(text)
    local = tmp_path / "local.txt"
    local.write_text(f"#mpload 1\n#root {server.url}\n#columns image:path label:int\n2.jpg\t2\n")
    sources = [f"{server.url}/part0/index.txt", str(local), f"{server.url}/part1/index.txt"]
    merged = open_index(merge_indexes(sources, tmp_path / "all.txt"))
    assert merged.root == server.url
    assert [record.cells for record in merged] == [("part0/data/0.jpg", 0), ("2.jpg", 2), ("part1/data/1.jpg", 1)]
    assert mpload("merge", *sources[::2], "-o", tmp_path / "two.txt").returncode == 0
    assert [record.cells[1] for record in open_index(tmp_path / "two.txt")] == [0, 1]


def test_indexes_without_a_common_root_and_an_output_at_a_url_are_refused(
    folder: Path, server: Server, tmp_path: Path
) -> None:
    (folder / "plain.txt").write_text("#mpload 1\n#root train\n#columns image:path label:int\n0.jpg\t0\n")
    (tmp_path / "local.txt").write_text("#mpload 1\n#root /data\n#columns image:path label:int\n2.jpg\t2\n")
    url = f"{server.url}/plain.txt"
    with pytest.raises(ArgumentError, match=f"{url}: has the root {server.url}/train, which has no parent in common"):
        merge_indexes([tmp_path / "local.txt", url], tmp_path / "all.txt")
    with pytest.raises(ArgumentError, match=f"{url}: an index is written to a local file"):
        merge_indexes([tmp_path / "local.txt"], url)
    with pytest.raises(ArgumentError, match="contains a password") as caught:
        merge_indexes([tmp_path / "local.txt", url.replace("://", "://name:xyzzy@")], tmp_path / "all.txt")
    assert "xyzzy" not in str(caught.value)
    assert not (tmp_path / "all.txt").exists()


def test_a_selection_from_an_index_at_a_url_refers_to_the_same_objects(
    folder: Path, server: Server, tmp_path: Path
) -> None:
    selected = open_index(f"{server.url}/train.txt").select(tmp_path / "some.txt", where="label == 1")
    assert selected.root == f"{server.url}/train"
    data = [sample[0] for sample in MPDataset(selected, decode=RawBytes(), topology=Topology())]
    local = open_index(folder / "train.txt")
    assert data == [
        (Path(local.root) / str(path)).read_bytes() for path, label in (r.cells for r in local) if label == 1
    ]


def parts_of(folder: Path) -> Path:
    """Write a list of the two halves of the index, and return its path."""
    index = open_index(folder / "train.txt")
    halves = [
        index.select(folder / f"half-{n}.txt", sample_ids=range(3 * n, 3 * n + 3), relative=True) for n in range(2)
    ]
    return list_parts([half.path for half in halves], folder / "list.txt")


@pytest.mark.slow
def test_parts_at_urls_are_copied_once_and_read_as_the_local_ones(folder: Path, server: Server) -> None:
    local = open_index(parts_of(folder))
    for _ in range(2):
        index = open_index(f"{server.url}/list.txt")
        assert (list(index), index.fingerprint, index.root) == (list(local), local.fingerprint, f"{server.url}/train")
    assert server.num_reads("half-0.txt.mpx") == 2, "it is looked up, and read once"
    assert server.num_reads("half-1.txt") == 3, "it is looked up before and after it is read"
    merged = open_index(merge_indexes([f"{server.url}/list.txt"], folder / "merged.txt"))
    assert list(merged) == list(local)
    (folder / "half-1.txt").unlink()
    shutil.rmtree(index.path.parents[2])
    with pytest.raises(IndexNotFoundError, match=r"There is no index at http://.*/half-1\.txt"):
        open_index(f"{server.url}/list.txt")


@pytest.mark.slow
def test_parts_whose_samples_are_not_listed_are_copied_again_when_they_have_changed(
    folder: Path, server: Server
) -> None:
    parts_of(folder)
    (folder / "list.txt").write_text(f"#mpload 1\n#parts\nhalf-0.txt\n{server.url}/half-1.txt\n")
    for url in (f"{server.url}/list.txt", folder / "list.txt"):
        (folder / "half-1.txt").write_text(
            "#mpload 1\n#root " + f"{server.url}/train\n#columns image:path label:int\na\t1\n"
        )
        (folder / "half-0.txt").write_text(
            "#mpload 1\n#root " + f"{server.url}/train\n#columns image:path label:int\na\t1\n"
        )
        assert len(open_index(url)) == 2
        with (folder / "half-1.txt").open("a") as file:
            file.write("b\t1\n")
        assert len(open_index(url)) == 3
