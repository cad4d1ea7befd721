"""LMDB: values are read by key in any process, files are indexed in place, and damaged files are errors."""

import json
import os
import pickle
import random
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Literal

import psutil
import pytest

from mpload import ErrorPolicy, MPDataset, MPLoader, RawBytes, Topology, build_index, open_index
from mpload.errors import ArgumentError, MploadError, MploadWarning, SampleError, StorageError
from mpload.storage.lmdb import LmdbStorage, _fork_gate
from mpload.storage.lmdb_scan import scan_lmdb
from mpload.storage.ranges import LmdbValue
from mpload.tools.pack.lmdb_file import compare_lmdb
from mpload.transport.batches import PoolOptions
from tests.support.children import check_in_a_child
from tests.support.photos import make_photo_tree
from tests.support.transport_works import wait_until

lmdb = pytest.importorskip("lmdb")

JPEG = b"\xff\xd8\xff\xe0" + bytes(100)
PNG = b"\x89PNG\r\n\x1a\n" + bytes(50)


def make_lmdb(path: Path, values: Mapping[bytes, bytes], *, subdir: bool = False) -> Path:
    with lmdb.open(str(path), map_size=1 << 28, subdir=subdir) as environment, environment.begin(write=True) as put:
        for key, value in values.items():
            put.put(key, value)
    return path / "data.mdb" if subdir else path


def samples(index: Path | tuple[Path, ...]) -> list[object]:
    assert isinstance(index, Path)
    return list(MPDataset(index, decode=RawBytes(), topology=Topology()))


def image(number: int) -> bytes:
    return JPEG + number.to_bytes(4, "little") * (number * 50)


# Indexes


@pytest.mark.processes
@pytest.mark.parametrize("subdir", [True, False])
def test_images_and_labels_under_the_same_key_are_samples(tmp_path: Path, subdir: bool) -> None:
    values = {f"{n:03d}.jpg".encode(): image(n) for n in range(30)}
    values |= {f"{n:03d}.cls".encode(): str(n % 7).encode() for n in range(30)}
    make_lmdb(tmp_path / "a.lmdb", values, subdir=subdir)
    made = build_index(tmp_path / "a.lmdb", tmp_path / "a.txt")
    assert samples(made) == [(image(n), n % 7) for n in range(30)]


@pytest.mark.processes
def test_values_that_are_images_are_samples_even_if_their_keys_have_no_extension(tmp_path: Path) -> None:
    others = {b"0003": b"P6\n1 1 255 abc", b"num-samples": b"3", b"text": b"P6 is a model"}
    make_lmdb(tmp_path / "a", {b"0001": image(1), b"0002": PNG, b"\xff\x00@%/x": image(3), **others})
    with pytest.warns(MploadWarning, match="2 values that are not images"):
        made = build_index(tmp_path / "a", tmp_path / "a.txt")
    assert samples(made) == [image(1), PNG, others[b"0003"], image(3)]


@pytest.mark.processes
def test_folders_in_keys_are_classes(tmp_path: Path) -> None:
    make_lmdb(tmp_path / "a", {b"dog/1.jpg": image(1), b"cat/x/2.jpg": image(2), b"dog/3.jpg": image(3)})
    made = build_index(tmp_path / "a", tmp_path / "a.txt")
    assert samples(made) == [(image(2), 0), (image(1), 1), (image(3), 1)]
    assert open_index(tmp_path / "a.txt").classes == ("cat", "dog")
    unlabelled = build_index(tmp_path / "a", tmp_path / "b.txt", columns="image:lmdb")
    assert samples(unlabelled) == [image(2), image(1), image(3)]


@pytest.mark.processes
def test_several_files_with_several_images_per_sample(tmp_path: Path) -> None:
    for name in "ab":
        make_lmdb(tmp_path / name, {b"1.lr.png": PNG, b"1.hr.png": PNG + name.encode()})
    made = build_index([tmp_path / "a", tmp_path / "b"], tmp_path / "x.txt")
    assert samples(made) == [(PNG + b"a", PNG), (PNG + b"b", PNG)]


@pytest.mark.processes
def test_a_database_without_images_is_refused_and_nothing_is_unpickled(tmp_path: Path) -> None:
    make_lmdb(tmp_path / "a", {b"1": pickle.dumps({"x": 1}), b"2": b"text"})
    with pytest.raises(ArgumentError, match=r"no value is an image \(some look pickled, and mpload never unpickles"):
        build_index(tmp_path / "a", tmp_path / "a.txt")


def flip_leaf(path: Path, *, page: int) -> None:
    """Clear the flag that marks a page of a data file as a leaf. liblmdb aborts its process when it reads the page."""
    data = bytearray(path.read_bytes())
    leaves = [start for start in range(2 * 4096, len(data), 4096) if data[start + 10 : start + 12] == b"\x02\0"]
    data[leaves[page] + 10] = 0
    path.write_bytes(data)


def many_values(num_values: int) -> dict[bytes, bytes]:
    return {f"{number:06d}.jpg".encode(): image(number % 7) for number in range(num_values)}


