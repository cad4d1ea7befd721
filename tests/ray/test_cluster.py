"""Jobs on a Ray cluster: each is done, whatever dies, and no cluster is used that runs anyone's code."""

import subprocess
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

import mpload
from mpload import ArgumentError, RayCluster, RayServers, SampleError, StorageError
from mpload.ray import connecting
from mpload.ray.connecting import _Answer
from mpload.ray.tasks import do_job, probe_in
from tests.support import ray_works
from tests.support.batches import numbers
from tests.support.ray_cluster import TestCluster, ray_cluster
from tests.support.transport_works import wait_until

NUMBERS = list(range(10))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("default")  # of Ray's own
class TestOnTwoNodes:
    def test_every_job_is_done_once_more_after_its_process_is_killed(
        self, cluster: TestCluster, tmp_path: Path
    ) -> None:
        done = RayCluster().run(ray_works.dies_once(tmp_path), NUMBERS, shared=tmp_path)
        assert sorted(done) == NUMBERS
        assert not list(tmp_path.glob("*.tmp"))

    def test_an_error_of_a_job_is_raised_as_on_this_machine(self, cluster: TestCluster, tmp_path: Path) -> None:
        with pytest.raises(SampleError, match=r"^list.txt:3: is broken$"):
            list(RayCluster().run(ray_works.fails, NUMBERS, shared=tmp_path))
        assert not list(tmp_path.iterdir())

    def test_a_job_that_dies_again_and_again_ends_all(self, cluster: TestCluster, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match=r"(?s)died 2 times.*an index begins anew"):
            list(RayCluster(max_retries=1).run(ray_works.dies, NUMBERS, shared=tmp_path))
        assert not list(tmp_path.iterdir())

    def test_a_job_that_stands_still_ends_all_and_is_killed(self, cluster: TestCluster, tmp_path: Path) -> None:
        patient = RayCluster(patience_seconds=5)
        with pytest.raises(StorageError, match=r"nothing has happened on the Ray cluster for 5 s: 1 job running"):
            list(patient.run(ray_works.stands_still(tmp_path), [0], shared=tmp_path))
        pid = int((tmp_path / "pid").read_text())
        assert wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)

    def test_a_machine_with_another_token_is_told_what_to_do(
        self, cluster: TestCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RAY_AUTH_TOKEN", "another" * 5)
        told = in_new_process(tmp_path)
        assert "OutageError" in told
        assert "Copy ~/.ray/auth_token from the head node" in told


def in_new_process(folder: Path) -> str:
    """Run jobs on the cluster in a new process; return what it prints."""
    program = (
        "from pathlib import Path; import mpload, sys; from tests.support.ray_works import square\n"
        "try: print(sorted(mpload.RayCluster().run(square, [1, 2, 3], shared=Path(sys.argv[1]))))\n"
        "except mpload.MploadError as error: print(type(error).__name__, error)\n"
    )
    command = [sys.executable, "-c", program, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=200).stdout


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
@pytest.mark.timeout(300)
def test_a_cluster_that_admits_anyone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ray_cluster(mode="disabled") as cluster:
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        told = in_new_process(tmp_path)
        with pytest.raises(ArgumentError, match="needs no token"):
            RayServers(numbers(tmp_path, 10))
    assert "ArgumentError" in told
    assert "needs no token, so anyone who reaches its ports can run code" in told
    assert "ray get-auth-token --generate" in told


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
@pytest.mark.timeout(300)
def test_a_new_cluster_of_this_machine_has_a_token_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "local")
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # which gets no token
    assert in_new_process(tmp_path) == "[1, 4, 9]\n"
    assert not (tmp_path / ".ray").exists()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
@pytest.mark.timeout(300)
def test_an_address_where_no_cluster_answers_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert in_new_process(tmp_path).startswith("OutageError the Ray cluster at 127.0.0.1:1 does not answer.")


@pytest.mark.processes
def test_a_cluster_is_asked_without_modules_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("open('imported', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    connecting._answer("127.0.0.1", mode="token")
    assert not (tmp_path / "imported").exists()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
def test_a_cluster_that_cannot_be_started_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.setenv("RAY_TMPDIR", "/proc")
    assert in_new_process(tmp_path).startswith("OutageError a Ray cluster cannot be started on this machine: ")


def test_an_empty_address_is_none_and_one_that_is_refused_reveals_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def not_found(address: str | None, *, mode: str) -> _Answer:
        asked.append((address, mode))
        return _Answer.NOT_FOUND

    monkeypatch.setattr(connecting, "_ray_with_token", object)
    monkeypatch.setattr(connecting, "_answer", not_found)
    monkeypatch.setattr(connecting, "_own_cluster", nullcontext)
    monkeypatch.setenv("RAY_ADDRESS", "")
    with connecting.connected(None):
        assert asked == [(None, "disabled")]
    with (
        pytest.raises(ArgumentError, match=r"^ray://10\.0\.0\.1:10001: must be HOST:PORT"),
        connecting.connected("ray://me:secret@10.0.0.1:10001"),
    ):
        pass


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ArgumentError, match=r"pip install 'mpload\[ray\]'"):
        list(RayCluster().run(ray_works.square, NUMBERS, shared=tmp_path))


def test_a_node_that_does_not_share_the_folder_is_named(tmp_path: Path) -> None:
    work = b"not unpickled"
    with pytest.raises(StorageError, match="does not see a file that this machine wrote there"):
        do_job(work, 0, tmp_path / "probe", mpload.__version__)
    with (
        probe_in(tmp_path) as probe,
        pytest.raises(ArgumentError, match=r"has mpload .*, but this machine has 0\.0\.0"),
    ):
        do_job(work, 0, probe, "0.0.0")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", [{"cpus_per_task": 0}, {"patience_seconds": -1}, {"max_retries": -1}])
def test_illegal_numbers_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ArgumentError, match="must"):
        RayCluster(**wrong)  # type: ignore[arg-type]
