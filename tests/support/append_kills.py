"""Kill processes at any step of an append, and read the index while others append to it.

    python -m tests.support.append_kills FOLDER NUM_KILLS

Forks from a process without threads. Prints its findings as JSON.
"""

import json
import os
import random
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from mpload.errors import IndexChangedError
from mpload.index.opening import open_index
from mpload.ingest.appending import append_to_index
from mpload.ingest.build import build_index
from tests.support.children import in_child

NUM_BEFORE, NUM_AFTER = 20, 30
NUM_APPENDS = 25


def add_files(folder: Path, numbers: range) -> None:
    """Write files whose class is the rest of their number by 3."""
    for number in numbers:
        file = folder / "data" / str(number % 3) / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(number))


def append(folder: Path) -> None:
    append_to_index(folder / "data", folder / "all.txt")


def append_until(folder: Path, last_step: int = 0) -> int:
    """Append, and die at a step: a call or return of a function. Return the number of steps."""
    steps = 0

    def count(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == last_step:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)
    append(folder)
    sys.setprofile(None)
    return steps


def kill_at(folder: Path, step: int, texts: list[bytes]) -> bool:
    """Kill an append at a step, and check what it leaves. Return whether that is the new index."""
    text = folder / "all.txt"
    text.write_bytes(texts[0])
    assert len(open_index(text)) == NUM_BEFORE
    assert in_child(lambda: append_until(folder, step)) in {0, -signal.SIGKILL}
    left = text.read_bytes()
    assert left in texts
    index = open_index(text)
    assert len(index) == (NUM_BEFORE, NUM_AFTER)[texts.index(left)]
    check(folder)
    append(folder)
    assert text.read_bytes() == texts[1]
    check(folder)
    return left == texts[1]


def check(folder: Path) -> int:
    """Check that every line of the index is right, and return their number."""
    index = open_index(folder / "all.txt")
    numbers = [int(Path(str(record["image"])).stem) for record in index]
    assert len(set(numbers)) == len(numbers)
    assert index.labels[:].tolist() == [number % 3 for number in numbers]
    return len(numbers)


def read_until(folder: Path, num_samples: int) -> None:
    """Open and read the index again and again, until it has all samples."""
    found = 0
    while found < num_samples:
        with suppress(IndexChangedError):  # replaced while it was being opened
            now = check(folder)
            assert now >= found
            found = now


def main(folder: Path, num_kills: int) -> None:
    """Print how many kills left the old index and the new one, and whether the reader was content."""
    add_files(folder, range(NUM_BEFORE))
    text = build_index(folder / "data", folder / "all.txt")
    texts = [text.read_bytes()]
    add_files(folder, range(NUM_BEFORE, NUM_AFTER))
    append(folder)
    texts.append(text.read_bytes())
    text.write_bytes(texts[0])
    num_steps = append_until(folder)  # the second time, without imports
    assert check(folder) == NUM_AFTER
    rng = random.Random(0)
    steps = [rng.randrange(1, num_steps + 1) for _ in range(num_kills)]
    found = [kill_at(folder, step, texts) for step in steps]
    last = NUM_AFTER + NUM_APPENDS
    reader = os.fork()
    if not reader:
        os._exit(in_child(lambda: read_until(folder, last)))
    for number in range(NUM_AFTER, last):
        add_files(folder, range(number, number + 1))
        append(folder)
    status = os.waitstatus_to_exitcode(os.waitpid(reader, 0)[1])
    print(json.dumps({"old": found.count(False), "new": found.count(True), "reader": status}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
