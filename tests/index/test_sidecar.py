"""The sidecar holds only derived data, may be deleted, and is rebuilt if it does not match its text."""

import json
import multiprocessing
import os
import pickle
import re
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from mpload import Index, MPDataset, MPLoader, RawBytes, open_index
from mpload.errors import IndexChangedError, SidecarError, WorkerError
from mpload.index import sidecar, sidecar_writing
from mpload.index.dialects import Header
from mpload.index.index import sidecar_of
from mpload.index.lookup import BATCH_ROWS
from mpload.index.unfinished import unfinished_file
from tests.support.index_texts import HEAD, expected, make_text
from tests.support.programs import run_as_nobody, run_script


def test_a_sidecar_is_a_standard_arrow_file(large: Index) -> None:
    with pa.memory_map(str(sidecar_of(large).path)) as source:
        reader = pa.ipc.open_file(source)
        assert [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)] == [
            BATCH_ROWS,
            BATCH_ROWS,
            12_345,
        ]
        assert reader.schema.names == ["offset", "label"]
        totals = json.loads(reader.schema.metadata[b"mpload.totals"])
        np.testing.assert_array_equal(reader.read_all().column("label").to_numpy(), large.labels)
    assert (totals["num_samples"], totals["digest"]) == (len(large), sidecar_of(large).digest)


def test_the_fingerprint_depends_on_the_lines_and_not_on_the_path_or_root(tmp_path: Path) -> None:
    first = make_text(tmp_path / "a.txt", 100)
    fingerprint = open_index(first).fingerprint
    moved = tmp_path / "b.txt"
    moved.write_bytes(HEAD.replace(b"#columns", b"#root /data\n#columns") + first.read_bytes()[len(HEAD) :])
    assert open_index(moved).fingerprint == fingerprint
    moved.write_bytes(first.read_bytes().replace(b"d/7.jpg", b"d/8.jpg"))
    assert open_index(moved).fingerprint != fingerprint
    moved.write_bytes(first.read_bytes().replace(b"label:int", b"label:str"))
    assert open_index(moved).fingerprint != fingerprint


def test_an_index_may_have_any_name(tmp_path: Path) -> None:
    for name in ("photos\udcff.txt", "a\nb\t.txt", " "):
        path = tmp_path / name
        path.write_text("#mpload 1\n#columns image:path label:int\na.jpg\t1\n")
        assert list(open_index(path).labels[:]) == [1]
        assert (tmp_path / f"{name}.mpx").exists()


def test_a_changed_text_gets_a_new_sidecar(tmp_path: Path) -> None:
    text = make_text(tmp_path / "train.txt", 10)
    assert len(open_index(text)) == 10
    make_text(text, 11)
    assert len(open_index(text)) == 11


def test_an_index_that_changes_while_in_use_raises_instead_of_returning_a_wrong_record(tmp_path: Path) -> None:
    text = make_text(tmp_path / "train.txt", 1000)
    index = open_index(text)
    pickled = pickle.dumps(index)
    with text.open("ab") as file:
        file.write(b"new.jpg\t1\n")
    with pytest.raises(IndexChangedError, match=r"changed after it was opened. Open it again"):
        index.records([5])
    copy = pickle.loads(pickled)  # only further lines were appended
    assert (len(copy), copy.fingerprint, copy[999].cells) == (1000, index.fingerprint, expected(999))
    assert len(open_index(text)) == 1001
    text.write_bytes(text.read_bytes().replace(b"5", b"6"))
    with pytest.raises(IndexChangedError, match=r"changed after it was opened"):
        pickle.loads(pickled)


def test_an_open_index_can_still_be_read_after_its_text_was_replaced(tmp_path: Path) -> None:
    text = make_text(tmp_path / "train.txt", 1000)
    index = open_index(text)
    make_text(tmp_path / "new.txt", 5).replace(text)
    assert index[999].cells == expected(999)


@pytest.mark.processes
def test_the_error_names_an_index_that_was_replaced_before_workers_start(tmp_path: Path) -> None:
    text = make_text(tmp_path / "train.txt", 1000)
    dataset = MPDataset(text, decode=RawBytes(), batch_size=8)
    make_text(tmp_path / "new.txt", 5).replace(text)
    with pytest.raises(WorkerError, match=r"cannot start: .*train\.txt: changed after it was opened\. Open it again$"):
        MPLoader(dataset, num_workers=1, memory_budget="1GiB")


@pytest.mark.parametrize("in_place", [True, False])
def test_a_column_never_returns_rows_of_a_text_that_replaced_its_own(tmp_path: Path, in_place: bool) -> None:
    text = make_text(tmp_path / "train.txt", 1000)
    labels = open_index(text).labels
    pickled, mtime_ns = pickle.dumps(labels), text.stat().st_mtime_ns
    text.write_bytes(text.read_bytes().replace(b"d/7.jpg\t7\n", b"d/7.jpg\t9\n"))
    os.utime(text, ns=(mtime_ns + 1, mtime_ns + 1))
    if in_place:
        shutil.copyfile(sidecar_of(open_index(shutil.copy2(text, tmp_path / "new.txt"))).path, f"{text}.mpx")
    else:
        open_index(text)
        assert labels[7] == 7
        labels = pickle.loads(pickled)
    with pytest.raises(
        SidecarError, match="is damaged, or belongs to another state of the text: column label of samples 0 to 511"
    ):
        labels[7]


