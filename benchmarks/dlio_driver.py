"""DLIO, as the benchmark starts it: it counts the bytes that are read, and two of DLIO's own costs are left out.

    python -c "import dlio_driver; dlio_driver.main()" workload=resnet50_h100 ...

- For every sample, DLIO 2.0 writes out the list of all files, and its DALI loader that of all samples, for messages of
  debugging that are not shown. With thousands of files this takes longer than reading an image. Here the lists are
  written as three dots.
- DLIO 2.0 imports TensorFlow for a profiler. It starts without one here.

Both hold for all contestants. This file runs in the environment of each of them, so it does not import mpload.
"""

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

__all__ = ["ShortFiles", "ShortNumbers", "main"]


class ShortFiles(dict[int, Any]):
    """The file of each sample."""

    def __repr__(self) -> str:
        return "..."


class ShortNumbers(list[int]):
    """The numbers of the samples."""

    def __repr__(self) -> str:
        return "..."


def main() -> None:
    profiler = ModuleType("tf_profiler")
    profiler.TFProfiler = None  # type: ignore[attr-defined]
    sys.modules["dlio_benchmark.profiler.tf_profiler"] = profiler
    from dlio_benchmark import main as dlio
    from dlio_benchmark.utils.config import ConfigArguments

    list_files, run = ConfigArguments.get_global_map_index, dlio.DLIOBenchmark.run

    def list_files_shortly(arguments: Any, *of_list: Any) -> ShortFiles:
        return ShortFiles(list_files(arguments, *of_list))

    def run_and_count(benchmark: Any) -> None:
        before = read_bytes()
        run(benchmark)
        counts = {"read_bytes": read_bytes() - before}
        Path(benchmark.output_folder, "counts.json").write_text(json.dumps(counts), encoding="utf-8")

    ConfigArguments.get_global_map_index = list_files_shortly
    dlio.DLIOBenchmark.run = run_and_count
    if any(option.endswith("data_loader=dali") for option in sys.argv):
        shorten_numbers()
    dlio.main()
    os._exit(0)  # the results are written; waiting for the threads of a contestant would only take time


def shorten_numbers() -> None:
    from dlio_benchmark.data_loader.dali_data_loader import DaliIndexDataset

    prepare = DaliIndexDataset.__init__

    def prepare_shortly(dataset: Any, *arguments: Any) -> None:
        prepare(dataset, *arguments)
        dataset.indices = ShortNumbers(dataset.indices)

    DaliIndexDataset.__init__ = prepare_shortly


def read_bytes() -> int:
    """Return how many bytes this process and its descendants have read, including those that have ended."""
    own = psutil.Process()
    return sum(int(process.io_counters().read_chars) for process in [own, *own.children(recursive=True)])
