"""Float32 inside a float64 torch model: where it is, and the same model without it.

Packages compute rotary angles, norms or softmax in float32 in any dtype of the model. The relations
judge the model as it is; how far its logits are from those without such casts is how fine float64
can see here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from crosscheck.adapters.torch_tools import quiet, torch_module


@contextmanager
def lifted() -> Iterator[None]:
    """Within it, what would be cast to float32 becomes float64 instead."""
    with quiet(), _mode(None, lift=True):
        yield


@contextmanager
def watched(model: Any) -> Iterator[list[str]]:
    """Collect the names of the modules in which float64 becomes float32, in the forward's order."""
    found: list[str] = []
    stack: list[str] = []
    handles = []

    def left(*_: Any) -> None:
        stack.pop()

    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(lambda *_, n=name: stack.append(n)))
        handles.append(module.register_forward_hook(left))
    try:
        with _mode(lambda: found.append(stack[-1] if stack else ""), lift=False):
            yield found
    finally:
        for handle in handles:
            handle.remove()


def _mode(seen: Any, *, lift: bool) -> Any:
    """Return a dispatch mode that sees each cast from float64 (or integers) to float32."""
    torch = torch_module()
    from torch.utils._python_dispatch import TorchDispatchMode

    class Casts(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            kwargs = dict(kwargs or {})
            copies = func is torch.ops.aten._to_copy.default
            narrow = copies and kwargs.get("dtype") == torch.float32
            if narrow and not lift and args[0].dtype == torch.float64:
                seen()
            if narrow and lift:
                kwargs["dtype"] = torch.float64
            return func(*args, **kwargs)

    return Casts()
