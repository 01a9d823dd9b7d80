"""Attention of a whole text's tokens to themselves by PyTorch's fused kernel for causal texts.

It makes no mask and never writes scores out. Letters: B rows, T new tokens, N query heads, K
key/value heads, H head width.
"""

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor as Array

from torchkv import ops


def is_served(tokens: int, *, rule: ops.Rule) -> bool:
    """Return whether each of T tokens sees all before it, by a softmax that the kernel knows."""
    sees_all = rule.causal and (rule.window is None or rule.window >= tokens)
    return sees_all and rule.soft_cap is None


def attend(
    q_BTNH: Float[Array, "B T N H"],
    k_BTKH: Float[Array, "B T K H"],
    v_BTKH: Float[Array, "B T K H"],
    *,
    valid_BT: Bool[Array, "B T"],
    rule: ops.Rule,
) -> Float[Array, "B T N H"]:
    """Return attention of T tokens to themselves and to all before them.

    Zeros for tokens that are not real, which stand behind a row's others. Values of another width
    than keys' would be read by plain operations, T*T scores at once.
    """
    out_BNTH = F.scaled_dot_product_attention(
        q_BTNH.transpose(1, 2),
        k_BTKH.transpose(1, 2),
        v_BTKH.transpose(1, 2),
        is_causal=True,
        scale=rule.scale,
        enable_gqa=True,
    )
    return out_BNTH.transpose(1, 2).masked_fill(~valid_BT[:, :, None, None], 0)
