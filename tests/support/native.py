"""What tests of the native decoder share."""

import pytest

from mpload.images.jpeg import jpeg_backend

__all__ = ["needs_native"]

needs_native = pytest.mark.skipif(not jpeg_backend().startswith("native"), reason="the native decoder is not built")
