"""A change that would help, and what it gains."""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from mpload.judgement.facts import Change, Job

__all__ = ["Bound", "Remedy"]


class Bound(StrEnum):
    """What is known of a gain that cannot be predicted."""

    AT_MOST = "at most"
    AT_LEAST = "at least"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change, and its gain."""

    text: str
    """An instruction, without a full stop."""
    gain: float = 1.0
    """The factor by which the job gets faster. Infinite if the job could not run before."""
    predicted_gain: float | None = None
    """What was predicted before trials have measured the gain. None if none has."""
    not_tried: str = ""
    """Why trials could not measure the gain. Empty if they have, or if nobody wanted them."""
    bound: Bound | None = None
    """Whether the gain is a bound, because nobody has measured what the change does. None: it is an estimate."""
    num_workers: int | None = None
    """The new number of workers, if the change is another number of workers."""
    batch_size: int | None = None
    """The new batch size, if the change is another batch size."""
    change: Change | None = None
    """The change of reading or decoding, if it is one."""
    fraction: float = 1.0
    """The share of the samples that it affects, if it is a cache."""

    @property
    def gain_text(self) -> str:
        """The gain in words."""
        if math.isinf(self.gain):
            return "lets the job run"
        if self.predicted_gain is not None:
            return f"{self.gain:.1f}x as fast, measured; predicted {self.predicted_gain:.1f}x"
        why = f"; not tried: {self.not_tried}" if self.not_tried else ""
        return f"{self.gain:.1f}x as fast, {self.bound or 'predicted'}{why}"

    def changed(self, job: Job) -> Job:
        """Return a job with the other number of workers or batch size."""
        number, size = self.num_workers or job.num_workers, self.batch_size or job.batch_size
        return replace(job, num_workers=number, batch_size=size)
