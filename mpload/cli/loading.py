"""Open the index, and import the decoder and the transform, that are named on the command line."""

import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from mpload.cli.terminal import progress_bar
from mpload.errors import FAILURES, ArgumentError, cause_of
from mpload.images.decoders import RandomResizedCrop
from mpload.index.index import Index
from mpload.index.opening import open_index

__all__ = ["IndexArgument", "decoder_of", "named_dataset", "named_object", "names_object", "opened"]

IndexArgument = Annotated[
    str,
    typer.Argument(metavar="INDEX", help="The path or URL of an index, or of a plain list of `path label` lines."),
]

_CROP = 224


def opened(path: str) -> Index:
    """Open an index, with a progress bar while its sidecar is built.

    Raises:
        MploadError: As `open_index`.
    """
    with progress_bar(f"opening {path}" if "://" in path else "building the sidecar") as tell:
        return open_index(path, progress=tell)


def decoder_of(name: str | None) -> Callable[..., Any]:
    """Return the decoder named `module:object`. The default is a random crop of 224 pixels, as for training."""
    return RandomResizedCrop(_CROP) if name is None else named_object(name, option="--decode")


def named_object(name: str, *, option: str) -> Callable[..., Any]:
    """Return the callable named `module:object`. Modules in the working directory are found too.

    Raises:
        ArgumentError: There is no such module or object, or it is not callable.
    """
    found = _imported(name, option=option)
    if not callable(found):
        raise ArgumentError(
            f"{option} {name}: a {type(found).__name__} is not callable. Name a function or an object with __call__"
        )
    called: Callable[..., Any] = found
    return called


def names_object(text: str) -> bool:
    """Return whether an argument names an object, `module:object`, and not a file or a URL."""
    return re.fullmatch(r"[\w.]+:[\w.]+", text) is not None and not Path(text).exists()


def named_dataset(name: str) -> Any:
    """Return the dataset named `module:object`. A function or class without arguments is called to make it.

    Raises:
        ArgumentError: There is no such module or object, or it cannot be made.
    """
    found = _imported(name, option="DATASET")
    if not (inspect.isfunction(found) or inspect.isclass(found)):
        return found
    try:
        return found()
    except FAILURES as error:
        raise ArgumentError(
            f"DATASET {name}: calling {name.partition(':')[2]}() raised {_where(error)}. Name a dataset, or a function "
            "without arguments that makes it"
        ) from error


def _imported(name: str, *, option: str) -> Any:
    """Return the object named `module:object`. Modules in the working directory are found too.

    Raises:
        ArgumentError: There is no such module or object, or the module cannot be imported.
    """
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise ArgumentError(f"{option} {name}: is not of the form module:object. Write, for example, mydata:transform")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ArgumentError(f"{option} {name}: {error}. Is it installed, or in the working directory?") from error
    except FAILURES as error:
        raise ArgumentError(f"{option} {name}: importing {module_name} raised {_where(error)}") from error
    return found


def _where(error: BaseException) -> str:
    """Return what the user's code raised, and where."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename != __file__]
    return cause_of(error) + (f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else "")
