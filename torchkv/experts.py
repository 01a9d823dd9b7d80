"""A feed-forward of experts: a router chooses some for each token, and only those are computed.

Letters: B rows, T tokens, D width, F feed-forward width, Z experts, C chosen a token, S tokens of
one expert; in the routing G groups of S experts.
Sources: Shazeer et al. 2017 (sparsely gated experts); Jiang et al. 2024, section 2.1 (Mixtral);
DeepSeek-V2 (2024), section 2.2.2 (groups); DeepSeek-V3 (2024), section 2.1.2 (sigmoids and bias).
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor as Array

from jaxkv.spec import config as spec
from torchkv import ops
from torchkv.linear import linear

Params = Mapping[str, Any]


def route(
    p: Params,
    x_BTD: Float[Array, "B T D"],
    *,
    top_k: int,
    normalized: bool,
    routing: spec.Routing | None = None,
) -> tuple[Int[Array, "B T C"], Float[Array, "B T C"]]:
    """Return the chosen experts of each token, and their weights.

    Weights are shares in the softmax over all experts, or sigmoids, in at least float32; normalized
    divides them by the sum over the chosen. Equal scores go to the expert with the lower number. p
    holds the router's matrix, and a bias for the choice where the routing has one.
    """
    score_BTZ = F.linear(x_BTD, p["weight"]).to(ops.wide(x_BTD.dtype))
    if routing is not None:
        return _routed(p, score_BTZ, top_k, normalized, routing)
    # A stable sort and not topk, which takes any one of equals.
    best_BTZ = score_BTZ.argsort(dim=-1, descending=True, stable=True)
    expert_BTC = best_BTZ[..., :top_k]
    # The softmax over the chosen alone is the softmax over all, divided by their sum.
    chosen_BTZ = score_BTZ.gather(-1, expert_BTC) if normalized else score_BTZ
    weight = chosen_BTZ.softmax(-1)
    return expert_BTC, weight if normalized else weight.gather(-1, expert_BTC)


def _routed(
    p: Params, score_BTZ: Array, top_k: int, normalized: bool, routing: spec.Routing
) -> tuple[Array, Array]:
    own_BTZ = score_BTZ.sigmoid() if routing.scoring == "sigmoid" else score_BTZ.softmax(-1)
    rank_BTZ = own_BTZ + p["bias"].to(own_BTZ.dtype) if routing.choice_bias else own_BTZ
    hidden_BTZ = _outside_best_groups(rank_BTZ, routing)
    best_BTZ = rank_BTZ.masked_fill(hidden_BTZ, -torch.inf).argsort(
        dim=-1, descending=True, stable=True
    )
    expert_BTC = best_BTZ[..., :top_k]
    weight_BTC = own_BTZ.gather(-1, expert_BTC)
    if normalized:
        # Sigmoids of very low scores may all be 0.
        weight_BTC = weight_BTC / weight_BTC.sum(-1, keepdim=True).clamp(min=1e-20)
    return expert_BTC, weight_BTC * routing.scale


def _outside_best_groups(rank_BTZ: Array, routing: spec.Routing) -> Array:
    """Return which experts belong to none of the best groups."""
    each = rank_BTZ.shape[-1] // routing.num_groups
    rank_BTGS = rank_BTZ.unflatten(-1, (routing.num_groups, each))
    if routing.group_score == "top2" and each > 1:
        score_BTG = rank_BTGS.sort(-1, descending=True).values[..., :2].sum(-1)
    else:
        score_BTG = rank_BTGS.amax(-1)
    worst_BTG = score_BTG.argsort(dim=-1, descending=True, stable=True)[..., routing.top_groups :]
    is_out_BTG = torch.zeros_like(score_BTG, dtype=torch.bool).scatter(-1, worst_BTG, True)
    return is_out_BTG.repeat_interleave(each, -1)


def mix(p: Params, x_BTD: Float[Array, "B T D"], m: spec.Experts) -> Float[Array, "B T D"]:
    """Return the weighted sum of what each token's experts make of it.

    Cost: reads the matrices of the chosen experts alone, each once.
    """
    expert_BTC, weight_BTC = route(
        p["router"], x_BTD, top_k=m.top_k, normalized=m.normalized, routing=m.routing
    )
    sum_BTD = torch.zeros_like(x_BTD)
    for expert in expert_BTC.unique().tolist():
        row_S, time_S, choice_S = (expert_BTC == expert).nonzero(as_tuple=True)
        y_SD = _expert(p, x_BTD[row_S, time_S], expert, m.expert)
        y_SD = y_SD * weight_BTC[row_S, time_S, choice_S].unsqueeze(-1)
        sum_BTD = sum_BTD.index_put((row_S, time_S), y_SD.to(x_BTD.dtype), accumulate=True)
    return sum_BTD


def _expert(p: Params, x_SD: Array, expert: int, m: spec.Mlp) -> Array:
    up, down = ({"weight": p[part]["weight"][expert]} for part in ("up", "down"))
    gate_1SF, up_1SF = linear(up, x_SD.unsqueeze(0)).split(m.width, -1)
    return linear(down, ops.ACTIVATIONS[m.activation](gate_1SF) * up_1SF).squeeze(0)
