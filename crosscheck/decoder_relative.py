"""The decoder's relative bias: an addend of the scores by the distance of key and query.

Letters: T tokens, N query heads, C buckets.
Source: Raffel et al. 2020, section 2.1.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.decoder_inputs import Weights


def relative_bias(
    attentions: Sequence[Mapping[str, Any]], w: Weights, prefix: str, tokens: int
) -> NDArray | None:
    """Return the bias of every head, query and key, which all layers share; None without one.

    Raises:
        DecoderError: The table is missing or has another shape.
    """
    for a in attentions:
        if a.get("relative") is None:
            continue
        count, far = a["relative"]["buckets"], a["relative"]["max_distance"]
        table_CN = w.take(f"{prefix}relative.weight", count, a["num_heads"])
        bias_NTT = np.zeros((a["num_heads"], tokens, tokens), table_CN.dtype)
        for query in range(tokens):
            for key in range(tokens):
                bucket = _bucket(key - query, count, far, causal=a.get("causal", True))
                bias_NTT[:, query, key] = table_CN[bucket]
        return bias_NTT
    return None


def _bucket(offset: int, count: int, far: int, *, causal: bool) -> int:
    if causal:
        return _of_distance(max(-offset, 0), count, far)
    return _of_distance(abs(offset), count // 2, far) + (count // 2 if offset > 0 else 0)


def _of_distance(distance: int, count: int, far: int) -> int:
    exact = count // 2
    if distance < exact:
        return distance
    # Where each wider bucket starts; rounding must not miss a start that is a whole number.
    starts = [exact * (far / exact) ** (k / (count - exact)) for k in range(count - exact)]
    return exact + sum(distance >= start - 1e-9 for start in starts) - 1
