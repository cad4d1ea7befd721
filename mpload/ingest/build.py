"""From a source to an index: its text and its sidecar."""

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import overload

from mpload.errors import MploadWarning
from mpload.index.opening import open_index
from mpload.index.sidecar import Progress
from mpload.ingest.folder_options import FolderOptions
from mpload.ingest.image_sizes import measure_sizes
from mpload.ingest.sources import SourcePath, open_source, source_paths
from mpload.ingest.splitting import Split
from mpload.ingest.writing import check_out, write_texts

__all__ = ["build_index"]

_AS_TORCHVISION = FolderOptions()


@overload
def build_index(
    source: SourcePath | Sequence[SourcePath],
    out: str | os.PathLike[str],
    *,
    columns: str | None = None,
    root: str | os.PathLike[str] | None = None,
    split: None = None,
    folder: FolderOptions = ...,
    relative: bool = False,
    with_sizes: bool = False,
    num_workers: int = 8,
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
    folder: FolderOptions = ...,
    relative: bool = False,
    with_sizes: bool = False,
    num_workers: int = 8,
    progress: Progress | None = None,
) -> tuple[Path, ...]: ...


def build_index(
    source: SourcePath | Sequence[SourcePath],
    out: str | os.PathLike[str],
    *,
    columns: str | None = None,
    root: str | os.PathLike[str] | None = None,
    split: Mapping[str, float] | Sequence[float] | None = None,
    folder: FolderOptions = _AS_TORCHVISION,
    relative: bool = False,
    with_sizes: bool = False,
    num_workers: int = 8,
    progress: Progress | None = None,
) -> Path | tuple[Path, ...]:
    """Write an index of `source` to `out`, with its sidecar.

    `source` is one of:

    - a folder of class folders: order and class numbers as torchvision's ImageFolder gives them, names in `classes`;
    - a folder of images without class folders: no labels;
    - a list or CSV of `path label` lines, or an index: paths stay as they are;
    - a tar file, a folder of tar files, or a sequence of them: samples as WebDataset groups them, read in place;
    - a database of LMDB, a TFRecord, Arrow or Parquet file, or a sequence of one kind, in place too;
    - a URL such as `s3://bucket/prefix`: images and class folders below it, as in a folder.

    Args:
        source: a path, or a sequence of paths of tar files.
        out: the index text. It appears when it is complete; an older one is replaced.
        columns: `"image:path label:int"`: names and types for a list; other names for a folder or for shards.
            `"image:path"` on a folder takes all images below it, without labels.
        root: the folder or URL that paths shall be relative to. For a list or index, what its paths are relative to
            already (default: its own folder or `#root`); for a folder or shards, a folder above, or where they will be.
        split: parts and their fractions: `{"train": 0.9, "val": 0.1}` writes `data.train.txt` and `data.val.txt` for
            `out="data.txt"`, `[0.9, 0.1]` writes `data.0.txt` and `data.1.txt`. A hash of its first path says where a
            sample goes: the same when more are added, or their order changes.
        folder: what counts as an image in a folder or shard.
        relative: write `#root` relative to the index's folder, so that both can move together.
        with_sizes: measure each sample's bytes too (a stat of every file), as `measure_sizes` does.
        num_workers: threads that do so.
        progress: told the number of samples written so far.

    Returns:
        The path of the index; with `split`, the paths of all parts.

    Raises:
        ArgumentError: the source holds no image or breaks a rule; `out` cannot be.
        IndexFormatError: a line of a list is broken.
        StorageError: something cannot be read or written.

    Warns:
        MploadWarning: something in the source is not in the index: links, hidden files, other extensions.

    Memory: constant, about 100 MB besides imports, for any number of samples. Names of a folder are sorted on disk, in
    the folder of `out`, where they do not fit.
    """
    target = Path(os.path.normpath(Path(out).expanduser().absolute()))
    parts = None if split is None else Split.of(split)
    for path in (target,) if parts is None else parts.paths(target):
        check_out(path, source_paths(source))
    with open_source(source, columns=columns, root=root, folder=folder, scratch=target.parent) as rows:
        paths = write_texts(rows, target, split=parts, relative=relative, progress=progress)
    if rows.left_out:
        warnings.warn(f"left out of {target}: {rows.left_out}", MploadWarning, stacklevel=2)
    for path in paths:
        index = open_index(path)
        if with_sizes:
            measure_sizes(index, num_workers=num_workers)
    return paths if parts is not None else paths[0]
