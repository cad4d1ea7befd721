"""mpload: a memory-aware multiprocess data loader for PyTorch.

Each public name is imported on first use, so that the command line and the worker processes start without torch. The
names and their modules are listed only in `__init__.pyi`, which type checkers read instead of this file.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_MODULES = {
    name.name: str(line.module)
    for line in ast.parse(__spec__.loader.get_data(str(Path(__file__).with_suffix(".pyi")))).body
    if isinstance(line, ast.ImportFrom)
    for name in line.names
}
__all__ = sorted(_MODULES)  # noqa: PLE0605  type checkers find the names in the stub


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'mpload' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
