"""Callables that make a batch of samples. They are in a module of their own because workers import it."""

import os
import random
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch


def listed(samples: list[Any]) -> list[Any]:
    return samples


def drawing(samples: list[Any]) -> dict[str, Any]:
    drawn = [
        random.random(),
        np.random.rand(),  # noqa: NPY002
        torch.rand(()).item(),
        float(cv2.randu(np.zeros(1), np.zeros(1), np.ones(1))[0]),
    ]
    return {"drawn": drawn, "whole": samples[0] if samples else None, "labels": [each["label"] for each in samples]}


def with_rng(samples: list[Any], rng: np.random.Generator) -> list[Any]:
    return [samples[place] for place in rng.permutation(len(samples))]


@dataclass
class Scene:
    number: int
    image: torch.Tensor
    others: dict[Any, Any]


def scene(samples: list[Any]) -> Scene:
    """Make a batch that holds tensors of many kinds, and this process's id."""
    number = samples[0]["label"]
    image = torch.stack([sample["image"] for sample in samples])
    others: dict[Any, Any] = {
        "pid": os.getpid(),
        "turned": image.permute(2, 3, 0, 1),
        "half": image.to(torch.bfloat16),
        "none": torch.empty(0, 4),
        "scalar": torch.tensor(number),
        "array": np.arange(number, dtype=">i2"),
        ("a", "key"): ({number}, None, samples[0]["caption"]),
    }
    return Scene(number, image.to(memory_format=torch.channels_last), others)


class FamousError(Exception):
    """An error of the user's own."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def __str__(self) -> str:
        return f"batch with {self.number}"


def labels_of(samples: list[Any]) -> list[int]:
    return [int(sample["label"]) for sample in samples]


def picky(samples: list[Any]) -> Any:
    labels = labels_of(samples)
    if 8 in labels:
        raise FamousError(8)
    return (label for label in labels) if 12 in labels else labels


@dataclass
class Killing:
    """Kills its process when it gets sample 9, but only once, and when it gets sample 13."""

    once: Path

    def __call__(self, samples: list[Any]) -> list[int]:
        labels = labels_of(samples)
        if 9 in labels and not self.once.exists():
            self.once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if 13 in labels:
            os.kill(os.getpid(), signal.SIGSEGV)
        return labels


@dataclass
class Changing:
    """Changes its samples in place, and then kills its process, but only once."""

    once: Path | None = None

    def __call__(self, samples: list[Any]) -> list[Any]:
        for sample in samples:
            sample["image"].bitwise_not_()
        if self.once is not None:
            with suppress(FileExistsError):  # another worker was first
                self.once.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        return samples
