"""Logits -> token. Letters: B rows, V vocabulary."""

import torch
from jaxtyping import Float, Int
from torch import Tensor as Array


def greedy(logits_BV: Float[Array, "B V"]) -> Int[Array, " B"]:
    """Return the id of each row's largest logit, int32; of equal ones the lowest id."""
    return logits_BV.argmax(-1).to(torch.int32)
