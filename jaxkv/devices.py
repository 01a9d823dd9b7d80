"""Where arrays are made and programs run: `use` says it for the whole process."""

import jax

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
    try:
        found = jax.devices(device)
    except RuntimeError:
        there = ", ".join(sorted({each.platform for each in jax.devices()}))
        raise RequestError(
            f"use: device is {device!r}, expected one that JAX sees: {there}. Install jaxkv[cuda] "
            "for NVIDIA's, or leave it out."
        ) from None
    jax.config.update("jax_default_device", found[0])


def memory_bytes() -> int | None:
    """Return the memory of the device where arrays are made; None if nothing tells it."""
    chosen = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue] JAX adds it at run time
    device = chosen if isinstance(chosen, jax.Device) else jax.devices(chosen)[0]
    if device.platform == "cpu":
        return host_bytes()
    return (device.memory_stats() or {}).get("bytes_limit")
