"""Finds the native modules of this package. Each is optional: without it, slower Python code does the same."""

from importlib import import_module
from typing import Any

__all__ = ["native_module"]


def native_module(name: str) -> Any:
    """Return the module `mpload.<name>`; None if it was not built, or a library that it needs is missing."""
    try:
        return import_module(f"mpload.{name}")
    except ImportError:
        return None
