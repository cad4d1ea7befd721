"""What a worker does to find out what the samples of a pipeline are made of."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mpload.errors import SampleError
from mpload.samples.index_work import not_carried
from mpload.samples.pipeline import Pipeline
from mpload.transport.worker import ChunkReport

if TYPE_CHECKING:
    from mpload.samples.policy import BadSample

__all__ = ["Probe"]


@dataclass(kw_only=True)
class Probe:
    """Makes one sample and says what it is made of."""

    pipeline: Pipeline

    def open(self) -> None:
        """Nothing to prepare."""

    def fill(
        self, task: tuple[int, ...], arrays: Mapping[str, Any], first: int, last: int, report: ChunkReport
    ) -> None:
        """Describe the sample `task`."""
        del last
        report.at(first)
        bad: list[BadSample] = []  # to be counted and reported when their turn comes
        made = self.pipeline.sample(self.pipeline.index[task[0]], seed=0, epoch=0, on_bad=bad.append)
        if made is None:
            raise SampleError(str(bad[0])) from bad[0].error
        for number in self.pipeline.sources:
            if not isinstance(value := made[1][number], bytes | np.ndarray):
                raise not_carried(self.pipeline.index.columns[number].name, value)
        described = [
            {"shape": list(value.shape), "dtype": value.dtype.str}
            if isinstance(value, np.ndarray)
            else {"shape": None, "dtype": None}
            for value in made[1]
        ]
        arrays["described"].put(first, json.dumps(described).encode())
