"""Where tensors are made and operators run: `use` says it for the whole process."""

import torch

from jaxkv.spec.errors import RequestError
from jaxkv.spec.room import host_bytes


def use(device: str | None) -> None:
    """Make a device the one for all that follows in this process; None leaves the framework's own.

    Args:
        device: "cpu" or "cuda"; the first of its kind.

    Raises:
        RequestError: The framework sees none.
    """
    if device is None:
        return
    if device == "cuda" and not torch.cuda.is_available():
        raise RequestError(
            "use: device is 'cuda', expected one that PyTorch sees: cpu. Install a CUDA build of "
            "PyTorch for NVIDIA's, or leave it out."
        )
    torch.set_default_device(device)


def memory_bytes() -> int | None:
    """Return the memory of the device where tensors are made; None if nothing tells it."""
    device = torch.get_default_device()
    if device.type == "cpu":
        return host_bytes()
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None
