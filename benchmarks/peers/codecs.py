"""Finds the JPEG decoder of a library in the library's binary file. Most libraries include their own libjpeg-turbo."""

import mmap
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

__all__ = ["codec"]

FILES = {
    "pil": ("pillow.libs/libjpeg*.so*", ""),
    "albumentations": ("cv2/cv2*.so", ""),
    "simplejpeg": ("simplejpeg/_jpeg*.so", ""),
    "mpload": ("mpload/images/_jpeg*.so", "libjpeg"),
    "dali": ("nvidia/nvimgcodec/extensions/libjpeg_turbo_ext.so*", ""),
    "tensorflow": ("tensorflow/libtensorflow_cc.so*", ""),
    "ffcv": ("ffcv/_libffcv*.so", "libturbojpeg"),
    "mlx": ("mlx/data/_c*.so", ""),
    "datago": ("datago/datago*.so", ""),
}
"""Library -> pattern of its file below a package folder, and the separate shared library that decodes, if any."""
VERSION = re.compile(rb"libjpeg-turbo(?: version |-| \(ver )([\d.]+)")
OTHERS = re.compile(rb"(zune-jpeg)-([\d.]+)")
SIMD = re.compile(rb"JSIMD_FORCE")  # a variable that libjpeg-turbo reads only if it was built with SIMD


def codec(library: str) -> str:
    """Return the decoder's name, its version, and whether it was built with SIMD."""
    pattern, linked = FILES[library]
    file = next(_found(pattern), None)
    if file is None:
        return f"{library}: no file {pattern}"
    if linked:
        file = _linked(file, linked)
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        version = VERSION.search(content)
        if version is None:
            others = [other[1] + b" " + other[2] for other in OTHERS.finditer(content)]
            return max(others, default=b"unknown").decode()
        name = f"libjpeg-turbo {version[1].decode()}"
        return name if SIMD.search(content) else f"{name} without SIMD"


def _found(pattern: str) -> Iterator[Path]:
    spec = find_spec(re.split("[/.]", pattern)[0])  # the folder of an editable install is not in sys.path
    places = None if spec is None else spec.submodule_search_locations
    folders = [str(Path(place).parent) for place in places or ()]
    for folder in (*folders, *sys.path):
        yield from sorted(Path(folder).glob(pattern))


def _linked(file: Path, name: str) -> Path:
    """Return the shared library `name` that the dynamic linker would load for `file`."""
    listed = subprocess.run(["ldd", file], check=True, capture_output=True, text=True).stdout
    places = re.findall(rf"{name}\S* => (\S+)", listed)
    return Path(places[0]) if places else file
