"""Finds the native modules of this package. Each is optional: without it, slower Python code does the same."""

from importlib import import_module
from typing import Any

__all__ = ["how_to_build", "native_module"]


def native_module(name: str) -> Any:
    """Return the module `mpload.<name>`; None if it was not built, or a library that it needs is missing."""
    try:
        return import_module(f"mpload.{name}")
    except ImportError:
        return None


def how_to_build(headers: str, packages: str) -> str:
    """Return a sentence that says how a native module can be built.

    Args:
        headers: What it needs beside a compiler.
        packages: The packages of Debian that bring these.
    """
    return (
        f"Install a C compiler and {headers} (apt install gcc {packages}), then install mpload again with pip's "
        "options --force-reinstall --no-deps --no-cache-dir"
    )
