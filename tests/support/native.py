"""Marks of tests that need a native module."""

import pytest

from mpload.images.backends import jpeg_backend
from mpload.index.lines import NATIVE

__all__ = ["needs_native", "needs_native_lines"]

needs_native = pytest.mark.skipif(not jpeg_backend().startswith("native"), reason="the native decoder is not built")
needs_native_lines = pytest.mark.skipif(NATIVE is None, reason="the native module of the index is not built")
