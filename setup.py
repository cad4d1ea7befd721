"""The native JPEG decoder: built where libjpeg-turbo's headers are, quietly left out elsewhere."""

import sysconfig

from setuptools import Extension, setup

stable_abi = not sysconfig.get_config_var("Py_GIL_DISABLED")  # free-threaded Pythons have none

setup(
    ext_modules=[
        Extension(
            "mpload._jpeg",
            sources=["mpload/_jpeg.c"],
            libraries=["jpeg", "m"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")] if stable_abi else [],
            extra_compile_args=["-O3"],
            py_limited_api=stable_abi,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if stable_abi else {},
)
