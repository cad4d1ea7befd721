"""Parquet and Arrow files, as Hugging Face writes them: indexed in place and read in any order; damage is an error."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mpload import BlockShuffle, MPDataset, MPLoader, RawBytes, Topology, build_index, open_index
from mpload.errors import ArgumentError, MploadError
from mpload.storage.parquet import ParquetStorage
from mpload.storage.ranges import RowValue

FEATURES = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog", "owl"], "_type": "ClassLabel"}}


def image(number: int) -> bytes:
    return b"\xff\xd8\xff\xe0" + number.to_bytes(4, "little") * (number % 50 * 20)


def make_table(first: int = 0, num: int = 230, **more: Any) -> pa.Table:
    values = [{"bytes": image(n), "path": f"{n}.jpg"} for n in range(first, first + num)]
    columns = {
        "image": pa.array(values, pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        "label": pa.array([n % 3 for n in range(first, first + num)], pa.int64()),
    }
    table = pa.table({**columns, **more})
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": FEATURES}})})


def write_arrow(path: Path, table: pa.Table, *, is_stream: bool = True, compression: Any = None) -> Path:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    new = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=100)
    return path


def samples(index: Path | tuple[Path, ...]) -> list[object]:
    assert isinstance(index, Path)
    return list(MPDataset(index, decode=RawBytes(), topology=Topology()))


@pytest.mark.parametrize("compression", ["snappy", "zstd", "none"])
def test_parquet_is_read_in_place(tmp_path: Path, compression: Any) -> None:
    for first in (0, 230):
        pq.write_table(
            make_table(first), tmp_path / f"{first:03d}.parquet", row_group_size=100, compression=compression
        )
    made = build_index([tmp_path / "000.parquet", tmp_path / "230.parquet"], tmp_path / "x.txt")
    assert samples(made) == [(image(n), n % 3) for n in range(460)]
    index = open_index(tmp_path / "x.txt")
    assert index.classes == ("cat", "dog", "owl")
    assert str(index[101].cells[0]) == "1:1:image.bytes@000.parquet"


@pytest.mark.parametrize("is_stream", [True, False])
def test_images_in_arrow_files_are_indexed_as_spans(tmp_path: Path, is_stream: bool) -> None:
    file = write_arrow(tmp_path / "a.arrow", make_table(), is_stream=is_stream)
    made = build_index(file, tmp_path / "x.txt")
    assert samples(made) == [(image(n), n % 3) for n in range(230)]
    assert open_index(tmp_path / "x.txt").columns[0].type.value == "span"


def test_binary_columns_several_images_and_no_label(tmp_path: Path) -> None:
    table = pa.table({"a b": [image(1), image(2)], "large": pa.array([image(3), image(4)], pa.large_binary())})
    pq.write_table(table, tmp_path / "a.parquet")
    write_arrow(tmp_path / "a.arrow", table)
    for name in ("a.parquet", "a.arrow"):
        made = build_index(tmp_path / name, tmp_path / "x.txt")
        assert samples(made) == [(image(1), image(3)), (image(2), image(4))]
        assert [column.name for column in open_index(tmp_path / "x.txt").columns] == ["a_b", "large"]


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_compressed_arrow_file_is_refused(tmp_path: Path, is_stream: bool) -> None:
    file = write_arrow(tmp_path / "a.arrow", make_table(), is_stream=is_stream, compression="lz4")
    with pytest.raises(ArgumentError, match=r"a\.arrow: is compressed.*as Parquet"):
        build_index(file, tmp_path / "x.txt")


def test_a_row_without_an_image_or_a_label_is_an_error_that_names_it(tmp_path: Path) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    no_image = pa.table({"image": pa.array([{"bytes": image(1), "path": "a"}, {"bytes": None, "path": "b"}], kind)})
    write_arrow(tmp_path / "a.arrow", no_image)
    with pytest.raises(ArgumentError, match=r"row 1 has no value in column 'image'\. If images are given as paths"):
        build_index(tmp_path / "a.arrow", tmp_path / "x.txt")
    pq.write_table(pa.table({"image": [image(1), image(2)], "label": [1, None]}), tmp_path / "b.parquet")
    with pytest.raises(ArgumentError, match=r"row 1 has no value in column 'label'"):
        build_index(tmp_path / "b.parquet", tmp_path / "x.txt")


def with_paths(*are_paths: bool) -> pa.Table:
    """Return a table in which some images are given as paths, as Hugging Face does."""
    values = [{"bytes": None if is_path else b"\xff\xd8" * 50_000, "path": "a.jpg"} for is_path in are_paths]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return pa.table({"image": pa.array(values, kind), "view": [b"x"] * len(values)})


@pytest.mark.parametrize("has_statistics", [True, False])
def test_images_that_are_paths_are_an_error_when_the_table_is_indexed(tmp_path: Path, has_statistics: bool) -> None:
    table = with_paths(True, True, True)
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2, write_statistics=has_statistics)
    with pytest.raises(ArgumentError, match=r"a\.parquet: row 0 has no value in column 'image'.* mpload index FOLDER"):
        build_index(tmp_path / "a.parquet", tmp_path / "x.txt")
    made = build_index(tmp_path / "a.parquet", tmp_path / "x.txt", columns="view:row")  # the other column is whole
    assert samples(made) == [b"x"] * 3


def test_the_first_row_without_an_image_is_named_and_no_image_is_read_of_whole_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[list[int]] = []
    read = pq.ParquetFile.iter_batches

    def noted(self: pq.ParquetFile, *args: Any, **options: Any) -> Any:
        groups.append(options["row_groups"])
        return read(self, *args, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noted)
    are_paths = [False] * 150
    pq.write_table(with_paths(*are_paths), tmp_path / "a.parquet", row_group_size=70)
    build_index(tmp_path / "a.parquet", tmp_path / "x.txt")
    assert not groups
    are_paths[137] = True
    pq.write_table(with_paths(*are_paths), tmp_path / "a.parquet", row_group_size=70)
    with pytest.raises(ArgumentError, match="row 137 has no value in column 'image'"):
        build_index(tmp_path / "a.parquet", tmp_path / "x.txt")
    assert groups == [[1]]


def test_a_missing_image_of_a_table_without_statistics_is_an_error_when_it_is_read(tmp_path: Path) -> None:
    pq.write_table(with_paths(False, True), tmp_path / "a.parquet", write_statistics=False, compression="none")
    made = build_index(tmp_path / "a.parquet", tmp_path / "x.txt")
    with pytest.raises(
        MploadError, match=r"row 1 of row group 0 has no value in 'image\.bytes'\. If images .* paths of files, index"
    ):
        samples(made)


def test_tables_with_different_columns_are_refused(tmp_path: Path) -> None:
    pq.write_table(make_table(), tmp_path / "a.parquet")
    pq.write_table(pa.table({"image": [image(1)]}), tmp_path / "b.parquet")
    pq.write_table(pa.table({"text": ["x"], "n": [1]}), tmp_path / "c.parquet")
    with pytest.raises(ArgumentError, match=r"b\.parquet: has other columns than .*a\.parquet"):
        build_index([tmp_path / "a.parquet", tmp_path / "b.parquet"], tmp_path / "x.txt")
    with pytest.raises(ArgumentError, match=r"no column of images, but 'text' \(string\), 'n' \(int64\)"):
        build_index(tmp_path / "c.parquet", tmp_path / "x.txt")


TABLES = ["a.parquet", "stream.arrow", "file.arrow"]


def table_bytes(folder: Path, name: str) -> bytes:
    """Write a small table as the kind of file that `name` says, and return the file's bytes."""
    table = make_table(num=60)
    if name == "a.parquet":
        pq.write_table(table, folder / name, row_group_size=20)
    else:
        write_arrow(folder / name, table, is_stream=name == "stream.arrow")
    return (folder / name).read_bytes()


