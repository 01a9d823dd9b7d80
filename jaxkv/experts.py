"""A feed-forward of experts: a router chooses some for each token, and only those are computed.

Letters: B rows, T tokens, D width, F feed-forward width, Z experts, C chosen a token, A = B*T*C
assignments of a token to an expert, J jobs of one expert with up to S tokens each.
Sources: Shazeer et al. 2017 (sparsely gated experts); Jiang et al. 2024, section 2.1 (Mixtral);
DeepSeek-V2 (2024), section 2.2.2 (groups); DeepSeek-V3 (2024), section 2.1.2 (sigmoids and bias).
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxkv import ops
from jaxkv.spec import config as spec

Params = Mapping[str, Any]
_SCORINGS = {"softmax": partial(jax.nn.softmax, axis=-1), "sigmoid": jax.nn.sigmoid}


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
    up = ops.wide(x_BTD.dtype)
    score_BTZ = jnp.einsum("BTD,DZ->BTZ", x_BTD, p["weight"]).astype(up)
    if routing is None:
        weight_BTC, expert_BTC = jax.lax.top_k(jax.nn.softmax(score_BTZ, axis=-1), top_k)
        scale = 1.0
    else:
        share_BTZ = _SCORINGS[routing.scoring](score_BTZ)
        choice_BTZ = share_BTZ + p["bias"].astype(up) if routing.choice_bias else share_BTZ
        _, expert_BTC = jax.lax.top_k(_in_best_groups(choice_BTZ, routing), top_k)
        weight_BTC = jnp.take_along_axis(share_BTZ, expert_BTC, axis=-1)
        scale = routing.scale
    if normalized:
        # Shares sum to something; sigmoids of very low scores may all be 0.
        weight_BTC = weight_BTC / jnp.maximum(jnp.sum(weight_BTC, axis=-1, keepdims=True), 1e-20)
    return expert_BTC, weight_BTC * scale


def _in_best_groups(choice_BTZ: Array, routing: spec.Routing) -> Array:
    """Return the scores with those outside the best groups at minus infinity."""
    if routing.top_groups == routing.num_groups:
        return choice_BTZ
    groups = routing.num_groups
    split = choice_BTZ.reshape(*choice_BTZ.shape[:-1], groups, -1)
    best, _ = jax.lax.top_k(split, 2 if routing.group_score == "top2" else 1)
    _, group = jax.lax.top_k(jnp.sum(best, axis=-1), routing.top_groups)
    is_in = jnp.any(group[..., None] == jnp.arange(groups), axis=-2)
    return jnp.where(is_in[..., None], split, -jnp.inf).reshape(choice_BTZ.shape)


def mix(p: Params, x_BTD: Float[Array, "B T D"], m: spec.Experts) -> Float[Array, "B T D"]:
    """Return the weighted sum of what each token's experts make of it.

    Cost: in a decode step reads the matrices of the chosen experts alone, each once for every S
    tokens that chose it, S being twice the tokens of an expert on average in a batch of up to 16
    rows; longer steps compute at most Z*S more than was asked for. Experts that stand apart
    (`weights.from_arrays`: few of them, on a CPU) are read where they lie; of those in one array
    each read is a copy first.
    """
    b, t, d = x_BTD.shape
    choice = route(p["router"], x_BTD, top_k=m.top_k, normalized=m.normalized, routing=m.routing)
    expert_A, weight_A = (each.reshape(-1) for each in choice)
    token_A = jnp.repeat(jnp.arange(b * t, dtype=jnp.int32), m.top_k)
    size = _job_size(expert_A.shape[0], b * t, m.num_experts)
    expert_J, place_JS = _jobs(expert_A, m.num_experts, size)
    # One line more of zeros: what the unused places of a job read and write.
    x_ND = jnp.concatenate([x_BTD.reshape(b * t, d), jnp.zeros((1, d), x_BTD.dtype)])
    token_A = jnp.append(token_A, b * t)
    weight_A = jnp.append(weight_A, 0)

    def work(j: Array, sum_ND: Array) -> Array:
        token_S, weight_S = token_A[place_JS[j]], weight_A[place_JS[j]]
        y_SD = _chosen(p, x_ND[token_S], expert_J[j], m)
        return sum_ND.at[token_S].add((weight_S[:, None] * y_SD).astype(sum_ND.dtype))

    sum_ND = jax.lax.fori_loop(0, expert_J.shape[0], work, jnp.zeros_like(x_ND))
    return sum_ND[: b * t].reshape(b, t, d)


def _job_size(assignments: int, tokens: int, num_experts: int) -> int:
    # A decode step of one row has one token a job: no place of a job is wasted on it.
    if assignments <= num_experts:
        return 1
    share = -(-assignments // num_experts)
    # Few tokens seldom meet more than twice at one expert, and unused places cost products.
    return min(tokens, 2 * share) if tokens <= 16 else min(64, share)


def _jobs(
    expert_A: Int[Array, " A"], num_experts: int, size: int
) -> tuple[Int[Array, " J"], Int[Array, "J S"]]:
    """Return each job's expert, and its assignments; Z and A stand in the places left over."""
    count = expert_A.shape[0]
    if size == 1:
        return expert_A, jnp.arange(count, dtype=jnp.int32)[:, None]
    jobs = count // size + num_experts
    order_A = jnp.argsort(expert_A, stable=True).astype(jnp.int32)
    sorted_A = expert_A[order_A]
    count_Z = jnp.zeros(num_experts, jnp.int32).at[expert_A].add(1)
    before_Z = jnp.cumsum(count_Z, dtype=jnp.int32) - count_Z
    jobs_Z = -(-count_Z // size)
    first_Z = jnp.cumsum(jobs_Z, dtype=jnp.int32) - jobs_Z
    rank_A = jnp.arange(count, dtype=jnp.int32) - before_Z[sorted_A]
    job_A = first_Z[sorted_A] + rank_A // size
    expert_J = jnp.full(jobs, num_experts, jnp.int32).at[job_A].set(sorted_A)
    place_JS = jnp.full((jobs, size), count, jnp.int32).at[job_A, rank_A % size].set(order_A)
    return expert_J, place_JS


def _chosen(p: Params, x_SD: Array, expert: Array, m: spec.Experts) -> Array:
    """Return what the expert of a job makes of its tokens; what is left over makes nothing."""
    if "weight" in p["up"]:
        up_DF, down_FD = (
            jax.lax.dynamic_index_in_dim(p[part]["weight"], expert, keepdims=False)
            for part in ("up", "down")
        )
        return _expert(up_DF, down_FD, x_SD, m.expert)
    # A branch's product reads its own matrix; a slice of one array would be copied for it.
    apart = [
        partial(_expert, p["up"][z]["weight"], p["down"][z]["weight"], m=m.expert)
        for z in range(m.num_experts)
    ]
    return jax.lax.switch(expert, [*apart, jnp.zeros_like], x_SD)


def _expert(up_DF: Array, down_FD: Array, x_SD: Array, m: spec.Mlp) -> Array:
    up_SF = x_SD @ up_DF
    return (ops.ACTIVATIONS[m.activation](up_SF[:, : m.width]) * up_SF[:, m.width :]) @ down_FD
