"""Packing: shards contain the same samples as the index, and their bytes do not depend on workers or interruptions."""

import filecmp
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from mpload import ImageDecoder, MPDataset, RawBytes, Topology, build_index, open_index
from mpload.errors import ArgumentError, SampleError, StorageError
from mpload.tools.pack.lmdb_file import write_lmdb
from mpload.tools.pack.packing import PackOptions, ShardFormat, pack_index, verify_pack
from mpload.units import KIB, MIB
from tests.support.photos import make_photo_tree
from tests.support.transport_works import wait_until

SMALL = PackOptions(shard_bytes=40 * KIB)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("packing")
    make_photo_tree(root / "photos", num_images=40, num_classes=4, seed=0)
    made = build_index(root / "photos", root / "train.txt")
    assert isinstance(made, Path)
    return made


def samples(index: Path) -> list[tuple[bytes, int]]:
    return list(MPDataset(index, decode=RawBytes(), topology=Topology()))


def same_files(a: Path, b: Path) -> bool:
    names = sorted(path.name for path in a.iterdir() if path.suffix in {".tar", ".txt", ".json"})
    others = sorted(path.name for path in b.iterdir() if path.suffix in {".tar", ".txt", ".json"})
    return names == others and not any(filecmp.cmpfiles(a, b, names, shallow=False)[1:])


def test_a_pack_holds_the_same_samples_in_the_same_order(index: Path, tmp_path: Path) -> None:
    packed = pack_index(index, tmp_path / "pack", SMALL)
    assert samples(packed) == samples(index)
    assert open_index(packed).classes == open_index(index).classes
    assert len(list((tmp_path / "pack").glob("shard-*.tar"))) > 3
    assert not list((tmp_path / "pack").glob("*.lines"))


def test_a_shuffled_pack_holds_every_sample_once_in_another_order(index: Path, tmp_path: Path) -> None:
    packed = pack_index(index, tmp_path / "pack", PackOptions(shard_bytes=40 * KIB, shuffle_seed=1))
    assert sorted(samples(packed)) == sorted(samples(index))
    assert samples(packed) != samples(index)


@pytest.mark.processes
def test_shards_are_tar_files_in_the_layout_of_webdataset(index: Path, tmp_path: Path) -> None:
    pack_index(index, tmp_path / "pack", SMALL)
    there = samples(index)
    found: dict[str, dict[str, bytes]] = {}
    for shard in sorted((tmp_path / "pack").glob("*.tar")):
        subprocess.run(["tar", "tf", shard], check=True, stdout=subprocess.DEVNULL)
        with tarfile.open(shard) as tar:
            for member in tar:
                key, _, ending = member.name.partition(".")
                file = tar.extractfile(member)
                assert file is not None
                found.setdefault(key, {})[ending] = file.read()
    assert [(parts["jpg"], int(parts["cls"])) for _, parts in sorted(found.items())] == there
    again = build_index(tmp_path / "pack", tmp_path / "again.txt")
    assert isinstance(again, Path)
    assert samples(again) == there


@pytest.mark.slow
@pytest.mark.processes
def test_any_number_of_workers_writes_the_same_bytes(index: Path, tmp_path: Path) -> None:
    options = PackOptions(shard_bytes=20 * KIB, resize_short=48, shuffle_seed=3)
    alone, many = tmp_path / "alone", tmp_path / "many"
    pack_index(index, alone, options)
    pack_index(index, many, options, num_workers=3)
    assert same_files(alone, many)
    verify_pack(index, many, options, num_workers=2)


def test_large_images_are_shrunk_and_small_ones_stay_unchanged(index: Path, tmp_path: Path) -> None:
    packed = pack_index(index, tmp_path / "small", PackOptions(resize_short=32))
    for image, _ in MPDataset(packed, decode=ImageDecoder(), topology=Topology()):
        assert min(image.shape[1:]) == 32
    kept = pack_index(index, tmp_path / "kept", PackOptions(resize_short=100_000))
    assert samples(kept) == samples(index)


def test_raw_pixels_all_have_the_same_size(index: Path, tmp_path: Path) -> None:
    packed = pack_index(index, tmp_path / "raw", PackOptions(decode=24))
    for data, _ in samples(packed):
        assert data.startswith(b"\x93NUMPY")
        assert np.frombuffer(data[-24 * 24 * 3 :], np.uint8).size == 24 * 24 * 3


