"""The sidecar: derived, disposable, never believed where it does not fit its text."""

import contextlib
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
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpload import Index, MPDataset, MPLoader, RawBytes, open_index
from mpload.errors import ArgumentError, IndexChangedError, IndexFormatError, SidecarError, WorkerError
from mpload.index.columns import Cell
from mpload.index.index import header_of, sidecar_of
from mpload.index.lookup import BATCH_ROWS, SidecarFile, checks_of
from mpload.index.sidecar import SIDECAR_VERSION, rewrite_sidecar
from mpload.ingest.checking import Finding, check_index
from mpload.ingest.image_sizes import measure_sizes
from mpload.units import KIB, MIB

HEAD = b"#mpload 1\n#columns image:path label:int\n"


def make_text(path: Path, num_samples: int) -> Path:
    with path.open("wb") as file:
        file.write(HEAD)
        for start in range(0, num_samples, 100_000):
            stop = min(start + 100_000, num_samples)
            file.write(b"".join(b"d/%d.jpg\t%d\n" % (i, i % 1000) for i in range(start, stop)))
    return path


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """Three record batches, the last one short."""
    return open_index(make_text(tmp_path_factory.mktemp("large") / "train.txt", 2 * BATCH_ROWS + 12_345))


@pytest.fixture(autouse=True)
def own_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def expected(sample_id: int) -> tuple[str, int]:
    return f"d/{sample_id}.jpg", sample_id % 1000


def test_records_are_right_at_every_seam_of_the_record_batches(large: Index) -> None:
    ids = [0, 1, BATCH_ROWS - 1, BATCH_ROWS, 2 * BATCH_ROWS - 1, 2 * BATCH_ROWS, len(large) - 1]
    assert [record.cells for record in large.records(ids)] == [expected(i) for i in ids]
    assert large[-1].cells == expected(len(large) - 1)
    assert [record.cells for record in large[BATCH_ROWS - 2 : BATCH_ROWS + 2]] == [
        expected(i) for i in range(BATCH_ROWS - 2, BATCH_ROWS + 2)
    ]


@settings(max_examples=50)
@given(st.data())
def test_any_ids_in_any_order_give_their_records(large: Index, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, len(large) - 1), max_size=50))
    assert [record.cells for record in large.records(np.array(ids, np.int64))] == [expected(i) for i in ids]
    assert [record.sample_id for record in large.records(ids)] == ids
    assert large.labels[np.array(ids, np.int64)].tolist() == [i % 1000 for i in ids]


def test_labels_are_read_in_parts_and_as_whole_columns(large: Index) -> None:
    labels = large.labels
    assert (labels.shape, labels.dtype.name, len(labels)) == ((len(large),), "int64", len(large))
    np.testing.assert_array_equal(np.asarray(labels), np.arange(len(large)) % 1000)
    np.testing.assert_array_equal(labels[5:-5:1000], (np.arange(len(large)) % 1000)[5:-5:1000])
    assert labels[-1] == (len(large) - 1) % 1000
    assert sum(block.size for block in labels.blocks()) == len(large)
    with pytest.raises(IndexError):
        labels[len(large)]


bounds = st.none() | st.integers(-3 * BATCH_ROWS, 3 * BATCH_ROWS)


@settings(max_examples=20)
@given(bounds, bounds, st.none() | st.sampled_from([1, -1, 7, 100_003, -100_003]))
def test_slices_of_a_column_are_those_of_an_array(
    large: Index, start: int | None, stop: int | None, step: int | None
) -> None:
    part = slice(start, stop, step)
    np.testing.assert_array_equal(large.labels[part], (np.arange(len(large)) % 1000)[part])


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u8"])
def test_ids_of_any_integer_type_give_rows(large: Index, dtype: str) -> None:
    assert large.labels[np.array([5, 127], dtype)].tolist() == [5, 127]
    if dtype.startswith("i"):
        assert large.labels[np.array([-1], dtype)].tolist() == [(len(large) - 1) % 1000]


@pytest.mark.parametrize("key", [1.5, [0.0], float("nan"), "a", None, True, [True, False], 1j], ids=repr)
def test_what_is_neither_ids_nor_a_mask_of_all_rows_is_refused(large: Index, key: object) -> None:
    with pytest.raises(IndexError, match="is not a row, slice, array of rows, or mask of"):
        large.labels[key]


def test_a_mask_of_all_rows_selects_rows_and_an_empty_list_none(large: Index) -> None:
    mask = np.zeros(len(large), np.bool_)
    mask[[3, BATCH_ROWS]] = True
    assert large.labels[mask].tolist() == [3, BATCH_ROWS % 1000]
    assert large.labels[[]].tolist() == []


