"""How long does the first batch take, by number of samples, at the start of an epoch and after resuming at 90 % of it?

    python benchmarks/bench_start.py [--quick]

Measured from the end of the imports to the first batch of 256 (bytes of small files), with two workers. The index and
its sidecar already exist. "list" keeps (path, label) tuples in torchdata's StatefulDataLoader, a stock DataLoader that
can resume; its list is read from the same text. Each case runs three times, each time in a fresh process; the result is
the median. Records: benchmarks/records/start.jsonl.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

from records import write_record

import mpload

NUM_FILES = 64
FILE_BYTES = 4096

PROGRAMS = {
    "mpload": """
from mpload import MPDataset, MPLoader, RawBytes
def make(path):
    dataset = MPDataset(path, decode=RawBytes(), batch_size=256, shuffle=True)
    return MPLoader(dataset, num_workers=2)
def state_at(loader, path, batch):
    state = loader.state_dict()
    return state | {"position": batch * 256}
""",
    "list": """
from pathlib import Path
from torchdata.stateful_dataloader import StatefulDataLoader
class Listed:
    def __init__(self, path):
        self.root = Path(path).parent
        with open(path) as file:
            lines = (line.rstrip().split("\\t") for line in file if not line.startswith("#"))
            self.samples = [(name, int(label)) for name, label in lines]
    def __len__(self):
        return len(self.samples)
    def __getitem__(self, number):
        name, label = self.samples[number]
        return (self.root / name).read_bytes(), label
def make(path):
    return StatefulDataLoader(Listed(path), batch_size=256, shuffle=True, num_workers=2, collate_fn=list)
def state_at(loader, path, batch):
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    state["_snapshot"]["_snapshot_step"] = batch
    state["_snapshot"]["_main_snapshot"]["_num_yielded"] = batch
    state["_snapshot"]["_main_snapshot"]["_sampler_iter_yielded"] = batch
    state["_steps_since_snapshot"] = 0
    return state
""",
}

MEASURE = """
import json, pickle, sys, time, warnings
warnings.simplefilter("ignore")
path, batch, state_path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if batch and not state_path.endswith(".ready"):
    loader = make(path)
    with open(state_path, "wb") as file:
        pickle.dump(state_at(loader, path, batch), file)
    sys.exit()
start = time.perf_counter()
loader = make(path)
made = time.perf_counter()
if batch:
    with open(state_path.removesuffix(".ready"), "rb") as file:
        loader.load_state_dict(pickle.load(file))
first = next(iter(loader))
print(json.dumps({"made_seconds": made - start, "first_batch_seconds": time.perf_counter() - start}))
"""


def make_index(folder: Path, num_samples: int) -> Path:
    """Write an index that lists a few files over and over, and its sidecar."""
    for number in range(NUM_FILES):
        (folder / f"{number:02d}.bin").write_bytes(bytes(FILE_BYTES))
    path = folder / f"{num_samples}.txt"
    block = "".join(f"{number:02d}.bin\t{number}\n" for number in range(NUM_FILES))
    with path.open("w", encoding="ascii") as file:
        file.write("#mpload 1\n#columns image:path label:int\n")
        for _ in range(num_samples // NUM_FILES):
            file.write(block)
        file.write("".join(block.splitlines(keepends=True)[: num_samples % NUM_FILES]))
    mpload.open_index(path)
    return path


def measure(loader: str, path: Path, batch: int) -> dict[str, float]:
    """Return the seconds until the loader has been made, and until its first batch has arrived."""
    state = path.with_suffix(f".{loader}.state")
    command = [sys.executable, "-c", PROGRAMS[loader] + MEASURE, str(path), str(batch)]
    if batch:
        subprocess.run([*command, str(state)], check=True)
    done = subprocess.run([*command, f"{state}.ready"], check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only 10,000 samples, once; write no record")
    arguments = parser.parse_args()
    nums_samples = [10**4] if arguments.quick else [10**4, 10**5, 10**6, 10**7]
    repetitions = 1 if arguments.quick else 3
    with tempfile.TemporaryDirectory() as name:
        for num_samples in nums_samples:
            path = make_index(Path(name), num_samples)
            for loader, resumed_share in product(PROGRAMS, (0.0, 0.9)):
                batch = int(resumed_share * num_samples / 256)
                found = [measure(loader, path, batch) for _ in range(repetitions)]
                case = {"loader": loader, "num_samples": num_samples, "resumed_share": resumed_share}
                figures = {key: round(statistics.median(each[key] for each in found), 4) for key in found[0]}
                print(json.dumps({**case, **figures}), flush=True)
                if not arguments.quick:
                    write_record("start", case, figures)


if __name__ == "__main__":
    main()
