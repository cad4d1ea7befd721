"""The Python side of the device, which torch knows as `torch.late`."""

import torch

NUM_DEVICES = 2


def is_available() -> bool:
    return True


def device_count() -> int:
    return NUM_DEVICES


def current_device() -> int:
    return torch.accelerator.current_device_index()


def set_device(index: int) -> None:
    torch.accelerator.set_device_index(index)


def synchronize(device: torch.device | int | None = None) -> None:
    torch.accelerator.synchronize(device)


def memory_allocated(index: int = 0) -> int:
    """Return the bytes of device memory that tensors currently use."""
    return int(torch.ops.late.allocated_bytes(index))


def occupy(seconds: float) -> None:
    """Keep the current stream busy."""
    torch.ops.late.occupy(current_device(), seconds)


class Driver:
    """The functions of `torch.cuda.cudart()` for pinned memory."""

    @staticmethod
    def cudaHostRegister(address: int, num_bytes: int, flags: int) -> int:  # noqa: N802
        return int(torch.ops.late.host_register(address, num_bytes))

    @staticmethod
    def cudaHostUnregister(address: int) -> int:  # noqa: N802
        return int(torch.ops.late.host_unregister(address))

    @staticmethod
    def cudaGetErrorString(error: int) -> str:  # noqa: N802
        return f"error {error}"


def cudart() -> Driver:
    torch.empty(
        1, device="cpu"
    ).pin_memory()  # initialises the device, as in CUDA; until then torch considers no memory pinned
    return Driver()


def get_rng_state(device: int) -> torch.Tensor:
    """Return the state of the CPU's generator, which the device's kernels draw from."""
    return torch.get_rng_state()


def set_rng_state(state: torch.Tensor, device: int) -> None:
    torch.set_rng_state(state)


def manual_seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)


manual_seed_all = manual_seed


def _is_in_bad_fork() -> bool:
    return False
