"""What a bucket's keys leave open is refused, as it is for a folder: masks, splits, empty classes, slashes in front."""

from collections.abc import Mapping
from itertools import count
from pathlib import Path

import pytest

from mpload import build_index, open_index
from mpload.errors import ArgumentError, StorageError
from mpload.ingest.cluster import Cluster
from mpload.storage import buckets
from mpload.storage.buckets import refuse_leading_slashes
from mpload.storage.ranges import ByteRange
from mpload.storage.remote import RemoteObjects, list_objects
from tests.support.clusters import Backwards
from tests.support.s3 import S3

pytestmark = pytest.mark.processes
ON = pytest.mark.parametrize("on", [None, Backwards()], ids=["here", "elsewhere"])
CLASSES = "image:path label:int"
YOLO_LINE = b"0 .5 .5 .1 .1\n"


NUMBERS = count()


@pytest.fixture
def bucket(s3: S3) -> str:
    """Return the name of a new bucket."""
    name = f"bucket-{next(NUMBERS)}"
    s3.make_bucket(name)
    return name


def refused(url: str, tmp_path: Path, on: Cluster | None, error: type[Exception] = ArgumentError) -> str:
    """Return the message with which a URL is refused."""
    with pytest.raises(error) as caught:
        build_index(url, tmp_path / "x.txt", on=on)
    assert not (tmp_path / "x.txt").exists()
    return str(caught.value)


@ON
@pytest.mark.parametrize("names", [("images", "masks"), ("imgs", "mask")])
def test_images_and_masks_of_a_bucket_are_no_classes(
    s3: S3, tmp_path: Path, names: tuple[str, str], on: Cluster | None
) -> None:
    url = f"s3://photos/{names[0]}-pairs"
    s3.put({f"{names[0]}-pairs/{name}/1.png": b"x" for name in names})
    message = refused(url, tmp_path, on)
    assert f"{url}: has {names[0]}/ and {names[1]}/" in message
    assert f"Index a local copy, and give the URL as its root: mpload index FOLDER --root {url}" in message
    assert open_index(build_index(url, tmp_path / "x.txt", columns=CLASSES, on=on)).classes == names


@ON
def test_images_and_labels_of_a_bucket_are_no_classes(s3: S3, tmp_path: Path, on: Cluster | None) -> None:
    s3.put({"yolo/images/1.png": b"x", "yolo/labels/1.txt": YOLO_LINE})
    assert "s3://photos/yolo: has images/ and labels/" in refused("s3://photos/yolo", tmp_path, on)
    s3.put({"coded/images/1.png": b"x", "coded/labels/1.png": b"x"})  # as in a local folder
    assert open_index(build_index("s3://photos/coded", tmp_path / "x.txt", on=on)).classes == ("images", "labels")


@ON
@pytest.mark.parametrize("splits", [("train", "valid"), ("a", "b")])
def test_splits_of_yolo_in_a_bucket_are_no_classes(
    s3: S3, tmp_path: Path, splits: tuple[str, ...], on: Cluster | None
) -> None:
    place = f"{splits[0]}-splits"
    for split in splits:
        s3.put({f"{place}/{split}/images/1.png": b"x", f"{place}/{split}/labels/1.txt": YOLO_LINE})
    message = refused(f"s3://photos/{place}", tmp_path, on)
    assert f"as splits in YOLO's layout do, so they are no classes: {', '.join(splits)}." in message
    assert f"mpload index {splits[0]} --root s3://photos/{place}/{splits[0]} -o {splits[0]}.txt." in message
    with pytest.warns(match="other extensions"):
        index = open_index(build_index(f"s3://photos/{place}", tmp_path / "x.txt", columns=CLASSES, on=on))
    assert index.classes == splits


@ON
def test_folders_named_as_splits_are_refused_in_a_bucket_too(s3: S3, tmp_path: Path, on: Cluster | None) -> None:
    s3.put({f"named/{split}/{name}/1.png": b"x" for split in ("train", "val") for name in ("cat", "dog")})
    message = refused("s3://photos/named", tmp_path, on)
    assert "have the names of splits" in message
    assert "mpload index s3://photos/named/train -o train.txt" in message


