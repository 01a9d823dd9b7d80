"""Greedy texts with drafts from anybody: a tester's own drafter beside the real verifying step.

Letters: B rows, T prompt tokens, K drafted tokens.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from torchkv import caches
from torchkv.drafting import check_alone, check_layout, check_model
from torchkv.drafts import Drafts
from torchkv.loop import prefill, start
from torchkv.model import Decoder, params_of
from torchkv.request import check, device_arrays, new_cache
from torchkv.verification import no_tally, verify

Draft = Callable[[np.ndarray, int], np.ndarray]
# Of the other twin, which compiles a step of as many drafts; a ring's slack follows it.
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
        compiled: Nothing is, here.

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
    device = model.embed.device
    params, (ids_BT, count_B, terms) = params_of(model), device_arrays(request, device)
    width = ids_BT.shape[1]
    text = start(ids_BT, count_B, terms.budget_B, slots=max(found.reach + 1, width), logprobs=False)
    text, cache = prefill(
        params,
        text,
        torch.zeros((), dtype=torch.int32, device=device),
        terms,
        cache,
        config=model.config,
        width=width,
        reach=found.reach,
        fresh=True,
        rectangular=found.rectangular,
        clean=True,
    )
    with device:
        tally = no_tally(found.batch)
    while bool(text.active_B.any()):
        drafted = _drafted(text, new, draft, k, wide)
        text, cache, tally = verify(params, text, terms, cache, drafted, tally, config=model.config)
    caches.check(cache)
    return text.tokens_BS[:, : ids.shape[1] + new].cpu().numpy(), int(text.forwarded_B.sum())


def _drafted(text: Any, new: int, draft: Draft, k: int, wide: int) -> Drafts:
    rows = zip(text.tokens_BS.cpu().numpy(), text.length_B.tolist(), strict=True)
    drafts = [draft(tokens[None, :length], k)[0] for tokens, length in rows]
    ids_BK = torch.as_tensor(np.stack(drafts), dtype=torch.int32, device=text.length_B.device)
    return Drafts(ids_BK, (new - 1 - text.new_B).clamp(0, k), None)
