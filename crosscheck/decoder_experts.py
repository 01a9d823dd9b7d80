"""The experts of the reference decoder: which of them a token takes, and with which weights.

Letters: Z experts.
Sources: Jiang et al. 2024, section 2.1; DeepSeek-V2 (2024), section 2.2.2; DeepSeek-V3 (2024),
section 2.1.2.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def choose(
    m: Mapping[str, Any], score_Z: NDArray, bias_Z: NDArray | None
) -> list[tuple[int, float]]:
    """Return the experts that one token takes, each with its weight.

    Args:
        m: Plain data of the experts.
        score_Z: The router's scores of the token.
        bias_Z: Added for the choice alone; None without one.
    """
    routing = m.get("routing") or {"scoring": "softmax", "num_groups": 1, "scale": 1.0}
    share_Z = _shares(routing["scoring"], score_Z)
    rank_Z = share_Z if bias_Z is None else share_Z + bias_Z
    allowed = range(len(score_Z))
    if routing["num_groups"] > 1:
        allowed = _members_of_best_groups(routing, rank_Z)
    chosen = sorted(allowed, key=lambda z: (-rank_Z[z], z))[: m["top_k"]]
    total = sum(share_Z[z] for z in chosen) if m["normalized"] else 1
    return [(z, share_Z[z] / total * routing["scale"]) for z in chosen]


def _shares(scoring: str, score_Z: NDArray) -> NDArray:
    if scoring == "sigmoid":
        return 1 / (1 + np.exp(-score_Z))
    share_Z = np.exp(score_Z - score_Z.max())
    return share_Z / share_Z.sum()


def _members_of_best_groups(routing: Mapping[str, Any], rank_Z: NDArray) -> list[int]:
    size = len(rank_Z) // routing["num_groups"]
    best = 2 if routing["group_score"] == "top2" else 1
    groups = [range(g * size, (g + 1) * size) for g in range(routing["num_groups"])]
    score_G = [sum(sorted((rank_Z[z] for z in group), reverse=True)[:best]) for group in groups]
    order = sorted(range(len(groups)), key=lambda g: (-score_G[g], g))
    return [z for g in order[: routing["top_groups"]] for z in groups[g]]