@pytest.mark.slow
@pytest.mark.processes
def test_a_killed_pack_continues_to_the_same_bytes(index: Path, tmp_path: Path) -> None:
    listed = tmp_path / "long.txt"
    file = next((index.parent / "photos").glob("*/*"))
    listed.write_text(f"{file} 0\n" * 800)
    command = [sys.executable, "-m", "mpload", "pack", str(listed), "--size", "100KiB", "--resize-short", "40", "-o"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run([*command, str(whole)], check=True, stdout=subprocess.DEVNULL, timeout=100)
    was_killed = False
    for begun in (".shard-*.tmp", "shard-*.tar"):  # killed in the first shard, and after some shards
        with subprocess.Popen(
            [*command, str(killed), "--workers", "2"], stdout=subprocess.DEVNULL, start_new_session=True
        ) as pack:
            assert wait_until(lambda begun=begun: any(killed.glob(begun)))  # type: ignore[misc]
            os.killpg(pack.pid, signal.SIGKILL)
        was_killed |= pack.returncode == -signal.SIGKILL
    assert was_killed
    subprocess.run([*command, str(killed)], check=True, stdout=subprocess.DEVNULL, timeout=100)
    assert same_files(whole, killed)
    assert not list(killed.glob("*.tmp"))


@pytest.mark.processes
@pytest.mark.parametrize("num_kills", [10, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ShardFormat)
def test_packs_killed_at_random_have_no_wrong_byte_and_continue(tmp_path: Path, kind: str, num_kills: int) -> None:
    if kind == ShardFormat.LMDB:
        pytest.importorskip("lmdb")
    command = [sys.executable, "-m", "tests.support.pack_kills", str(tmp_path), kind, str(num_kills)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=115)
    found = json.loads(ran.stdout)
    assert (found["different"], found["failed"]) == (0, 0), ran.stderr
    assert found["kills"] == num_kills
    assert found["finished"]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_exit_at_once_when_a_signal_ends_the_pack(index: Path, tmp_path: Path, number: int) -> None:
    text = index.read_text()
    long = index.with_name("long.txt")
    long.write_text(text + text[text.index("\n", text.rindex("#")) + 1 :] * 100)
    out = tmp_path / "pack"
    options = ["--resize-short", "64", "--size", "1MiB", "--workers", "2"]  # a shard takes seconds
    command = [sys.executable, "-m", "mpload", "pack", str(long), "-o", str(out), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as pack:
        assert wait_until(lambda: any(out.glob(".shard-*.tmp")))
        children = psutil.Process(pack.pid).children()
        if number == signal.SIGINT:
            os.killpg(pack.pid, number)  # as a terminal does
        else:
            os.kill(pack.pid, number)
        errors = pack.communicate(timeout=60)[1]
    if number == signal.SIGINT:
        assert (pack.returncode, errors) == (130, "mpload: interrupted\n")
    assert len(children) == 3  # two workers, and the resource tracker
    assert wait_until(lambda: not any(child.is_running() for child in children))
    assert not any(out.glob("shard-*.tar"))


UNGUARDED = """
import sys
import mpload
try:
    mpload.pack_index(sys.argv[1], sys.argv[2], num_workers=2)
except mpload.MploadError as error:
    print(f"{type(error).__name__}: {error}")
"""


@pytest.mark.slow
@pytest.mark.processes
def test_a_script_without_a_main_guard_gets_an_error_that_shows_it(index: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(UNGUARDED)
    command = [sys.executable, *map(str, (tmp_path / "script.py", index, tmp_path / "pack"))]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    told = ran.stdout.splitlines()
    assert len(told) >= 1
    assert all(line.startswith("ArgumentError: workers cannot start") for line in told)
    assert all('if __name__ == "__main__":' in line for line in told)
    guarded = "if __name__ == '__main__':\n" + "".join(f"    {line}\n" for line in UNGUARDED.splitlines())
    (tmp_path / "script.py").write_text(guarded)
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout == ""
    assert open_index(tmp_path / "pack" / "index.txt")


LMDB = PackOptions(shard_bytes=40 * KIB, format=ShardFormat.LMDB)


@pytest.mark.slow
@pytest.mark.processes
def test_an_lmdb_pack_contains_the_same_samples_and_lmdb_can_read_it(index: Path, tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    packed = pack_index(index, tmp_path / "pack", LMDB)
    assert samples(packed) == samples(index)
    files = sorted((tmp_path / "pack").glob("shard-*.lmdb"))
    assert len(files) > 3
    found: list[tuple[bytes, bytes]] = []
    for file in files:
        with (
            lmdb.open(str(file), subdir=False, readonly=True, lock=False) as environment,
            environment.begin() as values,
        ):
            found.extend(values.cursor())
    there = samples(index)
    assert [value for key, value in found if key.endswith(b".jpg")] == [image for image, _ in there]
    assert [int(value) for key, value in found if key.endswith(b".cls")] == [label for _, label in there]
    again = build_index(files, tmp_path / "again.txt")
    assert isinstance(again, Path)
    assert samples(again) == there


@pytest.mark.slow
def test_any_number_of_workers_makes_the_same_lmdb_and_a_flipped_bit_is_found(index: Path, tmp_path: Path) -> None:
    pytest.importorskip("lmdb")
    for name, num_workers in (("alone", 1), ("many", 3)):
        pack_index(index, tmp_path / name, LMDB, num_workers=num_workers)
        verify_pack(index, tmp_path / name, LMDB)
    files = sorted(path.name for path in (tmp_path / "alone").glob("*.lmdb"))
    assert not any(filecmp.cmpfiles(tmp_path / "alone", tmp_path / "many", files, shallow=False)[1:])
    shard = tmp_path / "many" / files[1]
    data = bytearray(shard.read_bytes())
    data[data.index(b"\xff\xd8\xff") + 600] ^= 1
    shard.write_bytes(data)
    with pytest.raises(StorageError, match=rf"{files[1]}: differs from the data of the index, at key"):
        verify_pack(index, tmp_path / "many", LMDB)


def test_an_lmdb_grows_beyond_its_first_map_and_requires_ascending_keys(tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    value = bytes(range(256)) * 4096
    write_lmdb(tmp_path / "x", ((b"%03d" % number, value) for number in range(100)))  # 100 MiB
    with lmdb.open(str(tmp_path / "x"), subdir=False, readonly=True, lock=False) as environment:
        assert environment.stat()["entries"] == 100
        with environment.begin() as values:
            assert all(values.get(b"%03d" % number) == value for number in range(100))
    with pytest.raises(StorageError, match="not in ascending order"):
        write_lmdb(tmp_path / "y", [(b"2", b""), (b"1", b"")])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ShardFormat)
def test_four_times_the_data_takes_no_more_memory(tmp_path: Path, kind: str) -> None:
    if kind == ShardFormat.LMDB:
        pytest.importorskip("lmdb")
    np.save(tmp_path / "40k.npy", np.frombuffer(random.Random(0).randbytes(40_000), np.uint8))
    script = (
        "import sys\n"
        "from mpload.tools.pack.packing import PackOptions, ShardFormat, pack_index\n"
        "pack_index(*sys.argv[1:3], PackOptions(format=ShardFormat(sys.argv[3])))\n"
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))\n"
    )

    def peak_bytes(count: int) -> int:
        listed, out = tmp_path / f"{count}.txt", tmp_path / f"{count}"
        listed.write_text("40k.npy 0\n" * count)
        ran = subprocess.run(
            [sys.executable, "-c", script, listed, out, kind], check=True, capture_output=True, text=True, timeout=100
        )
        assert len(list(out.glob("shard-*"))) == 1
        shutil.rmtree(out)
        return int(ran.stdout) * KIB  # ru_maxrss would include the memory of this process

    few, many = peak_bytes(1000), peak_bytes(4000)
    assert many < few + 10 * MIB, (few, many)


@pytest.mark.slow
@pytest.mark.processes
def test_webdataset_and_mpload_read_the_shards_of_each_other(index: Path, tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    pack_index(index, tmp_path / "pack", SMALL)
    script = (  # in a process of its own, because it leaves files open
        "import pickle, sys, webdataset\n"
        "read = webdataset.WebDataset(sys.argv[1:], shardshuffle=False)\n"
        "found = [(sample['jpg'], int(sample['cls'])) for sample in read]\n"
        "sys.stdout.buffer.write(pickle.dumps(found))\n"
    )
    shards = sorted((tmp_path / "pack").glob("*.tar"))
    ran = subprocess.run([sys.executable, "-c", script, *shards], check=True, capture_output=True, timeout=100)
    assert pickle.loads(ran.stdout) == samples(index)
    with webdataset.TarWriter(str(tmp_path / "theirs.tar")) as writer:
        for number, (image, label) in enumerate(samples(index)):
            writer.write({"__key__": f"{number:06d}", "jpg": image, "cls": label})
    made = build_index(tmp_path / "theirs.tar", tmp_path / "theirs.txt")
    assert isinstance(made, Path)
    assert samples(made) == samples(index)


def test_a_flipped_byte_is_found(index: Path, tmp_path: Path) -> None:
    pack_index(index, tmp_path / "pack", SMALL)
    verify_pack(index, tmp_path / "pack", SMALL)
    shard = tmp_path / "pack" / "shard-000001.tar"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(StorageError, match=r"shard-000001\.tar: differs from the data of the index"):
        verify_pack(index, tmp_path / "pack", SMALL)


def test_a_folder_with_other_contents_is_refused(index: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ArgumentError, match="is not empty and contains no pack"):
        pack_index(index, tmp_path)
    pack_index(index, tmp_path / "pack", SMALL)
    with pytest.raises(ArgumentError, match="contains another pack: shuffle_seed differ"):
        pack_index(index, tmp_path / "pack", PackOptions(shard_bytes=40 * KIB, shuffle_seed=1))
    with pytest.raises(ArgumentError, match="contains no finished pack"):
        verify_pack(index, tmp_path / "none")


def test_a_pack_killed_while_writing_its_manifest_continues(index: Path, tmp_path: Path) -> None:
    (tmp_path / ".pack.json.0123abcd.tmp").write_text("{")
    assert samples(pack_index(index, tmp_path, SMALL)) == samples(index)
    assert not list(tmp_path.glob(".*.tmp"))


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_broken_image_is_named_and_finished_shards_are_kept(index: Path, tmp_path: Path, num_workers: int) -> None:
    shutil.copytree(index.parent / "photos", tmp_path / "photos")
    broken = max((tmp_path / "photos").glob("*/*"))
    broken.write_bytes(b"no image")
    made = build_index(tmp_path / "photos", tmp_path / "train.txt")
    options = PackOptions(shard_bytes=20 * KIB, resize_short=32)
    with pytest.raises(SampleError, match=r"train\.txt:\d+: .*not an image"):
        pack_index(made, tmp_path / "pack", options, num_workers=num_workers)
    num_kept = len(list((tmp_path / "pack").glob("*.lines")))
    assert num_kept
    broken.write_bytes(next((tmp_path / "photos").glob("*/*")).read_bytes())
    packed = pack_index(made, tmp_path / "pack", options)
    assert len(open_index(packed)) == 40


def test_two_packs_into_one_folder_do_not_mix(index: Path, tmp_path: Path) -> None:
    from filelock import FileLock

    (tmp_path / "pack").mkdir()
    with (
        FileLock(tmp_path / "pack" / ".lock"),
        pytest.raises(StorageError, match="another process is packing"),
    ):
        pack_index(index, tmp_path / "pack", SMALL)


@pytest.mark.processes
def test_a_full_disk_is_reported_in_one_clear_line(index: Path, tmp_path: Path) -> None:
    limited = "ulimit -f 8; trap '' XFSZ; exec "
    command = f"{limited}{sys.executable} -m mpload pack {index} -o {tmp_path / 'pack'} --size 1MiB"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 1
    assert "cannot be written: File too large" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert not list((tmp_path / "pack").glob("*.tar"))


def test_the_manifest_describes_the_shards(index: Path, tmp_path: Path) -> None:
    pack_index(index, tmp_path / "pack", SMALL)
    facts = json.loads((tmp_path / "pack" / "pack.json").read_text())
    assert facts["index"] == open_index(index).fingerprint
    assert facts["shard_bytes"] == 40 * KIB


@pytest.mark.parametrize(
    "wrong",
    [
        {"shard_bytes": 0},
        {"resize_short": 0},
        {"quality": 101},
        {"decode": 8, "resize_short": 8},
        {"format": "zip"},
        {"jpeg": "progressive"},
    ],
)
def test_illegal_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=r"must be|give only one of them"):
        PackOptions(**wrong)


def test_a_format_can_be_given_by_its_name() -> None:
    for name, member in (("lmdb", ShardFormat.LMDB), ("arrays", ShardFormat.ARRAYS)):
        named: Any = name
        assert PackOptions(format=named).format is member
