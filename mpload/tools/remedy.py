"""What would make a job faster."""

from dataclasses import dataclass

__all__ = ["Remedy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change, and what it gives."""

    text: str
    gain: float
    """The factor by which the job gets faster; infinite where it could not start before."""
    is_measured: bool = False
    """Whether it was tried here, and not only reckoned."""
    num_workers: int | None = None
    """The number of workers that it asks for, where that is what it changes."""
    batch_size: int | None = None
    """The batch size that it asks for, where that is what it changes."""