@pytest.mark.parametrize("name", TABLES)
def test_truncated_files_are_errors(tmp_path: Path, name: str) -> None:
    whole = table_bytes(tmp_path, name)
    broken = tmp_path / f"broken-{name}"
    for num_bytes in random.Random(0).sample(range(8, len(whole)), 40):
        broken.write_bytes(whole[:num_bytes])
        with pytest.raises(MploadError, match="broken-"):
            samples(build_index(broken, tmp_path / "x.txt"))


@pytest.mark.slow
@pytest.mark.processes
def test_files_with_flipped_bytes_are_read_or_errors_and_never_kill_the_process(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom mpload import MPDataset, RawBytes, Topology, build_index\n"
        "from mpload.errors import MploadError\n"
        "for number, path in enumerate(sys.argv[1:]):\n"
        "    try: list(MPDataset(build_index(path, f'{path}.txt'), decode=RawBytes(), topology=Topology()))\n"
        "    except MploadError as error: print(str(error).splitlines()[0][-200:])\n"
    )
    chance = random.Random(0)
    paths = []
    for name in TABLES:
        whole = table_bytes(tmp_path, name)
        for number in range(60):
            data = bytearray(whole)
            for _ in range(chance.randrange(1, 4)):
                near_end = len(data) - 1 - chance.randrange(min(600, len(data)))
                data[chance.choice([chance.randrange(len(data)), near_end])] = chance.randrange(256)
            paths.append(tmp_path / f"flipped-{number}-{name}")
            paths[-1].write_bytes(data)
    # in one other process, which a bug in the C++ library may kill, and which takes seconds to start
    ran = subprocess.run([sys.executable, "-c", script, *paths], capture_output=True, check=False, timeout=100)
    assert ran.returncode == 0, ran.stderr.decode()[-3000:]


