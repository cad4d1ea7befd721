"""A script whose dataset cannot be pickled. It loads the dataset in a plain process, and beside a thread."""

import threading
import time
from typing import Any

from torch.utils.data import DataLoader
from tqdm import tqdm

from mpload import ArgumentError, MPLoader
from mpload.transport.forking import why_not_fork


class Locked:
    """Holds a lock and an open file, and imports torch: a fork has all of it already."""

    def __init__(self) -> None:
        import torch

        self.torch, self.lock = torch, threading.Lock()

    def __len__(self) -> int:
        return 40

    def __getitem__(self, number: int) -> Any:
        with self.lock:
            return self.torch.full((2,), number), number


def main() -> None:
    """Print what happens."""
    dataset = Locked()
    for collate in (None, list):
        started = time.process_time()
        with MPLoader(dataset, batch_size=8, num_workers=2, collate_fn=collate) as loader:
            print(sum(len(batch[-1]) for batch in loader) if collate is None else sum(map(len, loader)))
        print(f"{time.process_time() - started < 1}")
    bar, stock = tqdm(range(3), disable=None), iter(DataLoader([1, 2], num_workers=1))  # type: ignore[arg-type]
    next(stock)
    print(threading.active_count() - 1, why_not_fork())
    bar.close()
    del stock
    wait = threading.Event()
    thread = threading.Thread(target=wait.wait, name="busy")
    thread.start()
    try:
        MPLoader(dataset, batch_size=8, num_workers=2)
    except ArgumentError as error:
        print(error)
    wait.set()
    thread.join()


if __name__ == "__main__":
    main()
