"""The native modules: each is left out where it cannot be built, as without libjpeg-turbo's headers."""

import sysconfig

from setuptools import Extension, setup

stable_abi = not sysconfig.get_config_var("Py_GIL_DISABLED")  # free-threaded Pythons have none


def extension(name: str, *, libraries: tuple[str, ...] = ()) -> Extension:
    """Return how the module `mpload.<name>` is built."""
    return Extension(
        f"mpload.{name}",
        sources=[f"mpload/{name.replace('.', '/')}.c"],
        libraries=list(libraries),
        define_macros=[("Py_LIMITED_API", "0x030B0000")] if stable_abi else [],
        extra_compile_args=["-O3"],
        py_limited_api=stable_abi,
        optional=True,
    )


setup(
    ext_modules=[extension("images._jpeg", libraries=("jpeg", "m")), extension("storage._files")],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if stable_abi else {},
)
