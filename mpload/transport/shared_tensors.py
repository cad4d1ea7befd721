"""Tensors in shared memory stay shared with processes that get a pickled copy of what refers to them.

Torch does the same for what `torch.multiprocessing` pickles. A descriptor has the same number in the process that
unpickles, because that inherits it.
"""

import os
import sys
from typing import Any

__all__ = ["reduced_storage"]


def reduced_storage(value: object, fds: list[int]) -> tuple[Any, ...] | None:
    """Return how to open a storage of a CPU tensor that is in shared memory; None if `value` is anything else.

    Descriptors that the other process must inherit are added to `fds`. They belong to the storage.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    typed = value if isinstance(value, torch.storage.TypedStorage) else None
    storage = value if typed is None else typed._untyped_storage  # noqa: SLF001  as torch's own reductions do
    if not isinstance(storage, torch.UntypedStorage) or storage.device.type != "cpu":
        return None
    if not storage.nbytes() or not storage.is_shared():
        return None
    # A dtype comes first, because torch is then loaded where it is unpickled.
    dtype, is_typed = (torch.uint8, False) if typed is None else (typed.dtype, True)
    if torch.multiprocessing.get_sharing_strategy() == "file_system":
        name = storage._share_filename_cpu_()
        storage._shared_incref()  # noqa: SLF001  which the other process takes over
        return _opened, (dtype, is_typed, "_new_shared_filename_cpu", name)
    fd, num_bytes = storage._share_fd_cpu_()
    fds.append(fd)
    return _opened, (dtype, is_typed, "_new_shared_fd_cpu", (fd, num_bytes))


def _opened(dtype: Any, is_typed: bool, method: str, arguments: tuple[Any, ...]) -> Any:
    torch = sys.modules["torch"]
    if method == "_new_shared_fd_cpu":  # which closes the descriptor
        arguments = os.dup(arguments[0]), arguments[1]
    storage = getattr(torch.UntypedStorage, method)(*arguments)
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True) if is_typed else storage
