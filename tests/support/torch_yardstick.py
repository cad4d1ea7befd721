"""PyTorch's own tests of the DataLoader, with an MPLoader in its place.

    python -m tests.support.torch_yardstick PYTORCH/test/test_dataloader.py [NAME ...]

runs each test that makes a loader in a process of its own, and says which fail. The file is that of the installed
version of PyTorch; its wheel does not contain it. `pip install psutil expecttest` first.
"""

import ast
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.utils.data

from mpload import MPLoader

DIFFERENCES = {
    "TestDataLoader.test_segfault": "the error has other words, and names the sample",
    "TestDataLoader.test_timeout": "the error has other words; the worker is replaced",
    "TestDataLoader.test_invalid_ctor_args_combinations": "the errors have other words",
    "TestDataLoader.test_multi_epochs_reproducibility": "workers of an iterable dataset do not take turns",
    "TestDataLoader.test_worker_init_fn": "random numbers are seeded for each sample, after worker_init_fn",
    "TestDataLoader.test_excessive_thread_creation_warning": "1000 workers are refused if they exceed the budget",
    "IntegrationTestDataLoaderDataPipe.test_shuffler_iterdatapipe": "torch.manual_seed has no effect on the order",
}
"""What fails, and why: docs/from-dataloader.md says more."""

_PATCH = "import tests.support.torch_yardstick as _yardstick; _yardstick.stand_in(); "
_IMPORT = "from torch.utils.data import DataLoader"
_MARKS = ("_get_data_loader", "DataLoader(", "ErrorTrackingProcess", "_test_")
_LIMIT_SECONDS = 90
_START_SECONDS = 5.0


class _Worker:
    """A worker process, with the methods that the tests call."""

    def __init__(self, pid: int) -> None:
        import psutil  # type: ignore[import-untyped,unused-ignore]

        self.pid = pid
        self.exitcode: int | None = None
        self._process = psutil.Process(pid)

    def is_alive(self) -> bool:
        return bool(self._process.is_running() and self._process.status() != "zombie")

    def join(self, timeout: float | None = None) -> None:
        import psutil

        try:
            self._process.wait(timeout)
        except psutil.TimeoutExpired:
            return
        self.exitcode = 0

    def terminate(self) -> None:
        if self.is_alive():
            self._process.terminate()


class _Iteration(Iterator[Any]):
    """An iteration that knows its workers."""

    def __init__(self, loader: "DataLoader") -> None:
        self._batches = MPLoader.__iter__(loader)
        num_workers, ends = loader.num_workers, time.monotonic() + _START_SECONDS
        while len(loader.pids) < num_workers + bool(num_workers) and time.monotonic() < ends:
            loader._usable_engine().pool._poll(0.05)
        self._workers = [_Worker(pid) for name, pid in loader.pids.items() if "worker" in name]

    def __next__(self) -> Any:
        return next(self._batches)


class DataLoader(MPLoader[Any]):
    """An MPLoader with a DataLoader's defaults, and the attributes that the tests read."""

    def __init__(self, dataset: Any, batch_size: int | None = 1, shuffle: Any = None, **options: Any) -> None:
        for name, default in (("num_workers", 0), ("drop_last", False)):
            options.setdefault(name, default)
        self._has_batches = batch_size is not None or options.get("batch_sampler") is not None
        super().__init__(dataset, batch_size=batch_size, shuffle=shuffle, **options)

    def __class_getitem__(cls, _: Any) -> Any:
        return cls

    def __iter__(self) -> Iterator[Any]:
        return _Iteration(self)

    @property
    def _auto_collation(self) -> bool:
        return self._has_batches

    @property
    def batch_size(self) -> Any:
        return super().batch_size if self._has_batches else None


def stand_in() -> None:
    """Put the class above in the DataLoader's place."""
    torch.utils.data.DataLoader = DataLoader  # type: ignore[misc,assignment]


def names_in(source: str) -> list[str]:
    """Return the names of the tests that make a loader, and need no accelerator."""
    names = []
    for kind in ast.parse(source).body:
        if not isinstance(kind, ast.ClassDef) or not kind.name.endswith(("Loader", "Pipe", "Workers", "Fork", "nity")):
            continue
        for test in kind.body:
            if not isinstance(test, ast.FunctionDef) or not test.name.startswith("test_"):
                continue
            decorators = " ".join(map(ast.unparse, test.decorator_list))
            text = ast.get_source_segment(source, test) or ""
            if any(mark in text for mark in _MARKS) and not any(
                device in decorators for device in ("TEST_CUDA", "TEST_NPU", "slowTest")
            ):
                names.append(f"{kind.name}.{test.name}")
    return names


def run(file: Path, names: list[str]) -> int:
    """Run tests of `file`, or all that make a loader; return how many behave otherwise than `DIFFERENCES` says."""
    source = file.read_text()
    num_passed = num_unexpected = 0
    names = names or names_in(source)
    with tempfile.TemporaryDirectory() as folder:
        patched = source.replace(_IMPORT, _PATCH + _IMPORT)
        Path(folder, "test_dataloader.py").write_text(f"{_PATCH}\n{patched}")
        paths = [folder, str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        for name in names:
            command = [sys.executable, "-W", "ignore", "-m", "unittest", f"test_dataloader.{name}"]
            try:
                done = subprocess.run(  # noqa: PLW1510  a failing test is a result
                    command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_LIMIT_SECONDS
                )
                has_passed, lines = not done.returncode and "skipped" not in done.stderr, done.stderr.splitlines()
            except subprocess.TimeoutExpired:
                has_passed, lines = False, ["it takes too long"]
            num_passed += has_passed
            num_unexpected += not has_passed and name not in DIFFERENCES
            errors = [line for line in lines if "Error" in line or "skipped" in line] or lines
            print(f"{'PASS' if has_passed else 'FAIL'} {name}", "" if has_passed else errors[-1][:200], flush=True)
    print(f"{num_passed} of {len(names)} pass, {num_unexpected} fail unexpectedly")
    return num_unexpected


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), sys.argv[2:]) > 0)
