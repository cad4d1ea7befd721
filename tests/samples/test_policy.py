"""The error of a batch that has no sample left, and the report of bad samples."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from mpload import ErrorPolicy, MploadWarning
from mpload.samples.policy import BadSample, BadSamples, all_failed

URL = "https://data.example.com/train"


def bad(number: int, cause: str, *, path: str | None = None) -> BadSample:
    return BadSample(
        sample_id=number, where=f"train.txt:{number + 4}", paths=(path or f"cat/{number}.jpg",), cause=cause
    )


@pytest.mark.parametrize(
    ("cause", "short"),
    [
        ("{url}/cat/{n}.jpg: no such object. Does #root of the index point to the right place?", "no such object"),
        (
            "{url}/cat/{n}.jpg: answer stalled after {n} bytes in 30 s (3 attempts in 90.{n} s; x)",
            "answer stalled after",
        ),
        ("cat/{n}.jpg: No such file or directory. Does #root of the index point", "No such file or directory"),
        ("not an image: {n} bytes", "not an image: "),
        ("ValueError: the transform failed; the value was {n}", "ValueError: the transform failed"),
    ],
)
def test_the_headline_names_the_most_common_kind_of_cause_whichever_comes_first(cause: str, short: str) -> None:
    many = [bad(number, cause.format(url=URL, n=number)) for number in range(2, 9)]
    others = [bad(0, f"{URL}/cat/0.jpg: connection refused by x:80: no server listens there (1 attempt in 2 s)")]
    message = str(all_failed(Path("train.txt"), 8, [*others, *many]))
    head, *listed = message.splitlines()
    assert head.startswith(f"train.txt: all 8 samples of a batch failed, 7 of 8 times because of: {short}")
    assert head.endswith("; see the error report")
    assert URL not in head
    assert "(" not in head
    assert [line.startswith("  train.txt:") for line in listed] == [True, True, True, False]
    assert listed[-1] == "  and 5 more"


def test_the_headline_does_not_name_the_shard_of_a_span() -> None:
    each = bad(0, f"{URL}/0.tar: server ignores ranges: it sent the whole object", path="0+10@0.tar")
    head = str(all_failed(Path("train.txt"), 1, [each])).splitlines()[0]
    assert head == (
        "train.txt: all 1 samples of a batch failed, once because of: server ignores ranges: it sent the whole object; "
        "see the error report"
    )


def test_training_does_not_wait_for_a_reader_of_the_report(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "report")
    samples = BadSamples(ErrorPolicy(action="skip", report=tmp_path / "report"), index_path=Path("train.txt"))
    samples.count(100, epoch=0)
    with pytest.warns(
        MploadWarning, match=r"report: cannot be written \(it is a pipe that nobody reads.*Name a regular"
    ):
        samples.add(bad(0, "not an image"))
    reader = os.open(tmp_path / "report", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.warns(MploadWarning, match=r"this and further ones are listed in .*report"):
            samples.add(bad(1, "not an image"))
        assert b'"sample_id": 1' in os.read(reader, 4096)
    finally:
        os.close(reader)


@pytest.mark.processes
def test_a_deleted_current_folder_is_no_error_until_there_is_a_report_to_write(tmp_path: Path) -> None:
    code = """
        import os, tempfile, warnings
        from pathlib import Path
        from mpload.samples.policy import BadSamples, ErrorPolicy
        os.rmdir(os.getcwd())
        BadSamples(ErrorPolicy(), index_path=Path("/data/train.txt"))
    """
    (tmp_path / "here").mkdir()
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path / "here", check=True, timeout=60)
