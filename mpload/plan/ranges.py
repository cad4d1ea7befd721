"""The largest numbers of samples, seeds and epochs."""

from mpload.errors import ArgumentError

__all__ = ["MAX_NUM_SAMPLES", "MAX_SEED", "check_range"]

MAX_NUM_SAMPLES = 1 << 62
MAX_SEED = 1 << 63


def check_range(name: str, value: object, first: int, stop: int) -> None:
    """Raise an error unless `value` is an integer in `[first, stop)`.

    Raises:
        ArgumentError: `value` is not an integer, or is out of range.
    """
    if not isinstance(value, int) or not first <= value < stop:
        raise ArgumentError(f"{name} must be in [{first}, {stop}), got {value!r}")
