"""Checking an index: every fault is found and assigned to its line, and nothing else is reported."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg  # type: ignore[import-untyped]
import tifffile

from mpload import build_index, open_index
from mpload.errors import DecodeError, IndexFormatError, SidecarError
from mpload.index.columns import parse_columns
from mpload.index.index import Index, header_of, sidecar_of
from mpload.index.lookup import SidecarFile
from mpload.index.sidecar import rewrite_sidecar
from mpload.index.text import format_header
from mpload.ingest.checking import Finding, check_index, check_lines

JPEG: bytes = simplejpeg.encode_jpeg(np.random.default_rng(0).integers(0, 255, (16, 16, 3), dtype=np.uint8))


def write(path: Path, *lines: str, columns: str = "image:path label:int", root: str | None = None) -> Path:
    path.write_bytes(
        format_header(columns=parse_columns(columns), root=root) + "".join(f"{line}\n" for line in lines).encode()
    )
    return path


def make_index(folder: Path, count: int = 600) -> Index:
    (folder / "tree" / "c").mkdir(parents=True)
    for number in range(count):
        (folder / "tree" / "c" / f"{number:04d}.jpg").write_bytes(JPEG)
    return open_index(build_index(folder / "tree", folder / "i.txt"))


def test_an_index_without_faults_has_no_findings(tmp_path: Path) -> None:
    progress: list[int] = []
    assert list(check_index(make_index(tmp_path), decode=simplejpeg.decode_jpeg, progress=progress.append)) == []
    assert progress == [256, 512, 600]


def test_each_fault_of_a_file_is_a_finding_with_its_line(tmp_path: Path) -> None:
    index = make_index(tmp_path)
    folder = tmp_path / "tree" / "c"
    (folder / "0003.jpg").unlink()
    (folder / "0300.jpg").unlink()
    (folder / "0300.jpg").mkdir()
    (folder / "0599.jpg").unlink()
    (folder / "0599.jpg").symlink_to(Path(__file__))
    (folder / "0004.jpg").write_bytes(JPEG[:40])
    first = header_of(index).num_lines + 1
    without = list(check_index(index, num_workers=2))
    assert [(found.where, found.sample_id, found.path) for found in without] == [
        (f"{index.path}:{first + number}", number, f"c/{number:04d}.jpg") for number in (3, 300, 599)
    ]
    assert "No such file" in without[0].cause
    assert "directory" in without[1].cause
    assert "outside of the root" in without[2].cause
    with_decode = list(check_index(index, decode=simplejpeg.decode_jpeg))
    assert [found.sample_id for found in with_decode] == [3, 4, 300, 599]
    assert with_decode[1].cause.startswith("ValueError: ")
    allowed = open_index(index.path, allow_outside_root=True)
    assert [found.sample_id for found in check_index(allowed)] == [3, 300]


@pytest.mark.parametrize("leads", ["absolute", "upwards", "link"])
def test_paths_may_lead_outside_the_root_in_a_plain_list_but_not_in_an_index(tmp_path: Path, leads: str) -> None:
    folder = tmp_path / "lists"
    folder.mkdir()
    (tmp_path / "a.jpg").write_bytes(JPEG)
    (folder / "link.jpg").symlink_to(tmp_path / "a.jpg")
    path = {"absolute": str(tmp_path / "a.jpg"), "upwards": "../a.jpg", "link": "link.jpg"}[leads]
    plain, declared = folder / "plain.txt", folder / "index.txt"
    plain.write_text(f"{path} 0\n")
    declared.write_text(f"#mpload 1\n#columns image:path label:int\n{path}\t0\n")
    for text, allows, num_findings in [
        (plain, None, 0), (plain, True, 0), (plain, False, 1), (declared, None, 1), (declared, True, 0),
    ]:  # fmt: skip
        findings = list(check_index(open_index(text, allow_outside_root=allows)))
        assert len(findings) == num_findings, (text.name, allows)
        assert all("outside of the root" in finding.cause for finding in findings)


def test_any_exception_of_a_decoder_is_a_finding(tmp_path: Path) -> None:
    index = make_index(tmp_path, 2)

    def ours(_: bytes) -> None:
        raise DecodeError("no image")

    def theirs(_: bytes) -> None:
        raise ZeroDivisionError("oh")

    assert [found.cause for found in check_index(index, decode=ours)] == ["no image"] * 2
    assert [found.cause for found in check_index(index, decode=theirs)] == ["ZeroDivisionError: oh"] * 2


def test_a_span_must_lie_within_its_shard(tmp_path: Path) -> None:
    (tmp_path / "s.tar").write_bytes(JPEG + JPEG)
    size = len(JPEG)
    path = write(
        tmp_path / "i.txt",
        *(
            f"{span}@{shard}"
            for span, shard in [
                (f"0+{size}", "s.tar"),
                (f"{size}+{size}", "s.tar"),
                (f"{size}+{size + 1}", "s.tar"),
                (f"{2 * size}+0", "s.tar"),
                (f"0+{size}", "gone.tar"),
                (f"0+{size}", "../s.tar"),
                ("9" * 15 + "+1", "s.tar"),
            ]
        ),
        columns="image:span",
    )
    found = list(check_index(open_index(path)))
    assert [finding.sample_id for finding in found] == [2, 4, 5, 6]
    assert f"but the shard has {2 * size:,} bytes" in found[0].cause
    found = list(check_index(open_index(path), decode=simplejpeg.decode_jpeg))
    assert [finding.sample_id for finding in found] == [2, 3, 4, 5, 6]


def test_each_image_of_a_sample_is_checked(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(JPEG)
    path = write(tmp_path / "i.txt", "a.jpg\tb.jpg", "c.jpg\ta.jpg", "d.jpg\te.jpg", columns="lr:path hr:path")
    found = [(finding.sample_id, finding.path) for finding in check_index(open_index(path))]
    assert found == [(0, "b.jpg"), (1, "c.jpg"), (2, "d.jpg"), (2, "e.jpg")]


def test_differences_between_the_sidecar_and_the_text_are_found(tmp_path: Path) -> None:
    good = make_index(tmp_path, 600)
    offsets = np.array(SidecarFile(sidecar_of(good)).columns["offset"])
    labels = good.labels[:].copy()
    labels[[7, 270]] = 5
    wrong = offsets.copy()
    wrong[260:] += 1
    cases: list[tuple[dict[str, Any], list[tuple[int | None, str]]]] = [
        ({"offset": offsets, "label": labels}, [(7, "has label 0, but"), (270, "says 5")]),
        ({"offset": wrong, "label": good.labels[:]}, [(260, "starts at byte")]),
        (
            {"offset": np.delete(offsets, 300), "label": np.delete(good.labels[:], 300)},
            [(300, "starts at byte"), (None, "has 600 samples, but its sidecar has 599")],
        ),
    ]
    for rows, expected in cases:
        num_samples = len(rows["offset"])
        rewrite_sidecar(
            good.path, header_of(good), partial(iter, [rows]), num_samples=num_samples, digest=sidecar_of(good).digest
        )
        findings = list(check_index(open_index(good.path)))
        assert [finding.sample_id for finding in findings] == [sample_id for sample_id, _ in expected]
        assert all(words in finding.cause for finding, (_, words) in zip(findings, expected, strict=True))
    for part in (slice(1, None), slice(None, -1)):
        rows = {"offset": offsets[part], "label": good.labels[part]}
        with pytest.raises(SidecarError, match="do not match the lines"):
            rewrite_sidecar(
                good.path, header_of(good), partial(iter, [rows]), num_samples=599, digest=sidecar_of(good).digest
            )
        assert len(open_index(good.path)) == 600  # the sidecar was rebuilt


def test_a_change_of_the_text_that_keeps_size_and_time_is_found(tmp_path: Path) -> None:
    path = write(tmp_path / "i.txt", *(f"a{number:03d}\t1" for number in range(400)))
    (tmp_path / "tree").mkdir()
    index = open_index(path)
    status = path.stat()
    path.write_bytes(path.read_bytes().replace(b"a003\t1", b"a003\tx").replace(b"a390\t1\n", b"a390\t1\t"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    found = [finding for finding in check_index(index) if "No such file" not in finding.cause]
    assert [finding.sample_id for finding in found] == [3, 391, 390, None]
    assert "'x' is not an integer" in found[0].cause


def test_a_finding_tells_what_cannot_be_checked(tmp_path: Path) -> None:
    url = write(tmp_path / "u.txt", "a\t1", root="s3://bucket")
    assert ["s3://bucket are not checked" in finding.cause for finding in check_index(open_index(url))] == [True]
    lmdb = write(tmp_path / "l.txt", "k@x.lmdb\tgone.jpg", columns="image:lmdb mask:path")
    found = list(check_index(open_index(lmdb)))
    assert [finding.path for finding in found] == [None, "gone.jpg"]
    assert "lmdb values are not checked" in found[0].cause


def test_every_broken_line_is_found_in_a_text_that_cannot_be_opened(tmp_path: Path) -> None:
    path = write(
        tmp_path / "i.txt", "a\t0", "b\tx", "c", "d\t1", "e\t2\t3", "f" * 1_000_000, "g\0\t1", "", r"h\q" + "\t1"
    )
    with pytest.raises(IndexFormatError):
        open_index(path)
    found = list(check_lines(path))
    assert [(finding.sample_id, finding.where) for finding in found] == [
        (number, f"{path}:{number + 3}") for number in (1, 2, 4, 5, 6, 7, 8)
    ]
    words = ["not an integer", "has 1 cell", "has 3 cells", "longer than", "NUL", "cell", "not an escape"]
    assert [word in finding.cause for word, finding in zip(words, found, strict=True)] == [True] * 7


def test_a_finding_reads_as_a_sentence_and_can_always_be_printed() -> None:
    finding = Finding(where="i.txt:3", sample_id=0, path="\udcff.jpg", cause="is gone")
    assert str(finding).encode() == rb"i.txt:3: \udcff.jpg: is gone"
    assert str(Finding(where="i.txt", sample_id=None, path=None, cause="is old")) == "i.txt: is old"


def test_arrays_and_masks_of_numbers_are_no_faults(tmp_path: Path) -> None:
    rows = np.zeros((3, 4, 4, 3), np.uint8)
    np.save(tmp_path / "rows.npy", rows)
    header_bytes = (tmp_path / "rows.npy").stat().st_size - rows.nbytes
    spans = [f"{header_bytes + 48 * number}+48@rows.npy" for number in range(3)]
    index = open_index(write(tmp_path / "rows.txt", *spans, columns="image:span"))
    assert list(check_index(index, decode=simplejpeg.decode_jpeg)) == []
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(JPEG)
    np.save(tmp_path / "0.npy", np.zeros((4, 4), np.float32))
    tifffile.imwrite(tmp_path / "1.tif", np.zeros((4, 4), np.float32))
    (tmp_path / "2.tif").write_bytes((tmp_path / "1.tif").read_bytes()[:60])
    lines = ["0.jpg\t0.npy", "1.jpg\t1.tif", "2.jpg\t2.tif"]
    index = open_index(write(tmp_path / "masks.txt", *lines, columns="image:path mask:path"))
    found = check_index(index, decode=simplejpeg.decode_jpeg)
    assert [(finding.sample_id, finding.path) for finding in found] == [(2, "2.tif")]


def test_every_broken_image_of_a_shard_is_found_even_if_the_first_ones_are_broken(tmp_path: Path) -> None:
    (tmp_path / "shard.tar").write_bytes(b"<html>404" * 20 + JPEG)
    spans = [f"{9 * number}+9@shard.tar" for number in range(20)] + [f"180+{len(JPEG)}@shard.tar"]
    index = open_index(write(tmp_path / "i.txt", *spans, columns="image:span"))
    found = check_index(index, decode=simplejpeg.decode_jpeg)
    assert [finding.sample_id for finding in found] == list(range(20))


def test_files_beside_images_are_read_but_not_decoded_unless_they_are_images(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(JPEG)
        (tmp_path / f"{number}.txt").write_text("a dog")
        (tmp_path / f"{number}_mask.png").write_bytes(b"damaged" if number == 1 else JPEG)
    lines = [f"{number}.jpg\t{number}.txt\t{number}_mask.png\t0+5@{number}.txt" for number in range(3)]
    index = open_index(write(tmp_path / "i.txt", *lines, columns="image:path caption:path mask:path text:span"))
    found = list(check_index(index, decode=simplejpeg.decode_jpeg))
    assert [(finding.sample_id, finding.path) for finding in found] == [(1, "1_mask.png")]
    (tmp_path / "2.txt").unlink()
    found = list(check_index(index, decode=simplejpeg.decode_jpeg))
    assert [(finding.sample_id, finding.path) for finding in found] == [(1, "1_mask.png"), (2, "2.txt"), (2, "2.txt")]
