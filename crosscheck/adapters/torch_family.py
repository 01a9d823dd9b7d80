"""What the adapters of torch packages share: a subject from one module and three functions of it.

Letters: B rows, T tokens of this call, S tokens fed so far, V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.adapters import torch_tools as tools
from crosscheck.adapters.torch_heard import heard
from crosscheck.subjects.amplify import seed_of
from crosscheck.subjects.functions import FunctionSubject, from_functions
from crosscheck.subjects.protocol import KV

ROOM = 64


def family_subject(
    module: Any,
    calls: Callable[[Any], Mapping[str, Any]],
    *,
    amplify: int | bool | None = None,
    **facts: Any,
) -> FunctionSubject:
    """Return a subject for a torch module, with casts, weights and nudges.

    Args:
        module: In eval mode from here on.
        calls: Of a module: full, init, step and whatever else its package can do.
        amplify: Seed of amplified weights, written into the module; None keeps its weights.
        facts: As in `from_functions`.
    """
    seed = seed_of(amplify)
    if seed is not None:
        facts["notes"] = (*facts.get("notes", ()), tools.amplify(module, seed))
    module = module.eval()

    def again(other: Any) -> FunctionSubject:
        return family_subject(other, calls, **facts)

    known = {
        "name": type(module).__name__,
        "framework": "torch",
        "dtype": tools.dtype_of(module),
        "weights_hash": tools.weights_hash(module),
        "cast": lambda dtype: again(tools.cast_copy(module, dtype)),
        "nudged": lambda scale, seed: again(tools.nudged_copy(module, scale, seed)),
        "weights": lambda: tools.named_arrays(module),
        "with_weights": lambda arrays: again(tools.with_arrays(module, arrays)),
        "f64": True,
        "f32": True,
    }
    subject = from_functions(**(known | dict(calls(module)) | facts))
    subject.heard = partial(heard, module)
    return subject


def ids_of(ids_BT: NDArray) -> Any:
    """Return token ids as torch takes them."""
    return tools.to_torch(np.asarray(ids_BT, np.int64))


def kv_of(keys_BKSH: Any, values_BKSH: Any, fed: int) -> KV:
    """Return what a layer holds, the newest token in its last filled slot."""
    keys, values = (tools.to_numpy(x.transpose(1, 2)) for x in (keys_BKSH, values_BKSH))
    slot_BS = np.broadcast_to(np.arange(keys.shape[1]), keys.shape[:2])
    valid_BS = slot_BS < fed
    return KV(keys, values, np.where(valid_BS, slot_BS, -1), valid_BS)


def like(array_BSKH: NDArray, old_BKSH: Any) -> Any:
    """Return keys or values in the order and dtype of what a package holds."""
    return tools.to_torch(np.swapaxes(array_BSKH, 1, 2), like=old_BKSH)


def additive(visible_BTS: NDArray, dtype: Any, slots: int | None = None) -> Any:
    """Return [B, 1, T, slots]: 0 where a token may be read, else the dtype's minimum."""
    torch = tools.torch_module()
    rows, new, held = visible_BTS.shape
    mask = torch.full((rows, 1, new, slots or held), torch.finfo(dtype).min, dtype=dtype)
    mask[:, 0, :, :held][torch.as_tensor(np.array(visible_BTS, bool))] = 0
    return mask


@contextmanager
def given_argument(modules: Any, name: str, place: int, value: Any) -> Iterator[None]:
    """Give modules another value for one argument, by name or place; None gives nothing."""

    def change(_module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if name in named or len(given) <= place:
            return given, named | {name: value}
        return (*given[:place], value, *given[place + 1 :]), named

    hooks = [] if value is None else list(modules)
    handles = [m.register_forward_pre_hook(change, with_kwargs=True) for m in hooks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
