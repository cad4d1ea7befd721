"""The same labelled photos as each kind of source."""

import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mpload import build_index, open_index
from tests.support.photos import make_photo_tree

__all__ = ["make_photos", "make_source", "make_tar", "samples"]


def make_photos(folder: Path) -> None:
    """Write `photos`, a folder of class folders, and its index `files.txt`."""
    make_photo_tree(folder / "photos", num_images=26, num_classes=3, seed=0)
    build_index(folder / "photos", folder / "files.txt")


def samples(folder: Path) -> list[tuple[str, bytes, int]]:
    """Return the key, bytes and label of each photo, in the order of the index."""
    index = open_index(folder / "files.txt")
    return [
        (f"{number:04d}", (folder / "photos" / str(record.cells[0])).read_bytes(), int(str(record.cells[1])))
        for number, record in enumerate(index)
    ]


def make_tar(folder: Path) -> Path:
    (folder / "tars").mkdir(exist_ok=True)
    photos = folder / "photos"
    with tarfile.open(folder / "tars" / "0.tar", "w") as tar:
        for (key, _, label), record in zip(samples(folder), open_index(folder / "files.txt"), strict=True):
            tar.add(photos / str(record.cells[0]), f"{key}.jpg")
            (folder / "cls").write_text(str(label))
            tar.add(folder / "cls", f"{key}.cls")
    return folder / "tars"


def make_source(kind: str, folder: Path) -> str | Path:
    """Write the samples as a source of the given kind, and return its path or URL."""
    source = folder / kind
    if kind == "lmdb":
        lmdb = pytest.importorskip("lmdb")
        with lmdb.open(str(source), map_size=1 << 28) as environment, environment.begin(write=True) as put:
            for key, data, label in samples(folder):
                put.put(f"{key}.jpg".encode(), data)
                put.put(f"{key}.cls".encode(), str(label).encode())
        return source
    if kind == "tfrecord":
        pytest.importorskip("crc32c")
        writer = pytest.importorskip("tfrecord").TFRecordWriter(str(source))
        for _, data, label in samples(folder):
            writer.write({"image/encoded": (data, "byte"), "image/class/label": (label, "int")})
        writer.close()
        return source
    if kind in {"arrow", "parquet"}:
        values = [{"bytes": data, "path": key} for key, data, _ in samples(folder)]
        column = pa.array(values, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
        table = pa.table({"image": column, "label": [label for _, _, label in samples(folder)]})
        if kind == "parquet":
            pq.write_table(table, source, row_group_size=10)
        else:
            with pa.OSFile(str(source), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
        return source
    if kind == "list":
        index = open_index(folder / "files.txt")
        lines = [f"{folder}/photos/{path},{label}\n" for path, label in (record.cells for record in index)]
        (folder / "list.csv").write_text("".join(lines))
        return folder / "list.csv"
    if kind == "s3":
        return "s3://photos/data/photos"
    return make_tar(folder) if "tar" in kind else folder / "photos"
