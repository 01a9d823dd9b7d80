"""torchkv's attention of first tokens: the fused kernel, where it serves, and blocks elsewhere."""

import numpy as np
import pytest
import torch

from tests.kinds.test_causal import G, H, K, plain
from torchkv import ops
from torchkv.caches import causal, slots

B, T = 2, 150


def arrays(width=H):
    rng = np.random.default_rng(8)
    return [
        torch.from_numpy(rng.standard_normal((B, T, *shape)))
        for shape in ((K * G, H), (K, H), (K, width))
    ]


@pytest.mark.parametrize(
    ("width", "rule", "served"),
    [
        (H, ops.Rule(scale=0.3), True),
        (H, ops.Rule(scale=0.3, window=T), True),
        (H, ops.Rule(scale=0.3, soft_cap=2.0), False),
        (2 * H, ops.Rule(scale=0.3), False),
    ],
    ids=["plain", "window of the whole text", "capped", "wider values"],
)
def test_first_tokens_are_the_plain_softmax_whoever_computes_them(width, rule, served):
    given = arrays(width)
    position_BT = torch.arange(T, dtype=torch.int32).expand(B, T)

    found = slots.attend_fresh(
        *given, position_BT=position_BT, valid_BT=position_BT >= 0, rule=rule
    )

    assert (width == H and causal.is_served(T, rule=rule)) == served
    expected = plain(*given, scale=rule.scale, cap=rule.soft_cap)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-13, rtol=0)


def test_tokens_that_are_not_real_get_zeros():
    given = arrays()
    valid_BT = torch.arange(T) < torch.tensor([[T - 4], [0]])

    found = causal.attend(*given, valid_BT=valid_BT, rule=ops.Rule(scale=0.3))

    expected = np.where(valid_BT[:, :, None, None], plain(*given, scale=0.3), 0)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-13, rtol=0)


@pytest.mark.parametrize(
    "rule", [ops.Rule(scale=1.0, window=T - 1), ops.Rule(scale=1.0, causal=False)]
)
def test_windows_and_texts_that_see_ahead_are_left_to_blocks(rule):
    assert not causal.is_served(T, rule=rule)
