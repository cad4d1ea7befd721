"""The C code of the native decoder in a loop in C, over the crops of mpload's epoch: the upper bound of the codec.

There is one process per core.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

import numpy as np
from bench_decode import Turn, Views, compile_limit, limit

import mpload
from peers.race import CROP, Batch, Contestant, Epoch, Output, Race

__all__ = ["CONTESTANTS", "prepare"]


def prepare(data: Path) -> None:
    """Write the index, and compile the loop."""
    mpload.build_index(data / "photos", data / "limit.txt")
    compile_limit(data)


def start(race: Race) -> Epoch:
    if race.output is not Output.UINT8:
        raise SystemExit("the loop in C makes uint8 crops only")
    dataset = mpload.MPDataset(race.listing or race.data / "limit.txt", decode=mpload.RandomResizedCrop(CROP))
    num_samples = len(dataset.index)

    def epoch(number: int) -> Iterator[Batch | None]:
        views = Views(dataset._run.pipeline, epoch=number)  # noqa: SLF001  the crops that mpload makes
        free: SimpleQueue[Turn] = SimpleQueue()

        def batch(first: int) -> Batch:
            last = min(first + race.batch_size, num_samples)
            turn = free.get()
            turn(first, last)
            free.put(turn)
            return None, np.zeros(last - first)  # the pixels stay in the C process

        with ExitStack() as stack:
            for _ in range(race.num_workers):
                free.put(stack.enter_context(limit(views, race.data / "decode_limit")))
            threads = stack.enter_context(ThreadPoolExecutor(race.num_workers))
            yield None
            yield from threads.map(batch, range(0, num_samples, race.batch_size))

    return epoch


CONTESTANTS: dict[str, Contestant] = {"loop in C": Contestant(start=start, library="mpload")}