@pytest.mark.processes
def test_a_damaged_file_raises_an_error_in_the_indexing_process_and_does_not_kill_it(tmp_path: Path) -> None:
    path = make_lmdb(tmp_path / "a", many_values(500))
    flip_leaf(path, page=3)
    with pytest.raises(StorageError, match=r"a: the process that read it ended by SIGABRT \(.*Assert.*mdb_copy"):
        build_index(path, tmp_path / "a.txt")
    assert [file.name for file in tmp_path.iterdir() if file.name != "a-lock"] == ["a"]


@pytest.mark.processes
def test_a_damaged_pack_raises_an_error_in_the_process_that_verifies_it(tmp_path: Path) -> None:
    values = many_values(500)
    flip_leaf(make_lmdb(tmp_path / "a", values), page=3)
    with pytest.raises(StorageError, match="ended by SIGABRT"):
        compare_lmdb(tmp_path / "a", values.items())


@pytest.mark.processes
def test_no_mutation_of_a_file_kills_the_process_that_indexes_it(tmp_path: Path) -> None:
    whole = make_lmdb(tmp_path / "a", many_values(100)).read_bytes()
    chance = random.Random(5)
    ends: set[str] = set()
    for _ in range(12):
        mutated = bytearray(whole)
        for _ in range(chance.randrange(1, 5)):
            mutated[4096 * chance.randrange(len(whole) // 4096) + chance.randrange(40)] ^= 1 << chance.randrange(8)
        (tmp_path / "mutated").write_bytes(mutated)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", MploadWarning)
                build_index(tmp_path / "mutated", tmp_path / "a.txt")
        except MploadError as error:
            ends.add(type(error).__name__ if "mutated" in str(error) else str(error))
        else:
            ends.add("read")
    assert {"read", "StorageError"} <= ends <= {"read", "StorageError", "ArgumentError"}


@pytest.mark.processes
def test_a_file_with_more_keys_than_its_header_says_is_an_error(tmp_path: Path) -> None:
    path = make_lmdb(tmp_path / "a", many_values(500))
    data = bytearray(path.read_bytes())
    entries = (500).to_bytes(8, "little")
    for at in (found for found in range(len(data)) if data[found : found + 8] == entries):
        data[at : at + 8] = (499).to_bytes(8, "little")
    path.write_bytes(data)
    with pytest.raises(StorageError, match="more keys than its header says"):
        build_index(path, tmp_path / "a.txt")


@pytest.mark.processes
def test_the_reading_process_ends_when_the_iteration_is_closed(tmp_path: Path) -> None:
    path = make_lmdb(tmp_path / "a", many_values(20_000))
    before = psutil.Process().children()
    values = scan_lmdb(str(path), whole=[""])
    assert next(values) == (b"000000.jpg", image(0))
    (child,) = set(psutil.Process().children()) - set(before)
    values.close()
    assert not child.is_running()


# Reads


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make `root/a` with keys 0 to 49, and `secret` beside `root`."""
    (tmp_path / "root").mkdir()
    make_lmdb(tmp_path / "root" / "a", {str(n).encode(): image(n) for n in range(50)})
    make_lmdb(tmp_path / "secret", {b"0": b"secret"})
    return tmp_path / "root"


@pytest.mark.processes
def test_a_process_forked_while_a_thread_opens_a_file_can_open_it_too(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_opening = threading.Event()
    open_environment = lmdb.open

    def open_slowly(*args: object, **options: object) -> object:
        if not is_opening.is_set():  # the thread, not the child
            is_opening.set()
            wait_until(_fork_gate._entrance.locked, 5.0)  # until the fork waits for this thread
        return open_environment(*args, **options)

    monkeypatch.setattr(lmdb, "open", open_slowly)
    storage = LmdbStorage(root)
    with ThreadPoolExecutor(1) as other_thread:
        reading = other_thread.submit(storage.read, [LmdbValue("a", key=b"1")])
        assert is_opening.wait(20)
        check_in_a_child(lambda: storage.read([LmdbValue("a", key=b"2")]) == [image(2)])
        assert reading.result() == [image(1)]


@pytest.mark.slow
@pytest.mark.processes
def test_processes_forked_while_threads_read_can_read_too(root: Path) -> None:
    storage = LmdbStorage(root)
    is_over = threading.Event()

    def read_on() -> None:
        while not is_over.is_set():
            storage.read([LmdbValue("a", key=b"1")])

    with ThreadPoolExecutor(4) as threads:
        for _ in range(4):
            threads.submit(read_on)
        try:
            for _ in range(20):
                check_in_a_child(lambda: storage.read([LmdbValue("a", key=b"2")]) == [image(2)])
        finally:
            is_over.set()


def test_reading_writes_nothing(root: Path) -> None:
    (root / "a-lock").unlink()
    before = (root / "a").read_bytes()
    LmdbStorage(root).read([LmdbValue("a", key=b"1")])
    assert [path.name for path in root.iterdir()] == ["a"]
    assert (root / "a").read_bytes() == before


def test_a_truncated_file_is_an_error_and_does_not_kill_the_process(root: Path) -> None:
    data = (root / "a").read_bytes()
    for num_bytes in (0, 1, 100, 4096, 8192, 12288, len(data) // 2, len(data) - 4096, len(data) - 1):
        (root / "cut").write_bytes(data[:num_bytes])
        with pytest.raises(StorageError, match="cut: "):
            LmdbStorage(root).read([LmdbValue("cut", key=b"1")])


def test_a_truncated_file_is_the_same_error_when_it_is_read_again(root: Path) -> None:
    (root / "cut").write_bytes((root / "a").read_bytes()[:-4096])
    storage, errors = LmdbStorage(root), []
    for _ in range(3):
        with pytest.raises(StorageError, match="its pages take") as caught:
            storage.read([LmdbValue("cut", key=b"1")])
        errors.append(caught.value)  # keeps alive all that its traceback refers to
    (root / "cut").write_bytes((root / "a").read_bytes())
    assert storage.read([LmdbValue("cut", key=b"1")]) == [image(1)]


@pytest.mark.processes
def test_a_flipped_bit_in_the_meta_pages_never_gives_another_value(root: Path, tmp_path: Path) -> None:
    # The two meta pages say where all other pages are. LMDB has no checksums for them.
    data = (root / "a").read_bytes()
    script = (
        "import sys; from pathlib import Path; from mpload.errors import MploadError\n"
        "from mpload.storage.lmdb import LmdbStorage; from mpload.storage.ranges import LmdbValue\n"
        "for path in sys.argv[1:]:\n"
        "    try: sys.stdout.buffer.write(LmdbStorage(Path(path).parent).read([LmdbValue('x', key=b'3')])[0][-4:])\n"
        "    except MploadError: pass\n"
    )
    chance = random.Random(0)
    folders = []
    for number in range(40):
        mutated = bytearray(data)
        mutated[4096 * chance.randrange(2) + chance.randrange(24)] ^= 1 << chance.randrange(
            8
        )  # at the start of a meta page
        (tmp_path / f"m{number}").mkdir()
        folders.append(tmp_path / f"m{number}" / "x")
        folders[-1].write_bytes(mutated)
    ran = subprocess.run([sys.executable, "-c", script, *folders], capture_output=True, check=False, timeout=60)
    assert {ran.stdout[n : n + 4] for n in range(0, len(ran.stdout), 4)} <= {image(3)[-4:]}
    assert ran.returncode == 0, ran.stderr


def test_without_the_package_the_error_names_the_extra(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(ArgumentError, match=r"pip install 'mpload\[lmdb\]'"):
        LmdbStorage(root).read([LmdbValue("a", key=b"1")])


@pytest.mark.processes
def test_workers_of_a_loader_read_lmdb(tmp_path: Path) -> None:
    make_photo_tree(tmp_path / "photos", num_images=20, num_classes=2, seed=0)
    files = sorted((tmp_path / "photos").glob("*/*"))
    names = [str(path.relative_to(tmp_path / "photos")) for path in files]
    make_lmdb(tmp_path / "a", {name.encode(): path.read_bytes() for name, path in zip(names, files, strict=True)})
    made = build_index(tmp_path / "a", tmp_path / "a.txt")
    assert isinstance(made, Path)
    dataset = MPDataset(made, decode=RawBytes(), batch_size=4, shuffle=False, topology=Topology())
    with MPLoader(dataset, num_workers=2) as loader:
        found = [data for batch in loader for data in batch[0]]
    assert found == [path.read_bytes() for path in files]


@pytest.mark.processes
@pytest.mark.parametrize("action", ["raise", "skip"])
def test_truncating_a_file_while_workers_read_it_makes_samples_bad_and_does_not_end_training(
    tmp_path: Path, action: Literal["raise", "skip", "substitute"]
) -> None:
    path = make_lmdb(tmp_path / "a", many_values(400))
    made = build_index(path, tmp_path / "a.txt")
    assert isinstance(made, Path)
    policy = ErrorPolicy(action=action, report=tmp_path / "bad.jsonl", max_error_fraction=1.0)
    dataset = MPDataset(made, decode=RawBytes(), batch_size=200, topology=Topology(), on_error=policy)
    with MPLoader(dataset, num_workers=1, options=PoolOptions(max_restarts=1000)) as loader:
        assert len(list(loader)) == 2  # the file is mapped now
        data = path.read_bytes()
        leaf = data.rfind(b"000399.jpg") // 4096 * 4096
        os.truncate(path, leaf)
        if action == "raise":
            with pytest.raises(SampleError, match=r"000\d{3}\.jpg@a.*(SIGBUS|its pages take)"):
                list(loader)
            return
        found = []
        with warnings.catch_warnings(), suppress(SampleError):  # a chunk may be a whole batch, all of it bad
            warnings.simplefilter("ignore", MploadWarning)
            for batch in loader:
                found += batch
    bad = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert 0 < len(bad) < 400
    assert len(found) == 400 - len(bad)
    assert all(each["paths"][0].endswith("@a") for each in bad)
