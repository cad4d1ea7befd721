"""What does the benchmark of storage vendors say: how busy does each loader keep an accelerator?

    python benchmarks/bench_dlio.py --environments DIR [--data DIR] [--only WORKLOAD ...]
    python benchmarks/bench_dlio.py --quick

DLIO 2.0, the driver of MLPerf Storage, trains without an accelerator: it asks its loader for a batch, and sleeps as
long as an H100 takes for a step. The accelerator utilisation is the share of the time that it sleeps, without the first
step of each epoch. Samples have the sizes of DLIO's own workloads, in files that its PyTorch loader can read, one each:

- resnet50: JPEGs of 114,660 bytes, batches of 400, steps of 224 ms;
- unet3d: .npz of 146 MB on average, batches of 7, steps of 323 ms;
- cosmoflow: .npz of 2.8 MB, batches of 1, steps of 3.5 ms.

There are fewer files than in MLPerf Storage. They are in the page cache, so loaders are compared, not disks. All
loaders call the same reader of DLIO, which decodes a file and then returns an array that is always the same. So they do
the same work, and as a check the bytes are counted that all processes read. Files are shuffled. dlio_driver.py says
what else is changed about DLIO, for all of them.

Each contestant runs with the numbers of workers and of batches ahead that were fastest in a trial of one epoch. They
take turns in random order, each turn in a fresh process of two epochs. Each has an environment under `--environments`,
which is made if it is missing. DLIO's DALI loader needs one of its own: with NumPy 2 it fails from the 257th sample on.

`--quick` runs mpload alone with small files, where DLIO is installed. Records: benchmarks/records/dlio.jsonl.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from contestants import HERE, CannotRunError, environment
from records import write_record

DLIO = "dlio-benchmark==2.0.0"
"""Installed without its dependencies: one of them is a placeholder for a package of another index."""
EPOCHS = 2
MAX_SECONDS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A workload of DLIO, scaled down to fewer files."""

    name: str
    format: str
    num_files: int
    num_names: int = 1
    """How many names each file has, for more steps in an epoch from no more memory."""
    record_bytes: int | None = None
    """What DLIO takes for the size of a sample; None means that of its own workload."""

    def options(self, data: Path) -> list[str]:
        dataset: dict[str, object] = {
            "format": self.format,
            "num_files_train": self.num_files * self.num_names,
            "num_samples_per_file": 1,
            "data_folder": data / self.name,
        }
        if self.record_bytes is not None:
            dataset["record_length"] = self.record_bytes
        return [f"workload={self.name}_h100", *(f"++workload.dataset.{key}={value}" for key, value in dataset.items())]


