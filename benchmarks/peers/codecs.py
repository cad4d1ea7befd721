"""Which JPEG decoder a library has, read from the file that holds it: most bring a libjpeg-turbo of their own."""

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
"""By library: where the file lies below a folder of packages, and which library it links to where that decodes."""
VERSION = re.compile(rb"libjpeg-turbo(?: version |-| \(ver )([\d.]+)")
OTHERS = re.compile(rb"(zune-jpeg)-([\d.]+)")
SIMD = re.compile(rb"JSIMD_FORCE")  # a variable that libjpeg-turbo reads where it was built with its SIMD routines


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
    spec = find_spec(re.split("[/.]", pattern)[0])  # an editable install lies in no folder of sys.path
    places = None if spec is None else spec.submodule_search_locations
    folders = [str(Path(place).parent) for place in places or ()]
    for folder in (*folders, *sys.path):
        yield from sorted(Path(folder).glob(pattern))


def _linked(file: Path, name: str) -> Path:
    """Return the library of that name that the dynamic linker would load for `file`."""
    told = subprocess.run(["ldd", file], check=True, capture_output=True, text=True).stdout
    places = re.findall(rf"{name}\S* => (\S+)", told)
    return Path(places[0]) if places else file
