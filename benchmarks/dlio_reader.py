"""DLIO's reader of .npz files, which notes each sample that it reads: `reader_classname=dlio_reader.NotingReader`."""

import os
from pathlib import Path
from typing import Any

from dlio_benchmark.reader.npz_reader import NPZReader

__all__ = ["NotingReader"]


class NotingReader(NPZReader):  # type: ignore[misc]  # DLIO has no types
    """Appends the numbers of the samples to a file of its process, `PID.samples`, in the folder of the results."""

    def read_index(self, image_idx: int, step: int) -> Any:
        with Path(self._args.output_folder, f"{os.getpid()}.samples").open("a", encoding="ascii") as notes:
            notes.write(f"{image_idx}\n")
        return super().read_index(image_idx, step)
