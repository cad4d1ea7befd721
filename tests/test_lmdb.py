"""LMDB: values are read by key in any process, its own library's files are indexed in place, broken ones are errors."""

import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mpload import MPDataset, MPLoader, RawBytes, Topology, build_index, open_index
from mpload.errors import ArgumentError, MploadWarning, OutsideRootError, StorageError
from mpload.storage.lmdb import LmdbStorage
from mpload.storage.ranges import LmdbRange
from tests.photos import make_photo_tree

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


@pytest.mark.parametrize("subdir", [True, False])
def test_images_and_labels_of_members_are_samples(tmp_path: Path, subdir: bool) -> None:
    values = {f"{n:03d}.jpg".encode(): image(n) for n in range(30)}
    values |= {f"{n:03d}.cls".encode(): str(n % 7).encode() for n in range(30)}
    make_lmdb(tmp_path / "a.lmdb", values, subdir=subdir)
    made = build_index(tmp_path / "a.lmdb", tmp_path / "a.txt")
    assert samples(made) == [(image(n), n % 7) for n in range(30)]


def test_keys_without_an_extension_are_samples_where_values_are_images(tmp_path: Path) -> None:
    make_lmdb(tmp_path / "a", {b"0001": image(1), b"0002": PNG, b"\xff\x00@%/x": image(3), b"num-samples": b"3"})
    with pytest.warns(MploadWarning, match="1 values that are no images"):
        made = build_index(tmp_path / "a", tmp_path / "a.txt")
    assert samples(made) == [image(1), PNG, image(3)]


def test_folders_in_keys_are_classes(tmp_path: Path) -> None:
    make_lmdb(tmp_path / "a", {b"dog/1.jpg": image(1), b"cat/x/2.jpg": image(2), b"dog/3.jpg": image(3)})
    made = build_index(tmp_path / "a", tmp_path / "a.txt")
    assert samples(made) == [(image(2), 0), (image(1), 1), (image(3), 1)]
    assert open_index(tmp_path / "a.txt").classes == ("cat", "dog")
    unlabelled = build_index(tmp_path / "a", tmp_path / "b.txt", columns="image:lmdb")
    assert samples(unlabelled) == [image(2), image(1), image(3)]


def test_several_files_and_several_images_a_sample(tmp_path: Path) -> None:
    for name in "ab":
        make_lmdb(tmp_path / name, {b"1.lr.png": PNG, b"1.hr.png": PNG + name.encode()})
    made = build_index([tmp_path / "a", tmp_path / "b"], tmp_path / "x.txt")
    assert samples(made) == [(PNG + b"a", PNG), (PNG + b"b", PNG)]


def test_a_database_of_no_images_says_so_and_runs_nothing(tmp_path: Path) -> None:
    make_lmdb(tmp_path / "a", {b"1": pickle.dumps({"x": 1}), b"2": b"text"})
    with pytest.raises(ArgumentError, match=r"no value is an image \(some look pickled, and mpload runs nothing"):
        build_index(tmp_path / "a", tmp_path / "a.txt")


# Reads


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """`root/a` with keys 0 to 49; `secret` beside root."""
    (tmp_path / "root").mkdir()
    make_lmdb(tmp_path / "root" / "a", {str(n).encode(): image(n) for n in range(50)})
    make_lmdb(tmp_path / "secret", {b"0": b"secret"})
    return tmp_path / "root"