def num_bytes_read() -> int:
    """Return what this process has read by system calls, of the page cache too."""
    return int(Path("/proc/self/io").read_text().partition("rchar: ")[2].split()[0])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs Linux")
def test_going_through_a_column_reads_it_once(large: Index) -> None:
    before = num_bytes_read()
    assert sum(islice(large.labels, 10_000)) == 10 * sum(range(1000))
    assert num_bytes_read() - before < 2 * MIB


def test_a_pickled_column_is_read_where_it_arrives(large: Index) -> None:
    pickled = pickle.dumps(large.labels)
    assert len(pickled) < 2000
    assert pickle.loads(pickled)[[-1, 5]].tolist() == [(len(large) - 1) % 1000, 5]


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs Linux")
def test_a_cold_lookup_reads_pages_and_not_their_surroundings(large: Index, tmp_path: Path) -> None:
    index = open_index(shutil.copy(large.path, tmp_path / "train.txt"))
    for path in (index.path, sidecar_of(index).path):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    ids = np.random.default_rng(0).integers(0, len(index), 256)

    def num_read_bytes() -> int:
        return int(Path("/proc/self/io").read_text().partition("read_bytes: ")[2].split()[0])

    before = num_read_bytes()
    index.records(ids)
    if num_read_bytes() == before:
        pytest.skip("this file system cannot be made to read from a device")
    assert num_read_bytes() - before < len(ids) * 16 * KIB  # a page of the sidecar, one or two of the text


def test_ids_out_of_range_are_refused(large: Index) -> None:
    for ids in ([-1], [len(large)], [0, 1 << 60]):
        with pytest.raises(ArgumentError, match=r"sample_ids must be in \[0, "):
            large.records(ids)
    with pytest.raises(IndexError):
        large[len(large)]


def test_a_sidecar_is_plain_arrow(large: Index) -> None:
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


def test_the_fingerprint_follows_the_lines_and_not_the_place(tmp_path: Path) -> None:
    first = make_text(tmp_path / "a.txt", 100)
    fingerprint = open_index(first).fingerprint
    moved = tmp_path / "b.txt"
    moved.write_bytes(HEAD.replace(b"#columns", b"#root /data\n#columns") + first.read_bytes()[len(HEAD) :])
    assert open_index(moved).fingerprint == fingerprint
    moved.write_bytes(first.read_bytes().replace(b"d/7.jpg", b"d/8.jpg"))
    assert open_index(moved).fingerprint != fingerprint
    moved.write_bytes(first.read_bytes().replace(b"label:int", b"label:str"))
    assert open_index(moved).fingerprint != fingerprint


def test_a_changed_text_gets_a_new_sidecar(tmp_path: Path) -> None:
    text = make_text(tmp_path / "train.txt", 10)
    assert len(open_index(text)) == 10
    make_text(text, 11)
    assert len(open_index(text)) == 11


def test_an_index_that_changes_while_in_use_is_an_error_and_no_wrong_record(tmp_path: Path) -> None:
    text = make_text(tmp_path / "train.txt", 1000)
    index = open_index(text)
    pickled = pickle.dumps(index)
    with text.open("ab") as file:
        file.write(b"new.jpg\t1\n")
    with pytest.raises(IndexChangedError, match=r"changed after it was opened. Open it again"):
        index.records([5])
    with pytest.raises(IndexChangedError, match=r"changed after it was opened"):
        pickle.loads(pickled)
    assert len(open_index(text)) == 1001


def test_a_replaced_text_is_still_read_by_those_who_have_it_open(tmp_path: Path) -> None:
    text = make_text(tmp_path / "train.txt", 1000)
    index = open_index(text)
    make_text(tmp_path / "new.txt", 5).replace(text)
    assert index[999].cells == expected(999)


@pytest.mark.parametrize("keep", [0, 1, 100, 1000, -1])
def test_a_truncated_sidecar_is_rebuilt(tmp_path: Path, keep: int) -> None:
    text = make_text(tmp_path / "train.txt", 1000)
    sidecar = sidecar_of(open_index(text)).path
    sidecar.write_bytes(sidecar.read_bytes()[:keep])
    assert open_index(text)[999].cells == expected(999)


