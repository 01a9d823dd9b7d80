"""Whether a prepared 4-D mask reaches a transformers model's attention, uncached and cached.

Letters: B rows, T tokens, S tokens fed so far.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

NEW = 4


def why_not(run: Any, *, cached: bool) -> str | None:
    """Return why visibility can't be given; None where it works.

    Sets `placed_masks` of the caller where the model needs explicit positions beside such a mask.

    Args:
        run: A `Probe`.
        cached: Whether the model has a cache.
    """
    refusal = ""
    for placed in (False, True):
        run.caller.placed_masks = placed
        try:
            works = _reaches(run, cached)
        except Exception as error:
            refusal = f"a prepared mask raised {type(error).__name__}"
            continue
        return None if works else "a prepared 4-D mask does not reach its attention"
    return refusal


def _reaches(run: Any, cached: bool) -> bool:
    ids_BT, new = run.ids_BT[:, :NEW], NEW
    causal_BTS = np.broadcast_to(np.tri(new, dtype=bool), (2, new, new))
    hidden_BTS = causal_BTS.copy()
    hidden_BTS[:, 2:, 1] = False
    changed_BT = ids_BT.copy()
    changed_BT[:, 1] = (changed_BT[:, 1] - run.first + 1) % (run.vocab - run.first) + run.first
    plain = run.full(ids_BT)
    whole, hidden, changed, causal = (
        _masked(run, i, m)
        for i, m in (
            (ids_BT, np.ones_like(causal_BTS)),
            (ids_BT, hidden_BTS),
            (changed_BT, hidden_BTS),
            (ids_BT, causal_BTS),
        )
    )
    steps = _two_steps(run, ids_BT, hidden_BTS) if cached else hidden
    return (
        run.near(lambda: causal, plain)
        and not run.near(lambda: whole[:, :3], plain[:, :3])
        and run.near(lambda: changed[:, 2:], hidden[:, 2:])
        and run.near(lambda: steps, hidden)
    )


def _masked(run: Any, ids_BT: NDArray, visible_BTS: NDArray, start: int = 0, **known: Any) -> Any:
    """Return logits under a prepared mask; with `cache`, logits and cache."""
    rows, new = ids_BT.shape
    position_BT = np.broadcast_to(np.arange(start, start + new), (rows, new))
    position_BT = position_BT if run.caller.placed_masks else None
    out = run.caller(ids_BT, visible_BTS=visible_BTS, position_BT=position_BT, **known)
    return out if known else out[0]


def _two_steps(run: Any, ids_BT: NDArray, visible_BTS: NDArray) -> NDArray:
    known = {"cache": run.subject.init(2, NEW + 8).cache, "use_cache": True}
    head, known["cache"] = _masked(run, ids_BT[:, :3], visible_BTS[:, :3, :3], **known)
    tail, _ = _masked(run, ids_BT[:, 3:], visible_BTS[:, 3:], 3, **known)
    return np.concatenate([head, tail], 1)
