"""A policy for texts longer than a cache: at the boundary the end of the text is computed anew.

Whenever the cache is full, it is emptied, and the last `keep` tokens are computed again as a text
of their own, whose positions begin at 0. That is another function than the model's over the whole
text: what stood before is forgotten, and what is kept no longer knows of it. It is offered under
this name because people do it, and is nowhere a default.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxkv.spec.errors import RequestError
from torchkv.generation import generate
from torchkv.model import Decoder


@dataclass(frozen=True)
class Recomputed:
    """What a request gave, and what was forgotten for it.

    Attributes:
        new_tokens: New ids.
        boundaries: For each time that the cache was full, how many tokens of the text, prompt and
            new, were forgotten from then on.
        forwarded_positions: Positions that went through the model, recomputed ones again.
    """

    new_tokens: list[int]
    boundaries: list[int]
    forwarded_positions: int


def recompute_at_boundary(
    model: Decoder,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    capacity: int,
    keep: int,
    **options: Any,
) -> Recomputed:
    """Return a prompt continued without limit in a cache of `capacity` tokens.

    Token t is what the model says after the text from the last boundary on, as if nothing had stood
    before. Up to the first boundary that is the whole text.

    Args:
        model: In evaluation mode.
        prompt: Ids; a prompt beyond the capacity keeps its end, which is a boundary too.
        max_new_tokens: Budget.
        capacity: Tokens that the cache can hold.
        keep: Tokens that are computed again at a boundary, from 1 to capacity.
        **options: Of `generate`: draws and layout, not ends.

    Raises:
        RequestError: keep is out of range; or see `generate`.

    Cost: `keep` positions again for every capacity - keep + 1 new tokens.
    """
    if not 1 <= keep <= capacity:
        raise RequestError(
            f"recompute_at_boundary: keep is {keep}, expected 1 to {capacity}, the capacity."
        )
    text, forwarded, start = [int(token) for token in prompt], 0, 0
    boundaries: list[int] = []
    end = len(text) + max_new_tokens
    while len(text) < end:
        if len(text) - start > capacity:
            start = len(text) - keep
            boundaries.append(start)
        room = capacity - (len(text) - start) + 1
        found = generate(
            model,
            [text[start:]],
            max_new_tokens=min(room, end - len(text)),
            capacity=capacity,
            **options,
        )
        text += found.new_tokens[0]
        forwarded += int(found.forwarded_positions_B[0])
    return Recomputed(text[len(prompt) :], boundaries, forwarded)
