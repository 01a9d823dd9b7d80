"""Where drafted tokens come from: the text itself, or a smaller model with a cache of its own.

Letters: B rows, K drafted tokens, S slots of the text, V vocabulary.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxkv import acceptance, sampling
from jaxkv.caches import Cache
from jaxkv.loop import Terms, Text, wanted
from jaxkv.model import Params, forward
from jaxkv.pytree import pytree, static
from jaxkv.spec.config import ModelConfig
from jaxkv.spec.errors import RequestError

DRAFTING = 2
"""Which of a place's random numbers a draft is drawn with, see `sampling.uniform`."""


@dataclass(frozen=True)
class PromptLookup:
    """Drafts from the text: what followed its last tokens when they stood there before.

    Attributes:
        longest: Last tokens that are looked for at most; where as many are found twice, the later
            place counts.
        shortest: At least.
        longest_pause: Steps without drafts at most after some that failed: 1, then 2, 4, ... for
            each more of which nothing was kept. So a text that only seems to repeat costs little.
    """

    longest: int = 4
    shortest: int = 2
    longest_pause: int = 16

    def __post_init__(self) -> None:
        for name, least in (("shortest", 1), ("longest", self.shortest), ("longest_pause", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise RequestError(
                    f"PromptLookup: {name} is {value!r}, expected a whole number of at least "
                    f"{least}."
                )


@pytree
class Drafts:
    """What a verifying step is to judge.

    Attributes:
        ids_BK: int32; what stands beyond a row's count does not matter.
        count_B: int32, how many of the K are drafts.
        q_BKV: The probabilities that they were drawn from; None where nothing was drawn.
    """

    ids_BK: Int[Array, "B K"]
    count_B: Int[Array, " B"]
    q_BKV: Float[Array, "B K V"] | None


@pytree
class DraftModel:
    """A smaller model that drafts, and what it has read.

    Attributes:
        params: Its own, from `params_of`.
        cache: Its own; lacks two tokens of a text at most.
        config: Its own.
    """

    params: Params
    cache: Cache
    config: ModelConfig = static()


def look_up(text: Text, want_B: Int[Array, " B"], *, k: int, lookup: PromptLookup) -> Drafts:
    """Return for each row what followed its last tokens where they stood before, or no drafts.

    The longest match counts, of equal ones the latest. What follows it may run into the end of the
    text, and then goes on with itself.

    Args:
        text: What is searched.
        want_B: int32, drafts of each row at most.
        k: K, static.
        lookup: Static.

    Cost: reads the text once for each of `longest` tokens.
    """
    tokens_BS, end_B1 = text.tokens_BS, text.length_B[:, None] - 1
    place_S = jnp.arange(tokens_BS.shape[1], dtype=jnp.int32)
    alike_BS = place_S < end_B1
    depth_BS = jnp.zeros_like(tokens_BS)
    for back in range(lookup.longest):
        own_B1 = jnp.take_along_axis(tokens_BS, jnp.maximum(end_B1 - back, 0), axis=1)
        there_BS = jnp.roll(tokens_BS, back, axis=1)
        alike_BS = alike_BS & (there_BS == own_B1) & (place_S >= back)
        depth_BS = depth_BS + alike_BS
    best_B1 = jnp.max(depth_BS, axis=1, keepdims=True)
    latest_B1 = jnp.max(jnp.where(depth_BS == best_B1, place_S, -1), axis=1, keepdims=True)
    ahead_K = jnp.arange(k, dtype=jnp.int32)
    period_B1 = jnp.maximum(end_B1 - latest_B1, 1)
    ids_BK = jnp.take_along_axis(tokens_BS, latest_B1 + 1 + ahead_K % period_B1, axis=1)
    found_B = best_B1[:, 0] >= lookup.shortest
    return Drafts(ids_BK, jnp.where(found_B, want_B, 0), None)


def open_draft(
    draft: DraftModel, ids_BT: Int[Array, "B T"], count_B: Int[Array, " B"], *, rectangular: bool
) -> DraftModel:
    """Return a draft model that has read the prompts.

    Args:
        draft: With an empty cache.
        ids_BT: int32 prompts from the left.
        count_B: int32, tokens of each; 0 for a row that wants no drafts.
        rectangular: Whether all rows have one count; static.
    """
    promises = {"fresh": True, "rectangular": rectangular, "clean": True}
    how = {"config": draft.config, "last_only": True, **promises}
    _, after = forward(draft.params, ids_BT, draft.cache, count_B, **how)
    assert after is not None  # forward returns a cache for a cache
    return replace(draft, cache=after)


def draft_ahead(
    draft: DraftModel, text: Text, terms: Terms, want_B: Int[Array, " B"], *, k: int
) -> tuple[Drafts, DraftModel]:
    """Return the drafts of a model, one after the other; it has read all of them but the last.

    First it reads what it lacks of the text: the last token, and after drafts that were all kept
    the last of those too, which nobody has fed it.

    Args:
        draft: The model.
        text: What it continues.
        terms: Drafts are drawn as the rows' tokens are, with random numbers of their own.
        want_B: int32, drafts of each row; one that wants none is not forwarded.
        k: K, static.

    Cost: as many steps of the draft model as the row that wants most.
    """
    row_B = jnp.arange(want_B.shape[0], dtype=jnp.int32)
    slots, two = text.tokens_BS.shape[1], jnp.arange(2, dtype=jnp.int32)
    q_BKV = None
    if terms.sampler is not None:
        shape, dtype = (want_B.shape[0], k, draft.config.vocab_size), draft.params["embed"].dtype
        q_BKV = jnp.zeros(shape, jnp.promote_types(dtype, jnp.float32))

    def body(state: tuple[Any, ...]) -> tuple[Any, ...]:
        at, tokens_BS, q_BKV, cache = state
        count_B = jnp.where(want_B > at, text.length_B + at - cache.length_B, 0)
        place_B2 = jnp.minimum(cache.length_B[:, None] + two, slots - 1)
        ids_B2 = jnp.take_along_axis(tokens_BS, place_B2, axis=1)
        logits_B1V, after = forward(
            draft.params, ids_B2, cache, count_B, config=draft.config, clean=True, last_only=True
        )
        assert after is not None  # forward returns a cache for a cache
        known = tokens_BS, text.length_B + at, text.new_B + at
        next_B, q_BV = draw_drafts(logits_B1V, terms, *known)
        to_B = jnp.where(want_B > at, text.length_B + at, slots)
        tokens_BS = tokens_BS.at[row_B, to_B].set(next_B, mode="drop")
        if q_BKV is not None and q_BV is not None:
            q_BKV = jax.lax.dynamic_update_slice_in_dim(q_BKV, q_BV[:, None], at, axis=1)
        return at + 1, tokens_BS, q_BKV, after

    first = jnp.zeros((), jnp.int32), text.tokens_BS, q_BKV, draft.cache
    _, tokens_BS, q_BKV, cache = jax.lax.while_loop(
        lambda state: state[0] < jnp.max(want_B), body, first
    )
    ahead_BK = text.length_B[:, None] + jnp.arange(k, dtype=jnp.int32)
    ids_BK = jnp.take_along_axis(tokens_BS, jnp.minimum(ahead_BK, slots - 1), axis=1)
    return Drafts(ids_BK, want_B, q_BKV), replace(draft, cache=cache)


def draw_drafts(
    logits_B1V: Float[Array, "B 1 V"],
    terms: Terms,
    tokens_BS: Int[Array, "B S"],
    length_B: Int[Array, " B"],
    new_B: Int[Array, " B"],
) -> tuple[Int[Array, " B"], Float[Array, "B V"] | None]:
    """Return a drafted token a row, and the probabilities that they were drawn from.

    None where nothing is drawn.

    Args:
        logits_B1V: Of whatever drafts.
        terms: Drafts are taken as the rows' tokens are.
        tokens_BS: int32 texts with the drafts so far.
        length_B: int32, tokens of each with them.
        new_B: int32, the last of them that are new.
    """
    logits_BV = wanted(logits_B1V[:, 0], terms, tokens_BS, length_B, new_B)
    if terms.sampler is None:
        return sampling.greedy(logits_BV), None
    q_BV = acceptance.probabilities(logits_BV[:, None], terms.sampler)[:, 0]
    number_B = sampling.uniform(terms.sampler.seed_B, terms.held_B + length_B, stream=DRAFTING)
    return acceptance.draw(q_BV, number_B), q_BV
