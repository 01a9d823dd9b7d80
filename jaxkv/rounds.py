"""Speculation in parts, between which the host looks at the texts for stop strings.

Letters: B rows, T prompt tokens with padding, S slots of the text.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxkv import programs
from jaxkv.caches import Cache
from jaxkv.drafts import DraftModel, PromptLookup
from jaxkv.loop import Terms, Text
from jaxkv.model import Params
from jaxkv.parts import STEPS
from jaxkv.spec.config import ModelConfig
from jaxkv.speculation import go_on, open_rounds
from jaxkv.stopping import Watch
from jaxkv.verification import Tally


def run_rounds(
    params: Params,
    ids_BT: Int[Array, "B T"],
    count_B: Int[Array, " B"],
    terms: Terms,
    cache: Cache,
    draft: DraftModel | Cache | None,
    watch: Watch,
    *,
    config: ModelConfig,
    lookup: PromptLookup | None,
    k: int,
    donate: bool,
    **sizes: Any,
) -> tuple[Text, Cache, Tally]:
    """Return finished texts without what a stop string cut off, the cache with it, the tally.

    Args:
        params: The model's.
        ids_BT: See `speculation.run`, as for all that are not named here.
        count_B: See `speculation.run`.
        terms: See `speculation.run`.
        cache: Narrowed if it is larger than what steps read, and returned so.
        draft: See `speculation.run`.
        watch: Has seen the whole texts afterwards.
        config: See `speculation.run`.
        lookup: See `speculation.run`.
        k: See `speculation.run`.
        donate: Whether the cache's buffers may be reused.
        **sizes: The others of `speculation.run`.

    Cost: the host looks after each round that completes another 8 tokens of a row.
    """
    jitted = programs.PROGRAMS.jitted
    how: dict[str, Any] = {"config": config, "k": k}
    opened = jitted(open_rounds, donate=("cache",) if donate else ())
    asked = ids_BT, count_B, terms, cache, draft
    text, work, own, tally = opened(params, *asked, **how, **sizes, marks=True)
    model, steps = draft if isinstance(draft, DraftModel) else None, jnp.asarray(STEPS, jnp.int32)
    following = jitted(go_on, donate=("cache",))
    watch.look(text)
    text = watch.halt(text)
    while np.asarray(text.active_B).any() and not np.asarray(work.overflow_B).any():
        state = text, work, own, tally
        text, work, own, tally = following(
            params, terms, model, *state, steps, **how, lookup=lookup
        )
        watch.look(text)
        text = watch.halt(text)
    text, tally = cut(watch, text, tally)
    return text, work, tally


def cut(watch: Watch, text: Text, tally: Tally) -> tuple[Text, Tally]:
    """Return texts and tally without the tokens from each stop string on.

    They count as rolled back, and the drafts among them as not accepted.
    """
    after = watch.cut(text)
    assert tally.is_draft_BS is not None  # whoever looks wants the marks
    stands_BS = jnp.arange(tally.is_draft_BS.shape[1], dtype=jnp.int32) < after.length_B[:, None]
    accepted_B = jnp.sum(tally.is_draft_BS & stands_BS, axis=1, dtype=jnp.int32)
    rolled_back_B = tally.rolled_back_B + text.length_B - after.length_B
    return after, replace(tally, accepted_B=accepted_B, rolled_back_B=rolled_back_B)
