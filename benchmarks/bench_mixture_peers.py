"""How well do loaders that mix datasets by weight keep the shares, repeat a small source, and resume after a kill?

    python benchmarks/bench_mixture_peers.py --environments DIR [--data DIR] [--only NAME ...]
    python benchmarks/bench_mixture_peers.py --quick

Three sources of 10,000, 1,000 and 72 samples are mixed with the weights 0.7, 0.2 and 0.1, in batches of 64. A sample is
an integer. Each contestant reads it from files of its own format, with its sources shuffled, and is set up as its
authors describe; see peers/mix_*.py. All samples of all batches are compared.

- Shares: over all beginnings of a run of up to 100, 1,000 or 10,000 samples, how many samples a source has too many or
  too few; the worst source of the worst of three seeds.
- Repeats: the fewest and the most times that a sample of the small source occurs in 20,000 samples.
- Resume: a process receives 320 samples, or 13,056 (no longer in the first epoch), saves its state, and is killed with
  its workers. Another process continues from the state. Are its next 2,048 samples those of a run that was not
  interrupted? With no workers, with two, and from a state of two workers with three.
- Samples per second without workers, after 20 batches, and the peak memory of all processes with two workers, for a
  large source of 10,000 and of 300,000 samples. Of PSS, only anonymous and shared memory count, not mapped files: how
  much of a library counts depends on which other processes have loaded it.

Each run is a fresh process. Each peer has a virtual environment under `--environments`, as in bench_peers.py. A peer
that fails is listed with the reason. `--quick` runs mpload alone. Records: benchmarks/records/mixture_peers.jsonl.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import psutil
from contestants import HERE, CannotRunError, Entry, environment
from numpy.typing import NDArray
from peers.mix import SOURCES, STRIDE, source_lengths
from records import write_record

NUM_SAMPLES = 20_000
PREFIXES = (100, 1_000, 10_000)
SEEDS = (0, 1, 2)
SAVED_AT = (320, 13_056)
FOLLOWING = 2_048
WORKERS = {"0 workers": (0, 0), "2 workers": (2, 2), "2 workers, then 3": (2, 3)}
"""Name -> number of workers of the killed process, and of the one that continues."""
MANY = 30
"""How many times longer the large source is when memory is measured again."""
MAX_SECONDS = 150
INTERVAL_SECONDS = 0.1
MEASURES = ("exactness", "memory")

ENTRIES = (
    Entry(name="mpload", module="mix_ours", distribution="mpload"),
    Entry(name="Grain, mix", module="mix_grain", distribution="grain", environment="grain"),
    Entry(
        name="litData, CombinedStreamingDataset",
        module="mix_lit",
        distribution="litdata",
        environment="lit",
        note="an epoch ends with its smallest source",
    ),
    Entry(
        name="mosaicml-streaming, Stream(proportion=)",
        module="mix_mosaic",
        distribution="mosaicml-streaming",
        environment="mosaic",
        note="its torch is built for CUDA, which takes memory",
    ),
    Entry(
        name="mosaicml-streaming, stratified batches",
        module="mix_mosaic",
        distribution="mosaicml-streaming",
        environment="mosaic",
        note="the same torch; an epoch ends before its samples are used up",
    ),
    Entry(
        name="WebDataset, RandomMix",
        module="mix_wds",
        distribution="webdataset",
        environment="wds",
        note="has no state",
    ),
)

Samples = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A contestant, its interpreter and its files."""

    entry: Entry
    python: Path
    data: Path

    def command(self, **options: object) -> list[str]:
        words = [str(self.python), "-W", "ignore", "-m", "peers.mix_run", self.entry.module, "--data", str(self.data)]
        for option, value in options.items():
            words += [f"--{option.replace('_', '-')}", str(value)]
        return words

    def prepare(self, lengths: dict[str, int]) -> None:
        if (self.data / "done").exists():
            return
        self.data.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            self.command(prepare=json.dumps(lengths)), cwd=HERE, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise CannotRunError((done.stderr.strip().splitlines() or ["?"])[-1][:300])
        (self.data / "done").touch()

    def run(self, num_samples: int, **options: object) -> tuple[dict[str, Any], Samples]:
        """Return what a process reports, and the samples that it has read. It is killed with its workers after that."""
        out, log = self.data / "read.npy", self.data / "log.txt"
        out.unlink(missing_ok=True)
        command = self.command(
            name=self.entry.name,
            distribution=self.entry.distribution,
            num_samples=num_samples,
            out=out,
            **options,
        )
        with log.open("w") as errors:
            process = subprocess.Popen(
                command, cwd=HERE, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
            )
        assert process.stdout is not None
        deadline = threading.Timer(MAX_SECONDS, kill, [process])
        deadline.start()
        try:
            with Watch(process.pid) as watch:
                facts = next((json.loads(line) for line in process.stdout if line.startswith('{"version"')), None)
        finally:
            deadline.cancel()
            kill(process)
        if facts is None:
            errors_found = re.findall(r"^\w*Error: .*", log.read_text(errors="replace"), re.MULTILINE)
            raise CannotRunError((errors_found or [f"no end after {MAX_SECONDS} s"])[0][:200])
        facts["peak_bytes"] = watch.peak_bytes
        return facts, np.load(out)


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a process and its workers, which are in its group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Watch(threading.Thread):
    """Samples the memory of a process and its descendants until the end of the block."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.peak_bytes = 0
        self.is_over = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        self.join()

    def run(self) -> None:
        while not self.is_over.wait(INTERVAL_SECONDS):
            with suppress(psutil.NoSuchProcess):
                family = [self.pid, *(child.pid for child in psutil.Process(self.pid).children(recursive=True))]
                self.peak_bytes = max(self.peak_bytes, sum(map(anonymous_and_shared_bytes, family)))


def anonymous_and_shared_bytes(pid: int) -> int:
    """Return the part of a process's PSS that is no mapped file; 0 if the process has ended."""
    with suppress(OSError):
        words = map(str.split, Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines())
        return 1024 * sum(int(line[1]) for line in words if line[0] in {"Pss_Anon:", "Pss_Shmem:"})
    return 0


