"""Where a step's time goes beyond the floor: by the products of jaxkv, by a profile of torch's."""

from collections.abc import Callable
from typing import Any

# Operators of torch that multiply by matrices, and those of attention: parts of their names.
_PRODUCTS = ("mm", "addmm", "bmm", "linear", "matmul")
_ATTENTION = ("attention", "softmax")


def torch_shares(call: Callable[[], Any]) -> dict[str, float]:
    """Return the shares of one call's time in products, attention, other operators, and between.

    Between them are the interpreter and what torch does before an operator runs. The profile slows
    a call down, most of all between operators: shares, no times.

    Args:
        call: Warm already, on the CPU.
    """
    import time

    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as found:
        start = time.perf_counter()
        call()
        whole_us = (time.perf_counter() - start) * 1e6
    parts = {"products": 0.0, "attention": 0.0, "other operators": 0.0}
    for event in found.key_averages():
        if event.key.startswith("aten::"):
            parts[kind_of(event.key)] += event.self_cpu_time_total
    parts["between operators"] = max(0.0, whole_us - sum(parts.values()))
    total = sum(parts.values())
    return {name: us / total for name, us in parts.items()}


def kind_of(operator: str) -> str:
    """Return the part that one of torch's operators belongs to."""
    name = operator.removeprefix("aten::").strip("_")
    if any(word in name for word in _ATTENTION):
        return "attention"
    return "products" if name in _PRODUCTS else "other operators"


def words(shares: dict[str, float]) -> str:
    """Return shares as words: `60 % products, 12 % attention`."""
    return ", ".join(f"{100 * share:.0f} % {name}" for name, share in shares.items())