def test_a_sidecar_of_another_text_or_version_is_rebuilt(tmp_path: Path) -> None:
    text = make_text(tmp_path / "train.txt", 1000)
    other = make_text(tmp_path / "other.txt", 500)
    sidecar = sidecar_of(open_index(text)).path
    shutil.copy(sidecar_of(open_index(other)).path, sidecar)
    assert len(open_index(text)) == 1000
    version = b"%d\0\0\0\x0e\0\0\0mpload.version"  # value, length of the key, key
    assert version % SIDECAR_VERSION in sidecar.read_bytes()
    sidecar.write_bytes(sidecar.read_bytes().replace(version % SIDECAR_VERSION, version % (SIDECAR_VERSION - 1)))
    assert len(open_index(text)) == 1000


@pytest.fixture(scope="module")
def sized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index whose files are there."""
    folder = tmp_path_factory.mktemp("sized")
    (folder / "d").mkdir()
    for number in range(50):
        (folder / f"d/{number}.jpg").write_bytes(bytes(number))
    return make_text(folder / "train.txt", 50)


def facts(index: Index) -> tuple[str, list[int], list[tuple[Cell, ...]]]:
    return index.fingerprint, index.labels[:].tolist(), [record.cells for record in index]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_small_sidecar_is_rebuilt(sized: Path, data: st.DataObject) -> None:
    index = open_index(sized)
    want = facts(index)
    bad = bytearray(sidecar_of(index).path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        bad[data.draw(st.integers(0, len(bad) - 1))] ^= data.draw(st.integers(1, 255))
    sidecar_of(index).path.write_bytes(bad[: data.draw(st.integers(0, len(bad)))] if data.draw(st.booleans()) else bad)
    assert facts(open_index(sized)) == want


@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("flipped", [1, 128])
def test_any_damaged_byte_of_a_small_sidecar_is_seen_when_it_is_opened(sized: Path, flipped: int, step: int) -> None:
    index = open_index(sized)
    want, path = facts(index), sidecar_of(index).path
    good = path.read_bytes()
    for place in range(0, len(good), step):
        bad = bytearray(good)
        bad[place] ^= flipped
        path.write_bytes(bad)
        assert facts(open_index(sized)) == want, place


@pytest.mark.parametrize("flipped", [1, 128])
def test_any_byte_damaged_while_in_use_gives_what_was_there_or_an_error(sized: Path, flipped: int) -> None:
    measure_sizes(open_index(sized))
    index = open_index(sized)
    want, path = facts(index)[2], sidecar_of(index).path
    assert index.nbytes is not None
    columns = {column: column[:].tolist() for column in (index.labels, index.nbytes)}
    good = path.read_bytes()
    causes = []
    with path.open("r+b") as file:
        for place in range(len(good)):
            file.seek(place)
            file.write(bytes([good[place] ^ flipped]))
            file.flush()
            for column, values in columns.items():
                try:
                    assert column[:].tolist() == values, place
                except SidecarError as error:
                    causes.append(str(error))
            for sample_id in (0, 1, 48, 49):  # one by one: together, a wrong offset shows in its neighbour
                with contextlib.suppress(IndexChangedError):
                    assert [index[sample_id].cells] == want[sample_id : sample_id + 1], place
            file.seek(place)
            file.write(good[place : place + 1])
            file.flush()
    assert len(causes) == 2 * (50 * 8 + 8)  # each byte of labels, sizes and their checksums
    assert all("does not have the checksum" in cause for cause in causes)


def test_damage_of_a_large_sidecar_is_seen_where_it_is_read(large: Index, tmp_path: Path) -> None:
    text = shutil.copy(large.path, tmp_path / "train.txt")
    path = sidecar_of(open_index(text)).path
    place = sidecar_of(large).columns["label"]
    with path.open("r+b") as file:
        for start in (place.first_bytes, place.first_bytes + place.stride_bytes, place.last_bytes):
            file.seek(start + 8 * 1000)
            file.write(b"\xff")
    labels = open_index(text).labels
    for first in (0, BATCH_ROWS, 2 * BATCH_ROWS):
        assert labels[first : first + 512].tolist() == large.labels[first : first + 512].tolist()
        for ids in (first + 600, [first, first + 1000]):
            with pytest.raises(SidecarError, match=rf"label of samples {first + 512} to {first + 1023} does not have"):
                labels[ids]
    with pytest.raises(SidecarError, match="Delete it and open the index again"):
        np.asarray(labels)
    findings = [str(finding) for finding in check_lines_of(open_index(text))]
    assert len(findings) == 1
    assert "does not have the checksum" in findings[0]


def check_lines_of(index: Index) -> list[Finding]:
    """Return what is wrong with the index itself; its files, of which there are none, are not asked for."""
    return [finding for finding in islice(check_index(index, num_workers=1), 600) if finding.path is None]


def test_rows_of_another_place_are_no_rows(large: Index) -> None:
    """A disk may give a block that is whole, and was asked for by somebody else."""
    rows = large.labels[:512].tobytes()
    assert len({checks_of(rows, row, seed=seed) for row in (0, 512) for seed in (0, 1 << 31)}) == 4


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("what", ["sidecar", "text"])
def test_a_file_that_is_cut_in_use_is_an_error_and_no_signal(tmp_path: Path, num_workers: int, what: str) -> None:
    text = make_text(tmp_path / "train.txt", 3000)
    (tmp_path / "d").mkdir()
    for number in range(3000):
        (tmp_path / f"d/{number}.jpg").touch()
    code = (
        "import os, sys, mpload\n"
        "dataset = mpload.MPDataset(sys.argv[1], decode=mpload.RawBytes(as_array=True), batch_size=8, shuffle=True)\n"
        "loader = mpload.MPLoader(dataset, num_workers=int(sys.argv[2]), memory_budget='1GiB')\n"
        "index = dataset.index\n"
        "try:\n"
        "    for number, batch in enumerate(loader):\n"
        "        if number == 2: os.truncate(sys.argv[3], 4096)\n"
        "except mpload.MploadError as error: print(error)\n"
        "for ask in (lambda: index.labels[:], lambda: index[-1]):\n"
        "    try: print(len(ask()))\n"
        "    except (mpload.MploadError, TypeError) as error: print(type(error).__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, text, str(num_workers), f"{text}{'.mpx' * (what == 'sidecar')}"],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told, labels, record = done.stdout.strip().splitlines()
    if what == "sidecar":
        assert "was cut while it was in use. Delete it and open the index again" in told
        assert (labels, record) == ("SidecarError", "SidecarError")
    else:
        assert "changed after it was opened. Open it again" in told
        assert (labels, record) == ("3000", "IndexChangedError")


@pytest.mark.processes
def test_an_index_that_is_replaced_before_workers_start_is_named(tmp_path: Path) -> None:
    text = make_text(tmp_path / "train.txt", 1000)
    dataset = MPDataset(text, decode=RawBytes(), batch_size=8)
    make_text(tmp_path / "new.txt", 5).replace(text)
    with pytest.raises(WorkerError, match=r"cannot start: .*train\.txt: changed after it was opened\. Open it again$"):
        MPLoader(dataset, num_workers=1, memory_budget="1GiB")


@pytest.mark.parametrize("in_place", [True, False])
def test_a_column_gives_no_rows_of_another_text_that_took_its_place(tmp_path: Path, in_place: bool) -> None:
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
    with pytest.raises(SidecarError, match="is damaged, or of another state of the text: label of samples 0 to 511"):
        labels[7]


@pytest.mark.processes
def test_a_text_that_is_replaced_while_it_is_being_opened_is_an_error(tmp_path: Path) -> None:
    text, other = tmp_path / "train.txt", tmp_path / "other.txt"
    for path, classes in ((text, b"cat\tdog"), (other, b"dog\tcat")):
        path.write_bytes(b"#mpload 1\n#columns image:path label:int\n#classes " + classes + b"\na.jpg\t0\n")
    code = (
        "import os, sys, mpload\n"
        "def replace(event, arguments):\n"
        "    if event == 'open' and str(arguments[0]).endswith('.mpx') and os.path.exists(sys.argv[2]):\n"
        "        os.replace(sys.argv[2], sys.argv[1])\n"
        "sys.addaudithook(replace)\n"
        "try:\n"
        "    print(mpload.open_index(sys.argv[1]).classes)\n"
        "except mpload.MploadError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, text, other], capture_output=True, text=True, check=False, timeout=60
    )
    assert re.search(r"^IndexChangedError .*changed while it was being opened", done.stdout), done
    assert not other.exists()


def test_a_pipe_in_place_of_a_sidecar_is_replaced(tmp_path: Path) -> None:
    text = make_text(tmp_path / "train.txt", 10)
    os.mkfifo(tmp_path / "train.txt.mpx")
    assert len(open_index(text)) == 10
    assert (tmp_path / "train.txt.mpx").is_file()


def test_rows_that_are_not_those_of_their_record_batch_are_found(large: Index, tmp_path: Path) -> None:
    text = shutil.copy(large.path, tmp_path / "train.txt")
    index = open_index(text)
    offsets, labels = (np.array(SidecarFile(sidecar_of(index)).columns[name]) for name in ("offset", "label"))
    for first in (BATCH_ROWS, len(offsets) // BATCH_ROWS * BATCH_ROWS):
        moved = offsets.copy()
        moved[first:-1] = offsets[first + 1 :]
        rows = {"offset": moved, "label": labels}
        with pytest.raises(SidecarError, match="are not those of the lines"):
            rewrite_sidecar(
                index.path, header_of(index), [rows], num_samples=len(index), digest=sidecar_of(index).digest
            )
    assert open_index(text)[BATCH_ROWS].cells == expected(BATCH_ROWS)


def open_at(barrier: "multiprocessing.synchronize.Barrier", path: Path, out: "multiprocessing.Queue[str]") -> None:
    barrier.wait(30)
    index = open_index(path)
    out.put(f"{len(index)} {index[len(index) - 1].cells} {sidecar_of(index).path.name}")


@pytest.mark.processes
def test_eight_processes_that_open_at_once_all_get_a_right_index(tmp_path: Path) -> None:
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


def run_as_nobody(code: str, *arguments: Path, warm_up: Path) -> str:
    """Run code as a user whom file modes bind (root may write anywhere), after all that it imports has been loaded."""
    preamble = (
        f"import os, sys\nmpload.open_index({str(warm_up)!r})[0]\n"
        "if os.getuid() == 0: os.setgid(65534); os.setuid(65534)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", "import mpload\n" + preamble + code, *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.processes
def test_on_a_read_only_folder_the_sidecar_goes_to_the_cache_folder(own_cache_folder: Path) -> None:
    base = Path(f"/tmp/mpload-test-{os.getpid()}")  # pytest's own folder is closed to other users
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
        assert "Make the folder writable, or set XDG_CACHE_HOME" in run_as_nobody(code, text, cache, warm_up=warm_up)
        assert [path.name for path in folder.iterdir()] == ["train.txt"]
    finally:
        folder.chmod(0o755)
        shutil.rmtree(base)


@pytest.mark.processes
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    text = make_text(tmp_path / "train.txt", 200_000)
    code = (
        "import resource, signal, sys, mpload\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"  # a file size limit is a disk that fills up at that point
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "mpload.open_index(sys.argv[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, text], capture_output=True, text=True, check=False, timeout=60)
    assert "the sidecar cannot be written" in done.stderr
    assert "make room there" in done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["train.txt"]


@pytest.mark.processes
def test_a_pickled_index_needs_no_pyarrow(tmp_path: Path) -> None:
    text = make_text(tmp_path / "train.txt", 100)
    (tmp_path / "index.pickle").write_bytes(pickle.dumps(open_index(text)))
    code = (
        "import pickle, sys; index = pickle.load(open(sys.argv[1], 'rb'));"
        "print(index[99], [module for module in sys.modules if module in ('pyarrow', 'torch')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "index.pickle"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "Record(99: image='d/99.jpg', label=99) []"


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs Linux")
def test_building_for_many_classes_does_not_read_the_sidecar_back(tmp_path: Path) -> None:
    text = make_text(tmp_path / "train.txt", 600_000)
    classes = "\t".join(f"class_number_{number}" for number in range(20_000)).encode()
    num_bytes = []
    for head in (HEAD, HEAD + b"#classes " + classes + b"\n"):
        text.write_bytes(text.read_bytes().replace(HEAD, head))
        before = num_bytes_read()
        index = open_index(text)
        num_bytes.append(num_bytes_read() - before)
    assert num_bytes[1] - num_bytes[0] < sidecar_of(index).file_bytes // 2


def test_a_text_without_labels_says_so(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("a.jpg\nb.jpg\n")
    with pytest.raises(IndexFormatError, match="has no integer column, only image:path"):
        _ = open_index(tmp_path / "list.txt").labels


@pytest.mark.processes
def test_private_memory_of_a_reader_does_not_grow_with_the_index(large: Index, tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np, mpload\n"
        "from mpload.memory.usage import process_memory\n"
        "index = mpload.open_index(sys.argv[1])\n"
        "def read():\n"
        "    for start in range(0, len(index) - 4096, 4096): index.records(np.arange(start, start + 4096, 37))\n"
        "index.records(np.arange(1000))\n"
        "before = process_memory().rss_bytes\n"
        "read()\n"
        "rng = np.random.default_rng(0)\n"
        "for _ in range(50): index.records(rng.integers(0, len(index), 1000))\n"
        "print(process_memory().rss_bytes - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, large.path], capture_output=True, text=True, check=True, timeout=100
    )
    assert int(done.stdout) < 8 * 2**20  # the map alone is 34 MB, the text 38 MB


@pytest.mark.processes
def test_building_waits_for_nobody_who_died(tmp_path: Path) -> None:
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