def excess_of(samples: Samples) -> list[float]:
    """Return for each length how many samples a source has too many or too few, at the worst of all beginnings."""
    counts = np.cumsum(samples[:, None] // STRIDE == np.arange(len(SOURCES)), axis=0)
    weights = np.array([weight for _, weight in SOURCES.values()])
    off = np.abs(counts - np.arange(1, len(samples) + 1)[:, None] * weights).max(axis=1)
    return [round(float(off[:length].max()), 2) for length in PREFIXES]


def repeats_of(samples: Samples) -> list[int]:
    """Return the fewest and the most times that a sample of the small source occurs."""
    small = len(SOURCES) - 1
    length = SOURCES["small"][0]
    counts = np.bincount(samples[samples // STRIDE == small] % STRIDE, minlength=length)
    return [int(counts.min()), int(counts.max())]


def outcome_of(contestant: Contestant, workers: tuple[int, int], num_saved: int) -> str:
    """Return whether a run that was killed goes on as one that was not: exact, an error, or what differs."""
    before, after = workers
    state = contestant.data / "state.pickle"
    state.unlink(missing_ok=True)
    try:
        _, whole = contestant.run(num_saved + FOLLOWING, num_workers=before)
        _, first = contestant.run(num_saved, num_workers=before, save=state)
        _, rest = contestant.run(FOLLOWING, num_workers=after, resume=state)
    except CannotRunError as error:
        return f"error: {error}"
    if not np.array_equal(first[:num_saved], whole[:num_saved]):
        return "the order of a run is another one in each process"
    wanted, rest = whole[num_saved : num_saved + FOLLOWING], rest[:FOLLOWING]
    if np.array_equal(rest, wanted):
        return "exact"
    num_same = int(np.sum(rest == wanted))
    return f"{num_same / FOLLOWING:.0%} of the samples are the same"


def exactness_of(contestant: Contestant, *, quick: bool) -> dict[str, Any]:
    """Return how exactly a contestant mixes and resumes, and its rate."""
    contestant.prepare(source_lengths(1))
    seeds, changes = (SEEDS[:1], list(WORKERS.items())[-1:]) if quick else (SEEDS, list(WORKERS.items()))
    runs = [contestant.run(NUM_SAMPLES, seed=seed) for seed in seeds]
    excess = np.max([excess_of(samples) for _, samples in runs], axis=0).tolist()
    resumed = {
        name: {str(num_saved): outcome_of(contestant, workers, num_saved) for num_saved in SAVED_AT}
        for name, workers in changes
    }
    repeats = [repeats_of(samples) for _, samples in runs]
    return {
        "version": runs[0][0]["version"],
        "excess_samples": dict(zip(map(str, PREFIXES), excess, strict=True)),
        "fewest_and_most_times": [min(low for low, _ in repeats), max(high for _, high in repeats)],
        "resumed": resumed,
        "samples_per_second": [round(found["samples_per_second"]) for found, _ in runs],
    }


def peaks_of(contestant: Contestant, many: Contestant) -> dict[str, Any]:
    """Return the peak memory for both lengths of the large source."""
    contestant.prepare(source_lengths(1))
    many.prepare(source_lengths(MANY))
    peaks = [each.run(NUM_SAMPLES, num_workers=2)[0]["peak_bytes"] for each in (contestant, many)]
    return {"peak_bytes": peaks[0], "peak_bytes_of_many": peaks[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="mpload alone, a few runs; write no record")
    parser.add_argument("--environments", type=Path, help="folder of the contestants' virtual environments")
    parser.add_argument("--data", type=Path, help="folder that keeps the files; default: a temporary one")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run only these contestants or modules")
    parser.add_argument("--measures", nargs="+", choices=MEASURES, default=MEASURES)
    arguments = parser.parse_args()
    if not arguments.quick and arguments.environments is None:
        parser.error("pass --environments DIR or --quick")
    wanted = {"mpload"} if arguments.quick else set(arguments.only or ())
    folder = None if arguments.quick else arguments.environments.absolute()
    with tempfile.TemporaryDirectory() as temporary:
        data = (arguments.data or Path(temporary)).absolute()
        for entry in ENTRIES:
            if wanted and not wanted & {entry.name, entry.module}:
                continue
            for measure in arguments.measures:
                try:
                    python = environment(entry.environment, folder)
                    few, many = (
                        Contestant(entry=entry, python=python, data=data / size / entry.module)
                        for size in ("few", "many")
                    )
                    figures = (
                        exactness_of(few, quick=arguments.quick) if measure == "exactness" else peaks_of(few, many)
                    )
                except CannotRunError as error:
                    figures = {"failed": str(error)}
                print(f"{entry.name:40} {json.dumps(figures)}", flush=True)
                if not arguments.quick:
                    case = {"contestant": entry.name, "measure": measure, "note": entry.note}
                    write_record("mixture_peers", case, figures)


if __name__ == "__main__":
    main()
