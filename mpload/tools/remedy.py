"""A change that would make a job faster."""

from dataclasses import dataclass

__all__ = ["Remedy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change, and its gain."""

    text: str
    """An instruction, without a full stop."""
    gain: float
    """The factor by which the job gets faster. Infinite if the job could not start before."""
    is_measured: bool = False
    """Whether the gain was measured here; otherwise it is estimated."""
    num_workers: int | None = None
    """The new number of workers, if the change is another number of workers."""
    batch_size: int | None = None
    """The new batch size, if the change is another batch size."""
