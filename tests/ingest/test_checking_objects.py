"""Checking an index finds objects that training would stumble over, in cells and in files, and nothing else."""

import json
from functools import partial
from pathlib import Path

import pytest

from mpload import build_index, open_index
from mpload.ingest.checking import check_index
from mpload.samples.object_check import check_objects
from tests.support.ingested import JPEG, make_files
from tests.support.programs import mpload

GOOD = '{"format":"xywh","boxes":[[1,2,3,4]],"labels":[1],"area":[12]}'
CASES = [
    ("{nonsense", "not JSON"),
    ('{"format":"xywh","boxes":[[1,2,-3,4]],"labels":[0]}', "box 0 has a negative width or height"),
    ('{"format":"yolo","boxes":[[50,50,20,20]],"labels":[0]}', "box 0 has centre x 50, which must be a fraction"),
    ('{"format":"xywh","boxes":[[1,2,3]],"labels":[0]}', "boxes must be numbers"),
    ('{"format":"xywh","boxes":[[1,2,3,4]],"labels":[0,1]}', "'labels' lists 2, but there are 1 boxes"),
    ('{"format":"xywh","boxes":[[1,2,3,4]],"labels":[0],"area":[]}', "'area' lists 0, but there are 1 boxes"),
    ('{"format":"xywh","boxes":[[1,2,3,4]],"labels":[2]}', "object 0 has class 2, but the index names only classes 0"),
    ('{"format":"xywh","boxes":3}', "the JSON has none of boxes"),
    ("0 0.5 0.5 0.1 0.1\n0 50 50 20 20", "line 2 of the boxes has centre x 50, which must be a fraction"),
    ("0 0.5 0.5 0.1 0.1\n2 0.5 0.5 0.1 0.1", "object 1 has class 2, but the index names only classes 0 to 1"),
    ("0 0.5 0.5 0.1 nan\n", "line 1 of the boxes must be a class"),
]


def found(folder: Path, *objects: str, columns: str = "image:path boxes:str") -> list[tuple[int | None, str]]:
    """Return the number of the sample and the cause of each finding in an index of two classes."""
    make_files(folder, "a.jpg")
    lines = "".join(f"a.jpg\t{each.encode('unicode_escape').decode()}\n" for each in objects)
    (folder / "i.txt").write_text(f"#mpload 1\n#columns {columns}\n#classes cat\tdog\n{lines}")
    index = open_index(folder / "i.txt")
    findings = [*check_index(index, check_objects=partial(check_objects, num_classes=2))]
    first = 4
    assert [finding.where for finding in findings] == [
        f"{index.path}:{first + (finding.sample_id or 0)}" for finding in findings
    ]
    return [(finding.sample_id, finding.cause) for finding in findings]


@pytest.mark.parametrize(("text", "message"), CASES)
def test_broken_objects_in_a_cell_are_a_finding_with_its_column_and_line(
    tmp_path: Path, text: str, message: str
) -> None:
    ((sample_id, cause),) = found(tmp_path, "" if text[:1] == "0" else GOOD, "0 .5 .5 .5 .5", text)
    assert sample_id == 2
    assert cause.startswith(f"column 'boxes': {message}")


@pytest.mark.parametrize(("text", "message"), CASES)
def test_broken_objects_in_a_file_are_a_finding_with_its_path(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.txt").write_text("1 0.5 0.5 0.1 0.1\n")
    (tmp_path / "b.txt").write_text(text)
    ((sample_id, cause),) = found(tmp_path, "a.txt", "b.txt", "a.txt", columns="image:path objects:path")
    assert sample_id == 1
    assert cause.startswith(f"column 'objects': {message}")


def test_objects_are_checked_even_if_the_first_images_have_none(tmp_path: Path) -> None:
    for none in ("", "null"):
        assert [sample_id for sample_id, _ in found(tmp_path, *[none] * 9, "0 50 50 20 20")] == [9]


def test_what_the_indexes_of_other_programs_may_mean_is_not_judged(tmp_path: Path) -> None:
    assert found(tmp_path, GOOD, "0 0.5 0.5 0.1 0.1", "", "null", '{"format":"xywh","boxes":[],"labels":[]}') == []
    for other in (
        "[1, 2, 3, 4]",
        '{"bbox":[[5,5,-1,-1]]}',
        '{"format":"mine","boxes":"5"}',
        "5,5,9,9;1,1,2,2",
        "a dog",
    ):
        assert found(tmp_path, other) == []
    assert found(tmp_path, "{nonsense", columns="image:path note:str") == []
    assert found(tmp_path, "7", columns="image:path boxes:float") == []


def test_an_index_that_mpload_wrote_has_no_findings(tmp_path: Path) -> None:
    make_files(tmp_path / "yolo", "images/a.jpg", "images/b.jpg")
    (tmp_path / "yolo" / "labels").mkdir()
    (tmp_path / "yolo" / "labels" / "a.txt").write_text("0 0.5 0.5 0.1 0.1\n")
    make_files(tmp_path, "a.jpg")
    polygon = [number / 7 for number in range(40_000)]
    objects = [
        {"id": n, "image_id": 1, "category_id": 5, "bbox": [0, 0, 1, 1], "segmentation": [polygon]} for n in range(9)
    ]
    images, categories = [{"id": 1, "file_name": "a.jpg"}], [{"id": 5, "name": "cat"}]
    document = {"images": images, "annotations": objects, "categories": categories}
    (tmp_path / "coco.json").write_text(json.dumps(document))
    for source in ("yolo", "coco.json"):
        index = open_index(build_index(tmp_path / source, tmp_path / "x.txt"))
        assert [*check_index(index, check_objects=partial(check_objects, num_classes=len(index.classes)))] == []
    (objects_file,) = tmp_path.glob("x.txt.*.annotations")
    objects_file.write_text(objects_file.read_text().replace("[0,0,1,1]", '[0,0,1,"]', 1))
    (finding,) = check_index(index, check_objects=check_objects)
    assert (finding.sample_id, finding.path) == (0, objects_file.name)
    assert finding.cause.startswith("column 'boxes': not JSON")


@pytest.mark.slow
@pytest.mark.processes
def test_the_command_reports_broken_objects(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(JPEG)
    (tmp_path / "bad.txt").write_text("#mpload 1\n#columns image:path boxes:str\n#classes a\na.jpg\t{nonsense\n")
    ran = mpload("inspect", tmp_path / "bad.txt", "--check")
    assert ran.returncode == 1
    assert f"{tmp_path / 'bad.txt'}:4: column 'boxes': not JSON" in ran.stdout