WORKLOADS = (
    Workload(name="resnet50", format="jpeg", num_files=4000, record_bytes=451 * 451),  # pixels; 114,660 bytes as a JPEG
    Workload(name="unet3d", format="npz", num_files=28, num_names=2),
    Workload(name="cosmoflow", format="npz", num_files=600),
)
CHECKED = Workload(name="cosmoflow", format="npz", num_files=24, record_bytes=10_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a user of DLIO would try out."""

    num_workers: int
    prefetch_size: int = 2
    """Number of batches that are made ahead, in all; 2 is DLIO's own. mpload ignores it."""

    @property
    def options(self) -> list[str]:
        values = {"read_threads": self.num_workers, "prefetch_size": self.prefetch_size, "sample_shuffle": "seed"}
        return [f"++workload.reader.{key}={value}" for key, value in values.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """The options with which DLIO uses a loader."""

    name: str
    loader: str
    environment: str
    settings: tuple[Setting, ...] = (
        Setting(num_workers=2),
        Setting(num_workers=2, prefetch_size=8),
        Setting(num_workers=4, prefetch_size=8),
    )

    @property
    def options(self) -> list[str]:
        if self.loader != "mpload":
            return [f"++workload.reader.data_loader={self.loader}"]
        plugin = {"data_loader": "pytorch", "data_loader_classname": "dlio_plugin.MploadLoader"}
        return [f"++workload.reader.{key}={value}" for key, value in {**plugin, "data_loader_sampler": "index"}.items()]


CONTESTANTS = (
    Contestant(
        name="mpload",
        loader="mpload",
        environment="dlio",
        settings=(Setting(num_workers=2), Setting(num_workers=4)),
    ),
    Contestant(name="DLIO's PyTorch loader", loader="pytorch", environment="dlio"),
    Contestant(name="DLIO's DALI loader", loader="dali", environment="dlio-dali"),
)


def installed(name: str, folder: Path | None) -> Path:
    """Return the interpreter of an environment with DLIO."""
    python = environment(name, folder)
    if subprocess.run([python, "-c", "import dlio_benchmark"], cwd=HERE, capture_output=True, check=False).returncode:
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", DLIO], check=True)
    return python


def run_dlio(python: Path, options: Sequence[str], out: Path) -> None:
    """Run DLIO, which writes its results to the folder `out`."""
    general = {"framework": "pytorch", "workflow.checkpoint": False, "output.folder": out}
    command = [
        *(str(python), "-W", "ignore", "-c", "import dlio_driver; dlio_driver.main()", f"hydra.run.dir={out}"),
        *(f"++workload.{key}={value}" for key, value in general.items()),
        *options,
    ]
    path = os.pathsep.join([str(HERE), str(HERE.parent)])
    variables = {"PYTHONPATH": path, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    with (out / "log.txt").open("w") as log:
        process = subprocess.Popen(
            command, cwd=out, env={**os.environ, **variables}, stdout=log, stderr=log, start_new_session=True
        )
    try:
        status = process.wait(MAX_SECONDS)
    except subprocess.TimeoutExpired:
        raise CannotRunError(f"no end after {MAX_SECONDS} s") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # DALI's workers outlive their parent
        process.wait()
    if status:
        lines = (out / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()
        raise CannotRunError(([line for line in lines if "Error" in line] or lines or ["?"])[-1][:300])


def generate(python: Path, workload: Workload, data: Path) -> None:
    """Let DLIO write the files of a workload, unless they are there."""
    folder = data / workload.name / "train"
    if not folder.exists():
        flags = ["++workload.workflow.generate_data=True", "++workload.workflow.train=False"]
        options = [*replace(workload, num_names=1).options(data), "++workload.reader.data_loader=pytorch", *flags]
        with tempfile.TemporaryDirectory() as out:
            run_dlio(python, options, Path(out))
        for file in sorted(folder.iterdir()):
            for number in range(1, workload.num_names):
                os.link(file, folder / f"{number}-{file.name}")
    for file in folder.iterdir():
        file.read_bytes()  # brings it into the page cache


def measured(
    contestant: Contestant, python: Path, workload: Workload, data: Path, setting: Setting, num_epochs: int = EPOCHS
) -> dict[str, Any]:
    """Return what DLIO says about the epochs of a run."""
    options = [*setting.options, *contestant.options, f"++workload.train.epochs={num_epochs}"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        run_dlio(python, [*workload.options(data), *options], out)
        metric = json.loads((out / "summary.json").read_text(encoding="utf-8"))["metric"]
        counts = json.loads((out / "counts.json").read_text(encoding="utf-8"))
    return {
        "utilisation_percent": [round(each, 2) for each in metric["train_au_percentage"]],
        "samples_per_second": [round(each, 2) for each in metric["train_throughput_samples_per_second"]],
        "read_bytes": [counts["read_bytes"]],
    }


def check(contestant: Contestant, python: Path, data: Path) -> None:
    """Raise `CannotRunError` unless each of two epochs reads every sample once."""
    generate(python, CHECKED, data)
    noting = "++workload.reader.reader_classname=dlio_reader.NotingReader"
    options = [*contestant.settings[0].options, *contestant.options, noting, "++workload.train.epochs=2"]
    with tempfile.TemporaryDirectory() as folder:
        run_dlio(python, [*CHECKED.options(data), *options], Path(folder))
        notes = Path(folder).glob("*.samples")
        found = Counter(int(line) for file in notes for line in file.read_text(encoding="ascii").splitlines())
    if found != dict.fromkeys(range(CHECKED.num_files), 2):
        raise CannotRunError(f"does not read every sample once an epoch: {dict(found)}"[:300])


def best_setting(contestant: Contestant, python: Path, workload: Workload, data: Path) -> Setting:
    """Return the fastest setting in a trial, whose result is kept in a file."""
    kept = data / f"{workload.name}-{contestant.loader}.trial"
    if not kept.exists():
        rates = {}
        for setting in contestant.settings:
            found = measured(contestant, python, workload, data, setting, num_epochs=1)
            rates[setting] = found["samples_per_second"][0]
        print(f"  {workload.name}, {contestant.name}: samples/s by setting {rates}", flush=True)
        kept.write_text(json.dumps(asdict(max(rates, key=rates.__getitem__))), encoding="ascii")
    return Setting(**json.loads(kept.read_text(encoding="ascii")))


def race(workload: Workload, pythons: dict[Contestant, Path], data: Path, num_rounds: int) -> None:
    """Find each contestant's best setting, let them take turns, and write the records."""
    best: dict[Contestant, Setting] = {}
    for contestant, python in pythons.items():
        try:
            check(contestant, python, data / "checked")
            best[contestant] = best_setting(contestant, python, workload, data)
        except CannotRunError as error:
            write(workload, contestant, {}, {"failed": str(error)})
    turns: dict[Contestant, list[dict[str, Any]]] = {contestant: [] for contestant in best}
    for number in range(num_rounds):
        for contestant in random.Random(number).sample(list(best), len(best)):
            turns[contestant].append(measured(contestant, pythons[contestant], workload, data, best[contestant]))
    total_bytes = EPOCHS * sum(file.stat().st_size for file in (data / workload.name / "train").iterdir())
    for contestant, of_contestant in turns.items() if num_rounds else ():
        figures = {key: [value for turn in of_contestant for value in turn[key]] for key in of_contestant[0]}
        read = figures.pop("read_bytes")
        figures["read_share_of_files"] = [round(each / total_bytes, 3) for each in read]
        case = {
            "dlio": DLIO,
            "num_files": workload.num_files,
            "num_names": workload.num_names,
            "format": workload.format,
            **asdict(best[contestant]),
        }
        write(workload, contestant, case, figures)


def write(workload: Workload, contestant: Contestant, case: dict[str, Any], figures: dict[str, Any]) -> None:
    print(f"{workload.name:10} {contestant.name:24} {json.dumps(figures)}", flush=True)
    write_record("dlio", {"workload": workload.name, "contestant": contestant.name, **case}, figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="mpload alone, small files; write no record")
    parser.add_argument("--environments", type=Path, help="folder of the contestants' virtual environments")
    parser.add_argument("--data", type=Path, help="folder that keeps the files, 6 GB; default: a temporary one")
    parser.add_argument("--only", nargs="+", choices=[each.name for each in WORKLOADS], help="run only these workloads")
    parser.add_argument("--rounds", type=int, default=3, help="0: only find the best settings")
    arguments = parser.parse_args()
    if not arguments.quick and arguments.environments is None:
        parser.error("pass --environments DIR or --quick")
    with tempfile.TemporaryDirectory() as temporary:
        data = (arguments.data or Path(temporary)).absolute()
        if arguments.quick:
            if find_spec("dlio_benchmark") is None:
                print("not run: dlio_benchmark is not installed here")
                return
            python = Path(sys.executable)
            check(CONTESTANTS[0], python, data)
            print(measured(CONTESTANTS[0], python, CHECKED, data, Setting(num_workers=2)))
            return
        folder = arguments.environments.absolute()
        pythons = {contestant: installed(contestant.environment, folder) for contestant in CONTESTANTS}
        for workload in WORKLOADS:
            if not arguments.only or workload.name in arguments.only:
                generate(pythons[CONTESTANTS[0]], workload, data)
                race(workload, pythons, data, arguments.rounds)


if __name__ == "__main__":
    main()