@pytest.mark.processes
@pytest.mark.parametrize("num_times", [1, 100])
def test_a_text_that_is_replaced_while_being_opened_is_opened_as_it_is_then_or_raises(
    tmp_path: Path, num_times: int
) -> None:
    text, other = tmp_path / "train.txt", tmp_path / "other.txt"
    for path, classes in ((text, b"cat\tdog"), (other, b"dog\tcat")):
        path.write_bytes(b"#mpload 1\n#columns image:path label:int\n#classes " + classes + b"\na.jpg\t0\n")
    code = (
        "import os, sys, mpload\n"
        "left = int(sys.argv[3])\n"
        "def replace(event, arguments):\n"
        "    global left\n"
        "    if event == 'open' and str(arguments[0]).endswith('.mpx') and left:\n"
        "        left -= 1\n"
        "        os.link(sys.argv[2], sys.argv[2] + str(left))\n"
        "        os.utime(sys.argv[2], ns=(left, left))\n"
        "        os.replace(sys.argv[2] + str(left), sys.argv[1])\n"
        "sys.addaudithook(replace)\n"
        "try:\n"
        "    print(mpload.open_index(sys.argv[1]).classes)\n"
        "except mpload.MploadError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, text, other, str(num_times)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    expected = r"\('dog', 'cat'\)" if num_times == 1 else "IndexChangedError .*changed while it was being opened"
    assert re.match(expected, done.stdout), done


def test_a_pipe_in_place_of_a_sidecar_is_replaced(tmp_path: Path) -> None:
    text = make_text(tmp_path / "train.txt", 10)
    os.mkfifo(tmp_path / "train.txt.mpx")
    assert len(open_index(text)) == 10
    assert (tmp_path / "train.txt.mpx").is_file()


def open_at(barrier: "multiprocessing.synchronize.Barrier", path: Path, out: "multiprocessing.Queue[str]") -> None:
    barrier.wait(30)
    index = open_index(path)
    out.put(f"{len(index)} {index[len(index) - 1].cells} {sidecar_of(index).path.name}")


@pytest.mark.processes
def test_eight_processes_that_open_an_index_at_once_all_get_the_right_one(tmp_path: Path) -> None:
    text = make_text(tmp_path / "train.txt", 300_000)
    context = multiprocessing.get_context("fork")
    barrier, out = context.Barrier(8), context.Queue()
    processes = [context.Process(target=open_at, args=(barrier, text, out)) for _ in range(8)]
    for process in processes:
        process.start()
    answers = {out.get(timeout=60) for _ in processes}
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert answers == {f"300000 {expected(299_999)} train.txt.mpx"}
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["train.txt", "train.txt.mpx"]


@pytest.mark.processes
def test_the_sidecar_of_a_read_only_folder_is_written_to_the_cache_folder() -> None:
    base = Path(f"/tmp/mpload-test-{os.getpid()}")  # other users may not enter pytest's own folder
    folder = base / "data"
    folder.mkdir(parents=True)
    try:
        text = make_text(folder / "train.txt", 100)
        cache = base / "cache"
        cache.mkdir()
        cache.chmod(0o777)
        folder.chmod(stat.S_IRUSR | stat.S_IXUSR | stat.S_IROTH | stat.S_IXOTH)
        code = (
            "os.environ['XDG_CACHE_HOME'] = sys.argv[2]; index = mpload.open_index(sys.argv[1]);"
            "print(index[99], index._layout.path)"
        )
        warm_up = make_text(base / "other.txt", 2)
        out = run_as_nobody(code, text, cache, warm_up=warm_up)
        assert "Record(99: image='d/99.jpg', label=99)" in out
        assert f"{cache}/mpload/sidecars/" in out
        cache.chmod(0o555)
        shutil.rmtree(cache / "mpload")
        out = run_as_nobody(code, text, cache, warm_up=warm_up)
        assert "Make the folder writable, or set XDG_CACHE_HOME" in out
        assert "another exception occurred" not in out  # the message names all causes
        assert [path.name for path in folder.iterdir()] == ["train.txt"]
    finally:
        folder.chmod(0o755)
        shutil.rmtree(base)


@pytest.mark.processes
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_raises_a_clear_error_and_leaves_no_file(tmp_path: Path) -> None:
    text = make_text(tmp_path / "train.txt", 200_000)
    code = (
        "import resource, signal, sys, mpload\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"  # a size limit acts like a full disk
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "mpload.open_index(sys.argv[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, text], capture_output=True, text=True, check=False, timeout=60)
    assert "the sidecar cannot be written" in done.stderr
    assert "Free some space" in done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["train.txt"]


@pytest.mark.processes
def test_building_does_not_wait_for_a_process_that_died_with_the_lock(tmp_path: Path) -> None:
    text = make_text(tmp_path / "train.txt", 100)
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from mpload.index.sidecar import _lock\n"
        "with _lock(Path(sys.argv[1])): print('locked', flush=True); os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, text], capture_output=True, check=False, timeout=60)
    start = time.monotonic()
    assert len(open_index(text)) == 100
    assert time.monotonic() - start < 30


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_opening_an_index_starts_no_thread(tmp_path: Path) -> None:
    text = make_text(tmp_path / "train.txt", 10)
    open_index(text)
    script = (
        "import os, sys, mpload.index.sidecar\n"
        "before = os.listdir('/proc/self/task')\n"
        "mpload.open_index(sys.argv[1])\n"
        "print(len(os.listdir('/proc/self/task')) - len(before))\n"
    )
    done = subprocess.run([sys.executable, "-c", script, text], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


@pytest.mark.processes
def test_what_killed_processes_left_is_deleted_and_what_others_write_is_kept(tmp_path: Path) -> None:
    text = make_text(tmp_path / "a.txt", 100)
    killed = """
        import os, signal, sys
        from mpload import open_index
        open_index(sys.argv[1], progress=lambda _: os.kill(os.getpid(), signal.SIGKILL))
        """
    for _ in range(2):
        assert run_script(killed, str(text)).returncode == -9
    assert len(list(tmp_path.glob("a.txt.mpx.*.tmp"))) == 1, "the second one has deleted that of the first"
    foreign = tmp_path / "a.txt.mpx.0123456789abcdef.tmp"
    foreign.touch()  # perhaps a machine that shares the folder writes it
    with unfinished_file(tmp_path / "a.txt.mpx") as living:
        assert len(open_index(text)) == 100
        assert set(tmp_path.iterdir()) == {text, tmp_path / "a.txt.mpx", living, foreign}
    assert set(tmp_path.iterdir()) == {text, tmp_path / "a.txt.mpx", foreign}


@pytest.mark.processes
def test_a_limit_of_open_files_is_named_and_leaves_the_sidecar(tmp_path: Path) -> None:
    old, new = (make_text(tmp_path / name, 100) for name in ("old.txt", "new.txt"))
    open_index(old)
    before = (tmp_path / "old.txt.mpx").stat()
    ran = run_script(
        """
        import os, resource, sys
        import mpload.index.sidecar_writing  # what is needed must have been imported
        from mpload import StorageError, open_index
        open_index(sys.argv[1])
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        while (last := os.dup(0)) < 40:  # fills the gaps
            pass
        for name in sys.argv[1:]:
            for num_left in range(6):
                resource.setrlimit(resource.RLIMIT_NOFILE, (last + 1 + num_left, hard))
                try:
                    open_index(name)
                    print("opened")
                except StorageError as error:
                    print(error.errno, error)
        """,
        str(old),
        str(new),
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    found = ran.stdout.splitlines()
    assert len(found) == 12
    assert found.count("opened") >= 4  # no error keeps a file open
    advice = (
        "Too many open files. The limit of open files is reached, and each index has two open. Raise it: ulimit -n "
    )
    assert all(line == "opened" or (line.startswith("24 ") and advice in line) for line in found)
    after = (tmp_path / "old.txt.mpx").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_sidecar_of_an_older_version_with_widths_as_labels_is_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "a.txt"
    text.write_text(
        "#mpload 1\n#columns image:path width:int height:int kind:int\na.jpg\t40\t30\t1\nb.jpg\t41\t30\t0\n"
    )
    with monkeypatch.context() as patch:
        patch.setattr(Header, "label_column", property(lambda header: 1))
        patch.setattr(sidecar_writing, "unlike_before", lambda header: "")
        patch.setattr(sidecar, "unlike_before", lambda header: "")
        assert open_index(text).labels[:].tolist() == [40, 41]
    assert open_index(text).labels[:].tolist() == [1, 0]
    assert (tmp_path / "a.txt.mpx").exists()
    before = (tmp_path / "a.txt.mpx").stat().st_mtime_ns
    assert open_index(text).labels[:].tolist() == [1, 0]
    assert (tmp_path / "a.txt.mpx").stat().st_mtime_ns == before


def test_a_pyarrow_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = make_text(tmp_path / "train.txt", 3)
    monkeypatch.setitem(sys.modules, "mpload.index.sidecar_writing", None)  # importing it is an ImportError
    with pytest.raises(
        SidecarError, match=r"train\.txt: its sidecar cannot be written, since pyarrow cannot be imported"
    ):
        open_index(text)
    monkeypatch.undo()
    assert len(open_index(text)) == 3
