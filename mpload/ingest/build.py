"""`build_index`: writes the text and the sidecar of an index from a source."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import overload

from mpload.errors import warn
from mpload.index.columns import parse_columns
from mpload.index.opening import open_index
from mpload.index.publishing import check_local, check_out
from mpload.index.sidecar import Progress
from mpload.ingest.class_names import class_names, with_labels
from mpload.ingest.cluster import Cluster
from mpload.ingest.folder_options import FolderOptions
from mpload.ingest.image_sizes import measure_sizes, refuse_sizes
from mpload.ingest.pixel_sizes import add_pixel_sizes, refuse_pixel_sizes
from mpload.ingest.sources import SourcePath, is_url, open_source, source_paths
from mpload.ingest.splitting import Split
from mpload.ingest.web_names import with_warning_of_escapes
from mpload.ingest.writing import write_texts

__all__ = ["build_index"]


@overload
def build_index(
    source: SourcePath | Sequence[SourcePath],
    out: str | os.PathLike[str],
    *,
    columns: str | None = None,
    root: str | os.PathLike[str] | None = None,
    split: None = None,
    folder: FolderOptions = FolderOptions(),
    relative: bool = False,
    with_sizes: bool = False,
    with_image_sizes: bool = False,
    classes_from: str | None = None,
    num_workers: int = 8,
    on: Cluster | None = None,
    progress: Progress | None = None,
) -> Path: ...


@overload
def build_index(
    source: SourcePath | Sequence[SourcePath],
    out: str | os.PathLike[str],
    *,
    columns: str | None = None,
    root: str | os.PathLike[str] | None = None,
    split: Mapping[str, float] | Sequence[float],
    folder: FolderOptions = FolderOptions(),
    relative: bool = False,
    with_sizes: bool = False,
    with_image_sizes: bool = False,
    classes_from: str | None = None,
    num_workers: int = 8,
    on: Cluster | None = None,
    progress: Progress | None = None,
) -> tuple[Path, ...]: ...


def build_index(
    source: SourcePath | Sequence[SourcePath],
    out: str | os.PathLike[str],
    *,
    columns: str | None = None,
    root: str | os.PathLike[str] | None = None,
    split: Mapping[str, float] | Sequence[float] | None = None,
    folder: FolderOptions = FolderOptions(),
    relative: bool = False,
    with_sizes: bool = False,
    with_image_sizes: bool = False,
    classes_from: str | None = None,
    num_workers: int = 8,
    on: Cluster | None = None,
    progress: Progress | None = None,
) -> Path | tuple[Path, ...]:
    """Write an index of `source` to `out`, with its sidecar.

    `source` is one of:

    - a folder of class folders. Order and class numbers are those of torchvision's ImageFolder, and the names of the
      classes are stored in the index;
    - a folder of images without class folders, which gives no labels. If an image has a .txt file of the same name,
      all must have one, and these are column `caption`;
    - a folder of two folders, `images` and `masks`, with files of the same names;
    - a JSON file of COCO, a folder of Pascal VOC or one of its sets (`ImageSets/Main/train.txt`), or a folder in YOLO's
      layout, `images` and `labels`. The objects of an image are column `boxes`, for `Boxes("xywh")`, or
      `Boxes("yolo")` for YOLO's;
    - a list or CSV of `path label` lines, or an index, whose paths are kept unchanged;
    - a tar file, a folder of tar files, or a sequence of tar files. Samples are grouped as in WebDataset: texts, JSON
      and arrays beside an image are columns too;
    - an LMDB database, a TFRecord, Arrow, Parquet or HDF5 file, a sequence of files of one of these kinds, or a folder
      of Arrow or Parquet files. Texts, numbers and lists in tables are columns too, lists as JSON;
    - a URL such as `s3://bucket/prefix`, which is treated like a folder.

    Tar files, databases and tables are indexed in place: nothing is extracted or copied.

    Args:
        source: a path, a URL, or a sequence of paths of shards.
        out: path of the index text. It appears only when it is complete, and replaces an older one.
        columns: for a list, the names and types of its columns, such as `"image:path label:int"`. For a folder or
            shards, other names for the columns. `"image:path"` with a folder indexes all images below it without
            labels. For tar files, databases and tables, it can also be a selection of the columns.
        root: the folder or URL that the paths are relative to. For a list or an index, it replaces the declared root
            (default: `#root`, or else the folder of the list). For a folder or shards, it is a parent folder, or the
            place where they will be read from.
        split: parts and their fractions. With `out="data.txt"`, `{"train": 0.9, "val": 0.1}` writes `data.train.txt`
            and `data.val.txt`, and `[0.9, 0.1]` writes `data.0.txt` and `data.1.txt`. A hash of a sample's first path
            selects its part, so samples stay in their part when others are added or the order changes.
        folder: which files count as images in a folder or shard, and which files belong to them.
        relative: write `#root` relative to the index's folder, so that both can be moved together.
        with_sizes: also measure the size of each sample, which takes a `stat` call per file.
        with_image_sizes: also read the header of each image, and add the columns `width:int` and `height:int`, as
            needed by `Buckets(by="aspect")`: the size in pixels after the EXIF orientation was applied, or 0 if an
            image cannot be read. For files and tar files.
        classes_from: a column that names the class of each sample. It becomes `label`. The names are the texts of its
            cells, numbered in alphabetical order like class folders: `"10"` comes before `"9"`. The source is read
            twice. A column of class labels in a table of Hugging Face keeps its own names and numbers.
        num_workers: number of threads that measure sizes.
        on: the machines that list the objects below a URL, such as a `RayCluster`; None means this one. They share the
            folder of `out`, and have the provider's environment variables or roles. The index does not depend on it.
        progress: called with the number of samples written so far.

    Returns:
        The path of the index or, with `split`, the paths of all parts.

    Raises:
        ArgumentError: the source contains no images or breaks a rule, or `out` cannot be the path of an index.
        IndexFormatError: a line of a list breaks the format.
        StorageError: a file cannot be read or written.

    Warns:
        MploadWarning: something in the source was left out of the index, such as links, hidden files or files with
            other extensions. Or several columns number classes, and the first of them was chosen. Or a web server at
            `root` would take names of files for escaped ones.

    Memory: constant, about 100 MB in addition to imports, for any number of samples. If the names in a folder do not
    fit in memory, they are sorted on disk, in the folder of `out`.
    """
    check_local(out)
    target = Path(os.path.normpath(Path(out).expanduser().absolute()))
    parts = None if split is None else Split.of(split)
    for path in (target,) if parts is None else parts.paths(target):
        check_out(path, source_paths(source))
    opened = partial(
        open_source, source, columns=columns, root=root, folder=folder, out=target, on=on, classes_from=classes_from
    )
    if is_url(source):  # before it is listed
        _refuse_sizes_of_objects(source, target, with_sizes=with_sizes, with_image_sizes=with_image_sizes)
    names = None
    if classes_from is not None:
        with opened() as rows:
            names = class_names(rows, classes_from)
    with opened() as rows:
        labelled = rows if names is None else with_labels(rows, str(classes_from), names)
        if with_sizes:
            refuse_sizes(rows.columns, rows.root, target)
        sized = add_pixel_sizes(labelled, num_workers=num_workers) if with_image_sizes else labelled
        checked = with_warning_of_escapes(sized, target)
        paths = write_texts(checked, target, split=parts, relative=relative, progress=progress)
    if rows.notice and classes_from is None:
        warn(f"{target}: {rows.notice}")
    if rows.left_out:
        warn(f"left out of {target}: {rows.left_out}")
    for path in paths:
        index = open_index(path)
        if with_sizes:
            measure_sizes(index, num_workers=num_workers)
    return paths if parts is not None else paths[0]


def _refuse_sizes_of_objects(url: str, target: Path, *, with_sizes: bool, with_image_sizes: bool) -> None:
    if with_sizes:
        refuse_sizes(parse_columns("image:path"), url, target)
    if with_image_sizes:
        refuse_pixel_sizes(url)
