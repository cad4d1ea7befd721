"""mpload: a memory-aware multiprocess data loader for PyTorch.

Names are imported when they are first used, so that the command line and worker processes start without torch. Which
names there are, and where, is written once, in `__init__.pyi`: type checkers read it instead of this file.
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
__all__ = sorted(_MODULES)  # noqa: PLE0605  the stub names them to type checkers


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'mpload' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