# Reads


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make `root/a.parquet` with three row groups, and `b.parquet` beside `root`."""
    (tmp_path / "root").mkdir()
    pq.write_table(make_table(), tmp_path / "root" / "a.parquet", row_group_size=100)
    pq.write_table(make_table(), tmp_path / "b.parquet")
    return tmp_path / "root"


def at(number: int, path: str = "a.parquet", column: str = "image.bytes") -> RowValue:
    return RowValue(path, row_group=number // 100, row=number % 100, column=column)


def test_rows_are_read_in_any_order_however_many_row_groups_are_kept(root: Path) -> None:
    numbers = random.Random(0).choices(range(230), k=100)
    for kept_bytes in (1, 1 << 30):
        storage = ParquetStorage(root, kept_bytes=kept_bytes)
        assert storage.read([at(n) for n in numbers]) == [image(n) for n in numbers]
        assert len(storage._groups) == (1 if kept_bytes == 1 else 3)


@pytest.mark.slow
@pytest.mark.processes
def test_workers_read_parquet_in_blocks_and_do_not_import_pyarrow_for_other_files(root: Path, tmp_path: Path) -> None:
    made = build_index(root / "a.parquet", tmp_path / "x.txt")
    assert isinstance(made, Path)
    dataset = MPDataset(
        made,
        decode=RawBytes(),
        batch_size=23,
        shuffle=BlockShuffle(block_samples=50, window_blocks=2),
        topology=Topology(),
    )
    with MPLoader(dataset, num_workers=2) as loader:
        found = sorted(data for batch in loader for data in batch[0])
    assert found == sorted(image(n) for n in range(230))
    program = "import sys, mpload.samples.index_work, mpload.storage.opening; print('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"False\n"


@pytest.mark.processes
def test_workers_that_are_forked_share_pyarrow(root: Path, tmp_path: Path) -> None:
    made = build_index(root / "a.parquet", tmp_path / "x.txt")
    program = (
        "import sys, mpload; mpload.MPDataset(sys.argv[1], decode=mpload.RawBytes()); print('pyarrow' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program, str(made)], capture_output=True, check=True)
    assert ran.stdout == b"True\n"


# Memory


@pytest.fixture(scope="module")
def large_groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of a file with 12 row groups of 8 MB."""
    folder = tmp_path_factory.mktemp("groups")
    values = [random.Random(n).randbytes(1 << 20) for n in range(96)]
    pq.write_table(pa.table({"image": values}), folder / "a.parquet", row_group_size=8, compression="none")
    made = build_index(folder / "a.parquet", folder / "x.txt")
    assert isinstance(made, Path)
    return made


def raw(index: Path) -> MPDataset[Any]:
    return MPDataset(index, decode=RawBytes(), batch_size=1, shuffle=True, topology=Topology())


@pytest.mark.slow
@pytest.mark.processes
def test_row_groups_count_towards_the_budget(large_groups: Path) -> None:
    with pytest.raises(ArgumentError, match=r"147\.\d MiB for the row groups .* smaller row groups") as raised:
        MPLoader(raw(large_groups), num_workers=3, memory_budget="150MiB")
    (suggested,) = re.findall(r'Pass memory_budget="(\d+)MiB" or more', str(raised.value))
    with pytest.raises(ArgumentError, match="too small"):
        MPLoader(raw(large_groups), num_workers=3, memory_budget=f"{int(suggested) - 1}MiB")
    with MPLoader(raw(large_groups), num_workers=3, memory_budget=f"{suggested}MiB") as loader:
        assert len(next(iter(loader))) == 1


@pytest.mark.processes
def test_workers_are_chosen_so_that_their_row_groups_fit(large_groups: Path) -> None:
    with MPLoader(raw(large_groups), num_workers="auto", memory_budget="150MiB") as loader:
        assert loader.num_workers <= 2


@pytest.mark.slow
@pytest.mark.processes
def test_no_more_memory_is_used_than_row_groups_are_allowed(large_groups: Path) -> None:
    script = """
import sys, pathlib, random
from mpload.memory.usage import anonymous_bytes
from mpload.storage.parquet import ParquetStorage
from mpload.storage.ranges import RowValue
import os, pyarrow, pyarrow.parquet
storage = ParquetStorage(pathlib.Path(sys.argv[1]), kept_bytes=int(sys.argv[2]))
most, start = 0, anonymous_bytes(os.getpid())
for group in [*range(12)] * 3:
    storage.read([RowValue("a.parquet", row_group=group, row=random.randrange(8), column="image")])
    most = max(most, anonymous_bytes(os.getpid()) - start)
print(most, pyarrow.default_memory_pool().max_memory())
"""
    for kept_bytes in (25 << 20, 50 << 20):
        command = [sys.executable, "-c", script, str(large_groups.parent), str(kept_bytes)]
        ran = subprocess.run(command, capture_output=True, check=True, text=True)
        assert max(map(int, ran.stdout.split())) < kept_bytes + (4 << 20)
