"""A feed-forward of experts: a router chooses some for each token, and only those are computed.

Letters: B rows, T tokens, D width, F feed-forward width, Z experts, C chosen a token, S tokens of
one expert.
Sources: Shazeer et al. 2017 (sparsely gated experts); Jiang et al. 2024, section 2.1 (Mixtral).
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor as Array

from jaxkv.spec import config as spec
from torchkv import ops

Params = Mapping[str, Any]


def route(
    p: Params, x_BTD: Float[Array, "B T D"], *, top_k: int, normalized: bool
) -> tuple[Int[Array, "B T C"], Float[Array, "B T C"]]:
    """Return the chosen experts of each token, and their weights.

    Weights are shares in the softmax over all experts, in at least float32; normalized divides them
    by the sum over the chosen. Equal scores go to the expert with the lower number. p holds the
    router's matrix.
    """
    score_BTZ = F.linear(x_BTD, p["weight"]).to(ops.wide(x_BTD.dtype))
    # A stable sort and not topk, which takes any one of equals.
    best_BTZ = score_BTZ.argsort(dim=-1, descending=True, stable=True)
    expert_BTC = best_BTZ[..., :top_k]
    # The softmax over the chosen alone is the softmax over all, divided by their sum.
    chosen_BTZ = score_BTZ.gather(-1, expert_BTC) if normalized else score_BTZ
    weight = chosen_BTZ.softmax(-1)
    return expert_BTC, weight if normalized else weight.gather(-1, expert_BTC)


def mix(p: Params, x_BTD: Float[Array, "B T D"], m: spec.Experts) -> Float[Array, "B T D"]:
    """Return the weighted sum of what each token's experts make of it.

    Cost: reads the matrices of the chosen experts alone, each once.
    """
    expert_BTC, weight_BTC = route(p["router"], x_BTD, top_k=m.top_k, normalized=m.normalized)
    sum_BTD = torch.zeros_like(x_BTD)
    for expert in expert_BTC.unique().tolist():
        row_S, time_S, choice_S = (expert_BTC == expert).nonzero(as_tuple=True)
        y_SD = _expert(p, x_BTD[row_S, time_S], expert, m.expert)
        y_SD = y_SD * weight_BTC[row_S, time_S, choice_S].unsqueeze(-1)
        sum_BTD = sum_BTD.index_put((row_S, time_S), y_SD.to(x_BTD.dtype), accumulate=True)
    return sum_BTD


def _expert(p: Params, x_SD: Array, expert: int, m: spec.Mlp) -> Array:
    gate_SF, up_SF = F.linear(x_SD, p["up"]["weight"][expert]).split(m.width, -1)
    return F.linear(ops.ACTIVATIONS[m.activation](gate_SF) * up_SF, p["down"]["weight"][expert])
