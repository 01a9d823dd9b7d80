"""Greedy texts with drafts from anybody: a tester's own drafter beside the real verifying step.

Letters: B rows, T prompt tokens, K drafted tokens.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxkv import caches
from jaxkv.drafting import check_alone, check_layout, check_model
from jaxkv.drafts import Drafts
from jaxkv.loop import prefill, start
from jaxkv.model import Decoder, params_of
from jaxkv.programs import PROGRAMS
from jaxkv.request import check, device_arrays, new_cache
from jaxkv.verification import no_tally, verify

Draft = Callable[[np.ndarray, int], np.ndarray]
# One program serves all smaller numbers of drafts.
WIDEST = 7


def continue_with(
    model: Decoder,
    ids: np.ndarray,
    new: int,
    draft: Draft,
    k: int,
    *,
    on: dict[str, Any],
    compiled: bool,
) -> tuple[np.ndarray, int]:
    """Return greedy ids [B, T + new], and how many positions entered the model.

    Args:
        model: In evaluation mode.
        ids: Prompts [B, T].
        new: How many ids each row gets.
        draft: (one text so far [1, n], k) -> ids [1, k]. Each row keeps and rolls back its own.
        k: Drafts of a row and step at most.
        on: The layout and its options, as `speculate` takes them.
        compiled: Whether by `jax.jit`.

    Raises:
        Unsupported: The layout or the model does not serve drafts.
        CapacityError: The texts are longer than the model's positions.
    """
    check_alone(model)
    ids, wide = np.asarray(ids), max(k, WIDEST)
    request = check(
        "speculate",
        model,
        [row.tolist() for row in ids],
        max_new_tokens=new,
        end_ids=(),
        cache=None,
        capacity=None,
        sampling={},
    )
    found = request.plan
    check_model(model, found)
    check_layout(on["layout"], on["layout_options"] or {})
    cache = new_cache(
        model,
        request,
        slots=found.reach,
        layout=on["layout"],
        slack=max(on["slack"], wide + 1),
        page_size=on["page_size"],
        options=on["layout_options"],
    )
    params, (ids_BT, count_B, terms) = params_of(model), device_arrays(request)
    call = PROGRAMS.jitted if compiled else lambda function: function
    width = ids_BT.shape[1]
    text = start(ids_BT, count_B, terms.budget_B, slots=max(found.reach + 1, width), logprobs=False)
    text, cache = call(prefill)(
        params,
        text,
        jnp.zeros((), jnp.int32),
        terms,
        cache,
        config=model.config,
        width=width,
        reach=found.reach,
        fresh=True,
        rectangular=found.rectangular,
        clean=True,
    )
    tally, step = no_tally(found.batch), call(verify)
    while np.asarray(text.active_B).any():
        drafted = _drafted(text, new, draft, k, wide)
        text, cache, tally = step(params, text, terms, cache, drafted, tally, config=model.config)
    caches.check(cache)
    return np.asarray(text.tokens_BS)[:, : ids.shape[1] + new], int(text.forwarded_B.sum())


def _drafted(text: Any, new: int, draft: Draft, k: int, wide: int) -> Drafts:
    tokens_BS, lengths = np.asarray(text.tokens_BS), np.asarray(text.length_B).tolist()
    ids_BK = np.zeros((len(lengths), wide), np.int32)
    for row, tokens, length in zip(ids_BK, tokens_BS, lengths, strict=True):
        row[:k] = draft(tokens[None, :length], k)[0]
    count_B = np.clip(new - 1 - np.asarray(text.new_B), 0, k)
    return Drafts(jnp.asarray(ids_BK), jnp.asarray(count_B, jnp.int32), None)
