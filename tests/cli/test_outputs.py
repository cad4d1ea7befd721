"""Files that commands write: links stay, permissions are kept, and pipes and devices are refused."""

import errno
import os
import resource
import stat
from pathlib import Path

import pytest

from mpload.cli.findings import write_findings
from mpload.cli.outputs import check_output
from mpload.errors import ArgumentError, StorageError
from mpload.ingest.checking import Finding
from tests.support.photos import make_photo_tree
from tests.support.programs import mpload

FINDING = Finding(where="train.txt:3", sample_id=0, path="a.jpg", cause="is broken")

COMMANDS = {
    "index": ["index", "photos", "-o", "OUT"],
    "select": ["select", "all.txt", "--where", "label == 0", "-o", "OUT"],
    "merge": ["merge", "all.txt", "all.txt", "-o", "OUT"],
    "merge --as-parts": ["merge", "all.txt", "all.txt", "-o", "OUT", "--as-parts"],
    "inspect --grid": ["inspect", "all.txt", "--tiles", "1", "--grid", "OUT"],
    "inspect --report": ["inspect", "bad.txt", "--check", "--report", "OUT"],
    "monitor --csv": ["monitor", "--csv", "OUT", "--", "true"],
    "monitor --parquet": ["monitor", "--parquet", "OUT", "--", "true"],
    "monitor --plot": ["monitor", "--plot", "OUT", "--", "true"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs")
    make_photo_tree(folder / "photos", num_images=4, num_classes=2, seed=0)
    assert mpload("index", "photos", "-o", "all.txt", cwd=folder).returncode == 0
    (folder / "bad.txt").write_text("#mpload 1\n#columns image:path\nmissing.jpg\n")
    return folder


def run(command: list[str], out: Path, folder: Path) -> tuple[int, str]:
    ran = mpload(*(str(out) if word == "OUT" else word for word in command), cwd=folder)
    return ran.returncode, ran.stderr


@pytest.mark.processes
@pytest.mark.parametrize("command", COMMANDS)
def test_a_link_stays_and_the_permissions_of_its_file_are_kept(command: str, folder: Path, tmp_path: Path) -> None:
    name = "out.png" if command in {"inspect --grid", "monitor --plot"} else "out.txt"
    (tmp_path / "disk").mkdir()
    link, target = tmp_path / name, tmp_path / "disk" / name
    old = b"old" if command.startswith(("inspect", "monitor")) else b"#mpload 1\n#columns image:path\nold.jpg\n"
    target.write_bytes(old)
    target.chmod(0o640)
    link.symlink_to(target)
    code, errors = run(COMMANDS[command], link, folder)
    assert code == (command == "inspect --report"), errors
    assert link.readlink() == target
    assert target.read_bytes() not in {b"", old}
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


@pytest.mark.processes
@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "monitor --csv"])
def test_a_pipe_is_refused_and_stays(command: str, folder: Path, tmp_path: Path) -> None:
    pipe = tmp_path / ("out.png" if command in {"inspect --grid", "monitor --plot"} else "out.txt")
    os.mkfifo(pipe)
    code, errors = run(COMMANDS[command], pipe, folder)
    assert (code, errors.count("\n")) == (2, 1), errors
    assert f"{pipe}: is a named pipe (FIFO), and is not replaced by a file. Name a new file" in errors
    assert pipe.is_fifo()


@pytest.mark.processes
def test_the_readings_of_monitor_go_into_a_pipe() -> None:
    ran = mpload("monitor", "--csv", "/dev/stdout", "--interval", "0.1", "--", "true")
    assert ran.returncode == 0
    assert ran.stdout.startswith("seconds,pid,name,")


def test_a_device_is_refused_before_the_work_starts() -> None:
    with pytest.raises(ArgumentError, match="is a character device"):
        check_output(Path(os.devnull))


def test_a_report_without_findings_deletes_the_old_one_but_not_a_link_to_it(tmp_path: Path) -> None:
    report, target = tmp_path / "report.jsonl", tmp_path / "real.jsonl"
    report.symlink_to(target)
    for _ in range(2):
        assert write_findings([FINDING], report).num_findings == 1
        assert target.read_text().count("\n") == 1
    assert write_findings([], report).report is None
    assert (report.is_symlink(), target.exists()) == (True, False)


def test_findings_are_not_written_into_a_device(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArgumentError, match="is a named pipe"):
        write_findings([], tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


REPORTS = {
    "inspect --report": ["inspect", "all.txt", "--check", "--report", "OUT"],
    "inspect --grid": ["inspect", "all.txt", "--tiles", "1", "--grid", "OUT"],
    "monitor --csv": ["monitor", "--csv", "OUT", "--", "true"],
    "monitor --parquet": ["monitor", "--parquet", "OUT", "--", "true"],
}


@pytest.mark.processes
@pytest.mark.parametrize("command", REPORTS)
def test_a_report_never_replaces_an_index(command: str, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / ("other.png" if command == "inspect --grid" else "other.txt")
    other.write_bytes(b"\xef\xbb\xbf#mpload 1\n#columns image:path\nx.jpg\n")
    before = other.read_bytes()
    code, errors = run(REPORTS[command], other, folder)
    assert (code, errors.count("\n")) == (2, 1), errors
    assert f"{other}: is an index, and is not replaced by a report. Name another file" in errors
    assert other.read_bytes() == before


@pytest.mark.processes
def test_a_report_never_replaces_the_list_that_a_command_reads(tmp_path: Path) -> None:
    make_photo_tree(tmp_path / "photos", num_images=2, num_classes=1, seed=0)
    names = "".join(f"{path.relative_to(tmp_path)} 0\n" for path in tmp_path.rglob("*.jpg"))
    (tmp_path / "all.txt").write_text(names)
    (tmp_path / "link").symlink_to("all.txt")
    code, errors = run(REPORTS["inspect --report"], tmp_path / "link", tmp_path)
    assert (code, errors.count("\n")) == (2, 1), errors
    assert "link: is the file that the command reads. Name another file" in errors
    assert (tmp_path / "all.txt").read_text() == names


@pytest.mark.processes
@pytest.mark.parametrize("command", ["index", "index --append", "select", "merge", "merge --as-parts", "pack"])
def test_a_url_is_refused_as_the_place_of_an_index_or_pack(command: str, folder: Path) -> None:
    words = {"pack": ["pack", "all.txt", "-o", "OUT"], "index --append": [*COMMANDS["index"], "--append"]} | COMMANDS
    code, errors = run([word.replace("OUT", "s3://bucket/x.txt") for word in words[command]], folder, folder)
    assert code != 0
    assert errors.startswith("mpload: s3://bucket/x.txt: ")
    assert "a local" in errors or "a copy of the index" in errors
    assert not (folder / "s3:").exists()


def test_a_report_for_which_there_is_no_room_is_named(tmp_path: Path) -> None:
    report = tmp_path / "r.jsonl"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(StorageError, match=rf"^{report}: .* cannot be written: {os.strerror(errno.EFBIG)}"):
            write_findings([FINDING] * 10, report)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