@ON
def test_a_class_of_a_bucket_with_nothing_but_a_marker_is_an_error_as_in_a_folder(
    s3: S3, tmp_path: Path, on: Cluster | None, bucket: str
) -> None:
    names = ["cat/1.png", "dog-b/1.png", "dog/", "fox/1.png", "_SUCCESS", ".git/"]
    s3.put({f"val/{name}": b"x" * name.endswith("png") for name in names}, bucket=bucket)
    message = refused(f"s3://{bucket}/val", tmp_path, on)
    assert f"s3://{bucket}/val: found no images for the classes dog. " in message
    s3.put({"val/dog/1.png": b"x"}, bucket=bucket)
    index = open_index(build_index(f"s3://{bucket}/val", tmp_path / "x.txt", on=on))
    assert index.classes == ("cat", "dog", "dog-b", "fox")


def test_an_empty_file_beside_class_folders_is_no_class_and_is_not_looked_for_in_a_flat_folder(
    s3: S3, tmp_path: Path
) -> None:
    s3.put({"done/cat/1.png": b"x", "done/_SUCCESS": b"", "flat-done/1.png": b"x", "flat-done/_SUCCESS": b""})
    assert open_index(build_index("s3://photos/done", tmp_path / "x.txt")).classes == ("cat",)
    before = s3.num_lists()
    with pytest.warns(match="1 files with other extensions"):
        build_index("s3://photos/flat-done", tmp_path / "x.txt")
    assert s3.num_lists() == before + 1


OTHERS = {"dog/3.png": b"3", "zebra/4.png": b"4", ".hidden/5.png": b"5", "-6.png": b"6"}


@ON
@pytest.mark.parametrize(
    "objects",
    [
        {"/cat/1.png": b"1"},
        {"/cat/1.png": b"1", "cat/1.png": b"2"},
        {f"/zebra/{number:02d}.png": b"1" for number in range(50)},
        {"/": b"", "/cat/": b"", "/cat/1.png": b"1"},
        {"/.cat/1.png": b"1"},
    ],
    ids=["alone", "twice", "many", "markers", "hidden"],
)
@pytest.mark.parametrize("others", [{}, OTHERS], ids=["only", "others"])
def test_keys_that_begin_with_a_slash_are_refused(
    s3: S3, tmp_path: Path, objects: Mapping[str, bytes], others: Mapping[str, bytes], on: Cluster | None, bucket: str
) -> None:
    s3.put({**objects, **others}, bucket=bucket)
    message = refused(f"s3://{bucket}", tmp_path, on, StorageError)
    if "/.cat/1.png" in objects and "are not listed in the order of their keys" in message:
        return  # with obstore 0.8, which begins a list elsewhere, it is refused for this
    assert next(key for key in objects if key.endswith("png")) in message
    assert "has an empty part" in message
    assert "Rename the object" in message


@pytest.mark.parametrize(
    "objects", [OTHERS, {"cat/": b"", "cat/1.png": b"1", "0": b"x", ".~/x.png": b"2"}, {"x/": b"more"}]
)
def test_a_bucket_without_such_keys_is_listed_with_few_further_requests(
    s3: S3, objects: Mapping[str, bytes], bucket: str
) -> None:
    s3.put(objects, bucket=bucket)
    before = s3.num_lists()
    assert sorted(list_objects(f"s3://{bucket}")) == sorted(
        (key.rstrip("/"), len(data)) for key, data in objects.items()
    )
    assert s3.num_lists() - before <= 3


@pytest.mark.parametrize("key", ["/cat/1.png", "cat/1.png/"])
def test_an_object_is_not_read_in_place_of_one_with_a_slash_before_or_behind_its_key(
    s3: S3, key: str, bucket: str
) -> None:
    s3.put({key: b"1", "cat/1.png": b"2"}, bucket=bucket)
    objects = RemoteObjects(f"s3://{bucket}")
    assert objects.read([ByteRange(f"s3://{bucket}/cat/1.png")]) == [b"2"]
    for attempt in (
        lambda: objects.read([ByteRange(f"s3://{bucket}/{key}")]),
        lambda: objects.look_up(f"s3://{bucket}/{key}"),
    ):
        with pytest.raises(StorageError, match=f"the key {key} has an empty part"):
            attempt()


def test_a_directory_bucket_is_not_listed_from_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "key_with_leading_slash", lambda *_: pytest.fail("it is listed from a key"))
    refuse_leading_slashes("s3://photos--use1-az4--x-s3")
