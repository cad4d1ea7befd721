"""OpenCV, imported when it is first used: JPEGs need none of it, and it takes 20 MB of a job's memory."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mpload.errors import OutageError

__all__ = ["cv2", "load_opencv"]


def load_opencv() -> Any:
    """Import OpenCV, and return it.

    Raises:
        OutageError: it cannot be imported. No sample is to blame, so none is skipped.
    """
    try:
        return import_module("cv2")
    except Exception as error:
        raise OutageError(
            f"OpenCV is needed, but cannot be imported: {error}. Install it again: "
            "pip install --force-reinstall opencv-python-headless"
        ) from error


class _OpenCV:
    """Has the attributes of `cv2`, and imports it for the first one."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(load_opencv(), name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import cv2
else:
    cv2 = _OpenCV()