def test_two_storages_and_many_threads_of_a_process_read_one_file(root: Path) -> None:
    storages = [LmdbStorage(root) for _ in range(2)]
    wrong: list[int] = []

    def read_all(storage: LmdbStorage) -> None:
        wrong.extend(n for n in range(50) if storage.read([LmdbRange("a", key=str(n).encode())]) != [image(n)])

    threads = [threading.Thread(target=read_all, args=(storage,)) for storage in storages * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not wrong


def test_a_forked_process_opens_files_anew(root: Path) -> None:
    storage = LmdbStorage(root)
    storage.read([LmdbRange("a", key=b"1")])
    for _ in range(2):
        child = os.fork()
        if not child:
            try:
                os._exit(0 if storage.read([LmdbRange("a", key=b"2")]) == [image(2)] else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert storage.read([LmdbRange("a", key=b"3")]) == [image(3)]
    assert pickle.loads(pickle.dumps(storage)).read([LmdbRange("a", key=b"4")]) == [image(4)]


def test_a_process_forked_while_a_thread_opens_a_file_opens_it_too(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_opening = threading.Event()
    open_environment = lmdb.open

    def open_slowly(*args: object, **options: object) -> object:
        is_opening.set()
        time.sleep(0.5)
        return open_environment(*args, **options)

    monkeypatch.setattr(lmdb, "open", open_slowly)
    storage = LmdbStorage(root)
    with ThreadPoolExecutor(1) as other_thread:
        reading = other_thread.submit(storage.read, [LmdbRange("a", key=b"1")])
        is_opening.wait()
        child = os.fork()
        if not child:
            signal.alarm(20)
            os._exit(0 if storage.read([LmdbRange("a", key=b"2")]) == [image(2)] else 1)
        assert reading.result() == [image(1)]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_processes_forked_while_threads_read_read_too(root: Path) -> None:
    storage = LmdbStorage(root)
    is_over = threading.Event()

    def read_on() -> None:
        while not is_over.is_set():
            storage.read([LmdbRange("a", key=b"1")])

    with ThreadPoolExecutor(4) as threads:
        for _ in range(4):
            threads.submit(read_on)
        for _ in range(20):
            child = os.fork()
            if not child:
                signal.alarm(20)
                os._exit(0 if storage.read([LmdbRange("a", key=b"2")]) == [image(2)] else 1)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if status:
                break
        is_over.set()
    assert not status


def test_reading_writes_nothing(root: Path) -> None:
    (root / "a-lock").unlink()
    before = (root / "a").read_bytes()
    LmdbStorage(root).read([LmdbRange("a", key=b"1")])
    assert [path.name for path in root.iterdir()] == ["a"]
    assert (root / "a").read_bytes() == before


@pytest.mark.parametrize(
    ("path", "key", "message"),
    [
        ("a", b"none", "has no key b'none'"),
        ("a", b"", "cannot be read"),
        ("a", b"x" * 2000, "cannot be read|has no key"),
        ("b", b"1", "b: No such file"),
        (".", b"1", r"leads to .* outside|Name the data file in it: .*/data\.mdb"),
        ("a\0", b"1", "is no path"),
    ],
)
def test_what_is_not_there_says_so(root: Path, path: str, key: bytes, message: str) -> None:
    with pytest.raises(StorageError, match=message):
        LmdbStorage(root).read([LmdbRange(path, key=key)])


def test_no_path_leads_out_of_the_root(root: Path) -> None:
    (root / "link").symlink_to("../secret")
    for path in ("../secret", f"{root.parent}/secret", "link"):
        with pytest.raises(OutsideRootError):
            LmdbStorage(root).read([LmdbRange(path, key=b"0")])
        assert LmdbStorage(root, allow_outside_root=True).read([LmdbRange(path, key=b"0")]) == [b"secret"]


def test_a_value_larger_than_allowed_is_refused(root: Path) -> None:
    with pytest.raises(StorageError, match=r"its 2,104 bytes exceed max_bytes=2,000"):
        LmdbStorage(root, max_bytes=2000).read([LmdbRange("a", key=b"10")])


def test_a_truncated_file_is_an_error_and_kills_nobody(root: Path) -> None:
    data = (root / "a").read_bytes()
    for num_bytes in (0, 1, 100, 4096, 8192, 12288, len(data) // 2, len(data) - 4096, len(data) - 1):
        (root / "cut").write_bytes(data[:num_bytes])
        with pytest.raises(StorageError, match="cut: "):
            LmdbStorage(root).read([LmdbRange("cut", key=b"1")])


def test_flipped_bytes_of_a_head_never_give_another_value(root: Path, tmp_path: Path) -> None:
    # Only of the two pages that say where all others are: LMDB itself has no checksums for these.
    data = (root / "a").read_bytes()
    script = (
        "import sys; from pathlib import Path; from mpload.errors import MploadError\n"
        "from mpload.storage.lmdb import LmdbStorage; from mpload.storage.ranges import LmdbRange\n"
        "for path in sys.argv[1:]:\n"
        "    try: sys.stdout.buffer.write(LmdbStorage(Path(path).parent).read([LmdbRange('x', key=b'3')])[0][-4:])\n"
        "    except MploadError: pass\n"
    )
    chance = random.Random(0)
    folders = []
    for number in range(40):
        mutated = bytearray(data)
        mutated[4096 * chance.randrange(2) + chance.randrange(24)] ^= 1 << chance.randrange(8)  # of the meta's start
        (tmp_path / f"m{number}").mkdir()
        folders.append(tmp_path / f"m{number}" / "x")
        folders[-1].write_bytes(mutated)
    ran = subprocess.run([sys.executable, "-c", script, *folders], capture_output=True, check=False, timeout=60)
    assert {ran.stdout[n : n + 4] for n in range(0, len(ran.stdout), 4)} <= {image(3)[-4:]}
    assert ran.returncode == 0, ran.stderr


def test_without_the_package_the_error_names_the_extra(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(ArgumentError, match=r"pip install 'mpload\[lmdb\]'"):
        LmdbStorage(root).read([LmdbRange("a", key=b"1")])


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
