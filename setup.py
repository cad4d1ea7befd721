"""The native modules: each is left out where it cannot be built, as without the headers of its library."""

import sysconfig
from pathlib import Path

from setuptools import Extension, setup

JPEG_FILES = (
    *("_decoder", "_scale", "_together", "_rows", "_resize", "_resize_simd", "_resize_avx512"),
    *("_huffman", "_huffman_two", "_huffman_scan", "_huffman_shared", "_huffman_tables", "_huffman_test"),
    *("_photos", "_header", "_philox", "_crop", "_crops", "_lanes", "_jpeg_crops"),
)

stable_abi = not sysconfig.get_config_var("Py_GIL_DISABLED")  # free-threaded Pythons have none


def extension(name: str, *, beside: tuple[str, ...] = (), libraries: tuple[str, ...] = ()) -> Extension:
    """Return how the module `mpload.<name>` is built, from its own C file and those `beside` it."""
    source = Path("mpload", *name.split(".")).with_suffix(".c")
    return Extension(
        f"mpload.{name}",
        sources=[str(source), *(str(source.with_name(f"{other}.c")) for other in beside)],
        depends=[str(header) for header in source.parent.glob("*.h")],
        libraries=list(libraries),
        define_macros=[("Py_LIMITED_API", "0x030B0000")] if stable_abi else [],
        extra_compile_args=["-O3", "-fvisibility=hidden", "-ffp-contract=off"],  # Python fuses no operations either
        py_limited_api=stable_abi,
        optional=True,
    )


setup(
    ext_modules=[
        extension("images._jpeg", beside=JPEG_FILES, libraries=("jpeg", "m")),
        extension("images._masks", beside=("_mask_png", "_mask_nearest", "_mask_avx512"), libraries=("deflate",)),
        extension("images._transcode", beside=("_coefficients",), libraries=("jpeg",)),
        extension("samples._objects", beside=("_scan", "_clip"), libraries=("m",)),
        extension("storage._files", beside=("_read_many",)),
        extension("transport._ragged"),
        extension("index._lines", beside=("_line_reads", "_line_cells")),
        extension("plan._permutation"),
        extension("plan._mixture"),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if stable_abi else {},
)
