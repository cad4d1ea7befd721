"""Building an index of a bucket, or for files at a URL; what cannot be done there is refused before any work."""

from pathlib import Path
from typing import Any

import pytest

from mpload import append_to_index, build_index
from mpload.errors import ArgumentError, MploadWarning
from mpload.ingest import build
from tests.support.ingested import JPEG, cells, make_files, make_tar


@pytest.mark.parametrize("option", ["with_sizes", "with_image_sizes"])
def test_sizes_of_objects_are_refused_before_a_bucket_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setattr(build, "open_source", lambda *_, **__: pytest.fail("the bucket is listed"))
    options: dict[str, Any] = {option: True}
    with pytest.raises(ArgumentError, match=r"s3://bucket/x.* cannot be measured"):
        build_index("s3://bucket/x", tmp_path / "i.txt", **options)


def test_no_index_is_left_if_sizes_cannot_be_measured(tmp_path: Path) -> None:
    tree = make_files(tmp_path / "tree", "c0/1.jpg")
    with pytest.raises(ArgumentError, match=r"i\.txt: sizes of files at s3://bucket cannot be measured"):
        build_index(tree, tmp_path / "i.txt", root="s3://bucket", with_sizes=True)
    assert not (tmp_path / "i.txt").exists()


@pytest.mark.parametrize("out", ["s3://bucket/i.txt", Path("s3://bucket/i.txt")])
def test_an_index_is_not_written_to_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str | Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:" / "bucket").mkdir(parents=True)
    with pytest.raises(ArgumentError, match=r"^s3://bucket/i\.txt: an index is written to a local file"):
        build_index(make_files(tmp_path / "tree", "c0/1.jpg"), out)
    assert not list((tmp_path / "s3:").rglob("*.txt"))


WEB = "https://data.example.com/x"


@pytest.mark.parametrize("kind", ["folder", "shard"])
def test_names_that_a_web_server_would_read_in_another_way_are_counted(tmp_path: Path, kind: str) -> None:
    out, source, count = tmp_path / "i.txt", tmp_path / "a%20b.tar", "1 sample"
    if kind == "folder":
        source, count = make_files(tmp_path / "tree", "a b.png", "a%20b.png", "50%.png", "%C3%BC.png"), "2 samples"
    else:
        make_tar(source, ("1.jpg", JPEG))
    message = rf"i\.txt: {count} with names that a web server takes for .* such as .*: paths below {WEB} .*Write %25"
    with pytest.warns(MploadWarning, match=message):
        build_index(source, out, root=WEB)
    with pytest.warns(MploadWarning, match=message):
        append_to_index(source, out, root=WEB)
    for root in (None, "s3://bucket"):
        build_index(source, out, root=root)


def test_names_in_a_list_may_be_escaped_for_a_web_server(tmp_path: Path) -> None:
    (tmp_path / "l.txt").write_text("a%20b.png\n")
    build_index(tmp_path / "l.txt", tmp_path / "i.txt", root=WEB)
    assert cells(tmp_path / "i.txt") == [("a%20b.png",)]
