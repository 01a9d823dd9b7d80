"""Log-probabilities of the tokens in beams, kept beside their texts.

Letters: B rows, J beams of a row, M texts among which J are chosen, S new tokens at most, A
likeliest tokens, V vocabulary.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor as Array


@dataclass(frozen=True)
class Told:
    """What the model's own distribution made of each new token, where it stands in its text.

    Attributes:
        logprob_BJS: float32, of the token.
        id_BJSA: int32, the likeliest at its place, the likeliest first; A may be 0.
        top_BJSA: float32, their log-probabilities.
    """

    logprob_BJS: Float[Array, "B J S"]
    id_BJSA: Int[Array, "B J S A"]
    top_BJSA: Float[Array, "B J S A"]


def nothing_told(batch: int, beams: int, slots: int, *, top: int) -> Told:
    """Return room for the log-probabilities of as many texts, and of the `top` likeliest tokens.

    On torch's default device; `with torch.device(...)` sets it.
    """
    shape = (batch, beams, slots)
    ids = torch.zeros((*shape, top), dtype=torch.int32)
    return Told(torch.zeros(shape, dtype=torch.float32), ids, ids.float())


def tell(
    told: Told,
    logprob_BJV: Float[Array, "B J V"],
    beam_BM: Int[Array, "B M"],
    token_BM: Int[Array, "B M"],
    at: int,
) -> Told:
    """Return what is told of continuations: of the beams that they continue, and of their tokens.

    Args:
        told: Of the beams.
        logprob_BJV: Of the next tokens, before any processor.
        beam_BM: Which beam each continues.
        token_BM: By which token.
        at: Where it will stand.

    Cost: sorts the vocabulary, if the likeliest tokens are wanted.
    """
    moved, row_B1 = take(told, beam_BM), torch.arange(len(beam_BM), device=beam_BM.device)[:, None]
    moved.logprob_BJS[:, :, at] = logprob_BJV[row_B1, beam_BM, token_BM.long()].float()
    top = told.id_BJSA.shape[3]
    if top:
        # Stable: of equally likely tokens the lowest id comes first.
        line_BJV, id_BJV = logprob_BJV.sort(dim=2, descending=True, stable=True)
        moved.id_BJSA[:, :, at] = id_BJV[row_B1, beam_BM, :top].int()
        moved.top_BJSA[:, :, at] = line_BJV[row_B1, beam_BM, :top].float()
    return moved


def join(first: Told, second: Told) -> Told:
    """Return what is told of the texts of both, one after the other."""
    return Told(
        torch.cat((first.logprob_BJS, second.logprob_BJS), 1),
        torch.cat((first.id_BJSA, second.id_BJSA), 1),
        torch.cat((first.top_BJSA, second.top_BJSA), 1),
    )


def take(told: Told, place_BJ: Int[Array, "B J"]) -> Told:
    """Return what is told of the texts at those places of each row."""
    row_B1 = torch.arange(len(place_BJ), device=place_BJ.device)[:, None]
    each = (told.logprob_BJS, told.id_BJSA, told.top_BJSA)
    return Told(*(x[row_B1, place_BJ] for x in each))
