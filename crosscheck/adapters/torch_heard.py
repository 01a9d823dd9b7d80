"""What every module of a torch model is given, and what it gives, while the model runs."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

from crosscheck.adapters.torch_tools import to_numpy
from crosscheck.subjects.heard import OPAQUE, Heard


@contextmanager
def heard(model: Any) -> Iterator[dict[str, Heard]]:
    """Collect each module's one call while the model runs, inner modules before outer ones."""
    found: dict[str, Heard] = {}
    times: Counter[str] = Counter()

    def keep(name: str) -> Any:
        def hook(_module: Any, given: Any, named: Any, out: Any) -> None:
            times[name] += 1
            found[name] = Heard(tuple(_leaves((given, named))), tuple(_leaves(out)))

        return hook

    handles = [
        module.register_forward_hook(keep(name), with_kwargs=True)
        for name, module in model.named_modules()
        if name
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
        # What runs twice in one forward is given no one thing.
        for name, many in times.items():
            if many > 1:
                found.pop(name)


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the arrays and plain values of a nest; OPAQUE for what may hold anything."""
    if hasattr(value, "detach"):
        yield to_numpy(value)
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from _leaves(value[key])
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _leaves(each)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _leaves(getattr(value, field.name))
    else:
        yield value if isinstance(value, int | float | str | None) else OPAQUE
