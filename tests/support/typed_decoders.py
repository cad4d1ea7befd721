"""Column decoders and transforms of samples. This module is imported in workers, so it must not import mpload."""

import os
import random
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def sound(data: bytes, record: Any, rng: np.random.Generator) -> dict[str, Any]:
    """Return values of all types that a sample may have."""
    wave = np.frombuffer(data, np.uint8).astype(np.float32)
    return {
        "wave": wave,
        "noise": rng.normal(size=2),
        "drawn": random.random(),
        "pair": (record["label"], f"label {record['label']}"),
        "raw": bytes(data[:2]),
        "many": [wave[:1]] * (record["label"] % 3),
        "is_even": record["label"] % 2 == 0,
    }


def tensors(data: bytes) -> Any:
    import torch

    return {
        "half": torch.from_numpy(np.frombuffer(data[:4], np.uint8).astype(np.float32)).bfloat16(),
        "ids": torch.arange(3),
    }


def tokens(text: str) -> Any:
    return np.array([ord(letter) for letter in text])


def words(data: bytes) -> Any:
    return np.array([sum(word) for word in data.split()], np.int64)


class Region:
    """Read the column of images once more."""

    of = "image"

    def __call__(self, data: bytes, geometry: Any, record: Any) -> dict[str, Any]:
        return {"size": (geometry.height, geometry.width), "box": np.array(geometry.view.box), "bytes": len(data)}


def two_forms(data: bytes, record: Any) -> Any:
    values = np.zeros(2), np.zeros(2, np.int16), np.zeros((2, 1)), 1.0, "text", None, {"a": 1}
    return values[(record["label"] - 3) // 2 if record["label"] in {5, 7, 9, 11, 13, 15} else 0]


def other_keys(data: bytes, record: Any) -> Any:
    """Return a dict with one key more for sample 5, and one less for sample 7."""
    keys = {5: "abc", 7: "a"}.get(record["label"], "ab")
    return {"inner": (dict.fromkeys(keys, 1), 2)}


def killing(data: bytes, record: Any) -> float:
    folder = Path(os.environ["MPLOAD_TEST_FOLDER"])
    if record["label"] in {3, 11} and not (folder / f"killed {record['label']}").exists():
        (folder / f"killed {record['label']}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return float(record["label"]) / 2


def brighter(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    image = np.clip(sample["image"].astype(int) + rng.integers(0, 50), 0, 255).astype(np.uint8)
    return {"image": image, "words": len(sample["caption"]), "meta": np.array([sample["meta"]["n"]])}


def drawing(sample: dict[str, Any]) -> dict[str, Any]:
    import torch

    drawn = np.array([random.random(), np.random.rand(), torch.rand(()).item()])  # noqa: NPY002
    return {"drawn": drawn, "image": torch.from_numpy(sample["image"]).movedim(-1, -3).float()}


def failing_first(data: bytes, record: Any) -> Any:
    if record["label"] % 4 == 0:
        raise ValueError("the first of four")
    return np.frombuffer(data, np.uint8)


class Shown:
    """Return what the sample shows of its image, to compute coordinates from."""

    of = "image"

    def __call__(self, data: bytes, geometry: Any) -> dict[str, Any]:
        view = geometry.view
        sides = (geometry.height, geometry.width), view.box, view.full, view.shown
        names = "image", "box", "full", "window"
        values = {name: np.array(side) for name, side in zip(names, sides, strict=True)}
        return {**values, "mirrored": np.array([view.mirror, geometry.upside_down])}


class Told:
    """A user's decoder, which returns what it is given, and fails for some cells."""

    def __call__(self, data: str, rng: np.random.Generator, record: Mapping[str, Any], geometry: Any) -> dict[str, Any]:
        if data.startswith("bad"):
            raise ValueError(f"a {data} in {record['number']}")
        drawn = [*geometry.view.box, *geometry.view.shown, *geometry.view.full, geometry.view.mirror, geometry.height]
        global_number = np.random.randint(1000)  # noqa: NPY002  seeded for the sample
        return {"numbers": np.array([*drawn, rng.integers(99), global_number, record["number"], len(data)])}
