"""OpenCV, imported when it is first used: JPEGs need none of it, and it takes 20 MB of a job's memory."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["cv2"]


class _OpenCV:
    """Has the attributes of `cv2`, and imports it for the first one."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module("cv2"), name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import cv2
else:
    cv2 = _OpenCV()
