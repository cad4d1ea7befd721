"""What a folder in YOLO's layout says of its labels: the names of the classes, and whether objects have keypoints.

A dataset in YOLO's layout has a YAML file, usually `data.yaml`, with the `names`, and `kpt_shape` if objects have
keypoints. Annotation tools write the names to `classes.txt` instead.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpload.errors import ArgumentError, StorageError, warn
from mpload.index.label_lines import KeypointShape
from mpload.units import MIB, printable

__all__ = ["Description", "describe_labels", "read_text"]

_YAML, _CLASSES = "data.yaml", "classes.txt"
_MAX_TEXT_BYTES = MIB
_HAS_NAMES = re.compile(r"^[\"']?names[\"']?\s*:", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What is known of the labels of a folder."""

    path: Path | None = field(default=None, compare=False)
    """The file that says so; None if there is none."""
    classes: tuple[str, ...] = ()
    """The names of the classes; empty if they are not known."""
    keypoints: KeypointShape | None = None
    """The keypoints of each object; None if objects have none."""


def describe_labels(folder: Path) -> Description:
    """Read the description of a folder: its YAML file or, if there is none, `classes.txt`.

    The YAML file is `data.yaml`, or the only other one in the folder that has `names`, or `data.yaml` in the folder
    above, where Roboflow puts it.

    Raises:
        ArgumentError: a YAML file is not of the usual form, contradicts itself, or contradicts another one.
        StorageError: a file cannot be read.

    Warns:
        MploadWarning: `classes.txt` has other names than the YAML file.
    """
    listed = folder / _CLASSES
    names = tuple(line.strip() for line in read_text(listed).splitlines() if line.strip())
    found = _described(folder)
    if found is None:
        return Description(path=listed if names else None, classes=names)
    if names and names != found.classes:
        warn(
            f"{printable(str(listed))} has other classes than {printable(str(found.path))}, whose names are used. "
            f"Delete {_CLASSES}, or correct one of them"
        )
    return found


def _described(folder: Path) -> Description | None:
    """Return what the YAML file says; None if there is none."""
    text = read_text(folder / _YAML)
    if text.strip():
        return _parsed(folder / _YAML, text)
    others = sorted(path for path in folder.iterdir() if path.suffix.lower() in {".yaml", ".yml"} and path.is_file())
    found = [made for path in others if (made := _if_named(path)) is not None]
    for made in found[1:]:
        if made != found[0]:
            raise ArgumentError(
                f"{printable(str(made.path))}: says something else of the classes or keypoints than "
                f"{printable(str(found[0].path))}. Rename the right one to {_YAML}"
            )
    return found[0] if found else _if_named(folder.parent / _YAML)


def _if_named(path: Path) -> Description | None:
    """Return what a YAML file says, if it has names, and so is about a dataset."""
    try:
        text = read_text(path)
    except ArgumentError:  # larger than any description, or no text
        return None
    return _parsed(path, text) if _HAS_NAMES.search(text) else None


def _parsed(path: Path, text: str) -> Description:
    try:
        import yaml  # type: ignore[import-untyped]  # noqa: PLC0415  an optional package
    except ImportError as error:
        raise ArgumentError(
            f"{printable(str(path))}: cannot be read without PyYAML. Run: pip install pyyaml"
        ) from error
    try:
        document: Any = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ArgumentError(f"{printable(str(path))}: is not YAML: {' '.join(str(error).split())}") from error
    values: dict[Any, Any] = document if isinstance(document, dict) else {}
    classes = _names(path, values.get("names"))
    num_classes = values.get("nc")
    if num_classes is not None and num_classes != len(classes):
        raise ArgumentError(
            f"{printable(str(path))}: 'nc' is {num_classes!r:.80}, but 'names' lists {len(classes)} classes. Correct "
            "one of them"
        )
    return Description(path=path, classes=classes, keypoints=_keypoints(path, values.get("kpt_shape")))


def _names(path: Path, found: Any) -> tuple[str, ...]:
    if isinstance(found, dict) and sorted(map(str, found)) == sorted(map(str, range(len(found)))):
        found = [found[number] for number in sorted(found, key=int)]
    if not isinstance(found, list) or not all(isinstance(name, str) and name.isprintable() for name in found):
        raise ArgumentError(f"{printable(str(path))}: 'names' must list the names of all classes, got {found!r:.80}")
    return tuple(found)


def _keypoints(path: Path, found: Any) -> KeypointShape | None:
    if found is None:
        return None
    if isinstance(found, list) and len(found) == 2 and all(type(number) is int for number in found):
        try:
            return KeypointShape(num_points=found[0], numbers_per_point=found[1])
        except ValueError:
            pass
    raise ArgumentError(
        f"{printable(str(path))}: 'kpt_shape' must be the number of keypoints, then how many numbers each has, 2 or 3, "
        f"got {found!r:.80}. Correct it, or remove it if objects have no keypoints"
    )


def read_text(path: Path) -> str:
    """Return the text of a file; empty if there is none.

    Raises:
        ArgumentError: it is not a text, or larger than 1 MiB.
        StorageError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_TEXT_BYTES + 1)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise StorageError(f"{printable(str(path))}: cannot be read: {error.strerror or error}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{printable(str(path))}: is not UTF-8: {error.reason}. Correct the file") from error
    if len(data) > _MAX_TEXT_BYTES or "\0" in text:
        raise ArgumentError(f"{printable(str(path))}: is larger than {_MAX_TEXT_BYTES} bytes, or not a text")
    return text
