"""What does an epoch lead to if the web server fails, how long does that take, and what does the error say?

    python benchmarks/bench_faults.py [--quick | --only TEXT]

Each case is an epoch over 16 photographs on a web server on the loopback interface, which is a process of its own and
has one fault: with "raise" and "skip", without workers and with 2. A request may take 0.5 s, and a read 2 s with all
its repetitions; for three faults each four times as long. The benchmark fails if an epoch leads to anything else than
tests/support/fault_table.py says, or if it takes more than 1.2 times the limit. The seconds count from the first
request that meets the fault, or else from the start of the epoch. A case that fails is tried once more, since the
machine may have been busy. Records: benchmarks/records/faults.jsonl.
"""

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path

from records import write_record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only some of the faults; write no record")
    parser.add_argument("--only", default="", metavar="TEXT", help="only faults whose name contains this")
    arguments = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.support.fault_runs import make_files, run_in_time
    from tests.support.fault_table import FAULTS, LIMITS

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_files(folder / "files")
        os.chdir(folder)  # error reports are written here
        for fault in [each for each in FAULTS if arguments.only in each.name and (each.is_fast or not arguments.quick)]:
            for on_error in ("raise", "skip"):
                for num_workers in (0, 2):
                    limits = {limit: fault.scale * seconds for limit, seconds in LIMITS.items()}
                    case = {"fault": fault.name, "on_error": on_error, "num_workers": num_workers, **limits}
                    found = run_in_time(
                        fault,
                        folder / "files",
                        folder,
                        on_error=on_error,
                        num_workers=num_workers,
                        scale=fault.scale,
                    )
                    figures = {
                        "outcome": str(fault.outcome),
                        "num_samples": len(found.labels),
                        "seconds": round(found.seconds, 3),
                        "message": None if found.message is None else plain(found.message, folder),
                    }
                    print(case, figures, flush=True)
                    if not arguments.quick:
                        write_record("faults", case, figures)
        os.chdir("/")


def plain(message: str, folder: Path) -> str:
    """Return a message without what differs from run to run: the folder and the port."""
    return re.sub(r"127\.0\.0\.1:\d+", "example.com", message.replace(f"{folder}/", ""))


if __name__ == "__main__":
    main()
