"""`mpload monitor`: the command keeps its output, exit code and signals, and its memory is shown and recorded."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import cv2
import pytest
from pyarrow import parquet

from mpload.cli.main import app
from tests.support.programs import mpload, run_script
from tests.support.transport_works import wait_until


def drawn_colours(path: Path) -> set[tuple[float, ...]]:
    pixels = cv2.imread(str(path))
    assert pixels is not None
    return {tuple(pixel) for pixel in pixels.reshape(-1, 3).tolist()}


@pytest.mark.slow
@pytest.mark.processes
def test_a_monitored_command_keeps_its_output_and_exit_code_and_its_memory_is_recorded(tmp_path: Path) -> None:
    program = "import time; kept = bytearray(200 << 20); time.sleep(3); print('done'); raise SystemExit(7)"
    files: list[str | Path] = ["--csv", tmp_path / "memory.csv", "--plot", tmp_path / "memory.png"]
    files += ["--parquet", tmp_path / "memory.parquet"]
    ran = mpload("monitor", "--interval", "0.05", *files, "--", sys.executable, "-c", program)
    assert (ran.returncode, ran.stdout) == (7, "done\n")
    peak = float(ran.stderr.split("PSS ")[1].split(" MiB")[0])
    assert 200 < peak < 260
    assert (178, 114, 0) in drawn_colours(tmp_path / "memory.png")  # blue, green, red
    assert (tmp_path / "memory.csv").read_text().startswith("seconds,pid,name,rss_bytes")
    assert parquet.read_table(tmp_path / "memory.parquet").num_rows > 3


@pytest.mark.processes
def test_a_command_that_ends_immediately_can_be_plotted(tmp_path: Path) -> None:
    ran = mpload("monitor", "--plot", tmp_path / "memory.png", "--", "true")
    assert (ran.returncode, ran.stderr.count("\n")) == (0, 1), ran.stderr
    assert cv2.imread(str(tmp_path / "memory.png")) is not None


@pytest.mark.processes
def test_without_matplotlib_a_plot_is_refused_with_the_command_that_installs_it(tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError('not installed')\n")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ran = mpload("monitor", "--plot", tmp_path / "x.png", "--", "echo", "run", PYTHONPATH=paths)
    assert ran.returncode == 1
    assert ran.stderr == "mpload: a plot needs matplotlib: pip install 'mpload[plot]'\n"
    assert ran.stdout == ""


@pytest.mark.processes
def test_a_terminal_shows_pss_rss_and_what_uses_the_memory() -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "mpload", "monitor", "--interval", "0.1", "--", "sleep", "0.5"]
    environment = {**os.environ, "COLUMNS": "200", "LINES": "50", "TERM": "xterm"}
    with subprocess.Popen(command, stderr=theirs, stdout=subprocess.DEVNULL, env=environment):
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # reading fails once the command has closed the terminal
            while block := os.read(ours, 1 << 16):
                shown += block
    os.close(ours)
    text = shown.decode()
    for word in ("PSS", "USS", "RSS", "swap", "sleep", "anonymous", "page cache", "/dev/shm"):
        assert word in text, word


@pytest.mark.processes
def test_a_command_killed_by_a_signal_gives_the_exit_code_of_a_shell(tmp_path: Path) -> None:
    assert mpload("monitor", "--", "sh", "-c", "kill -9 $$").returncode == 137


def catches(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has installed a handler for a signal."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(line.split()[1] for line in lines if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.mark.processes
def test_a_command_receives_sigterm_and_may_handle_it(tmp_path: Path) -> None:
    script = "trap 'echo saved; exit 3' TERM; echo ready; while true; do sleep 0.1; done"
    command = [sys.executable, "-m", "mpload", "monitor", "--csv", f"{tmp_path}/memory.csv", "--", "sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline() == "ready\n"
        assert wait_until(lambda: catches(watching.pid, signal.SIGTERM))
        watching.terminate()
        output, errors = watching.communicate(timeout=60)
    assert (watching.returncode, output) == (3, "saved\n"), errors
    assert (tmp_path / "memory.csv").read_text().startswith("seconds,pid,name,rss_bytes")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "give a command after `--` or --pid: mpload monitor"),
        (("--",), 2, "give a command after `--` or --pid: mpload monitor"),
        (("--pid", "1", "--", "true"), 2, "not both"),
        (("--pid", "4194305"), 1, "no such process"),
        (("--", "no-such-program-here"), 1, "no-such-program-here: No such file"),
        (("--plot", "x.jpg", "--", "echo", "run"), 2, "pictures are written as .png. Name it x.png"),
        (("--csv", "no/x.csv", "--", "echo", "run"), 2, "the folder no does not exist"),
        (("--parquet", "/tmp", "--", "echo", "run"), 2, "/tmp is a folder"),
        (("--interval", "0", "--", "echo", "run"), 2, "--interval must be positive, got 0"),
        (("--interval", "nan", "--", "echo", "run"), 2, "--interval must be positive, got nan"),
    ],
)
def test_wrong_use_of_the_monitor_prints_one_line(
    arguments: tuple[str, ...], code: int, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:  # in this process, because starting one takes longer than all cases
        app(["monitor", *arguments], prog_name="mpload")
    printed = capfd.readouterr()
    assert (ended.value.code, printed.out) == (code, "")
    assert message in printed.err
    assert len(printed.err.splitlines()) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
@pytest.mark.processes
def test_a_process_of_another_user_is_refused() -> None:
    ran = run_script(
        """
        import os, sys
        import mpload.cli.monitor
        from mpload.cli.main import main
        pid = sys.argv[1]
        for number in ("0", pid):  # the first time imports everything that the other user may not read
            sys.argv = ["mpload", "monitor", "--pid", number]
            try:
                main()
            except SystemExit as ended:
                code = ended.code
            print(f"code {code}", file=sys.stderr)
            if number == "0":
                os.setgid(65534)
                os.setuid(65534)
        """,
        str(os.getpid()),
    )
    assert ran.stdout == ""
    assert ran.stderr.partition("code 2\n")[2] == (
        f"mpload: --pid {os.getpid()}: this user may not look into the memory of that process. Run as its user, or as "
        "root\ncode 1\n"
    )
