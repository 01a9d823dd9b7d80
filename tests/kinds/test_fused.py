"""The kernel for first tokens on a GPU: its arguments mean what plain blocks compute, or it is not.

Here XLA's own form stands in for it, which takes the same arguments; no GPU is needed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxkv import ops
from jaxkv.caches import fused, slots

B, T, K, G, H = 2, 9, 2, 3, 8
VALID_BT = jnp.arange(T) < jnp.array([[9], [4]])


@pytest.fixture
def gpu(monkeypatch):
    fused._is_there.cache_clear()
    monkeypatch.setattr(fused.jax, "default_backend", lambda: "gpu")
    yield lambda name: monkeypatch.setattr(fused, "IMPLEMENTATION", name)
    fused._is_there.cache_clear()


def arrays(dtype):
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((B, T, heads, H)) for heads in (K * G, K, K))
    return [jnp.asarray(x, dtype) for x in (q, k, v)]


def attended(q, k, v, rule):
    """Return the real tokens' outputs by `slots.attend_fresh`, jitted."""
    position_BT = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32), (B, T))
    run = jax.jit(
        lambda q, k, v: slots.attend_fresh(
            q, k, v, position_BT=position_BT, valid_BT=VALID_BT, rule=rule
        )
    )
    return np.asarray(run(q, k, v), np.float32)[np.asarray(VALID_BT)]


@pytest.mark.parametrize("window", [None, 3], ids=["whole", "window"])
def test_the_kernel_computes_what_the_blocks_do(gpu, window):
    given, rule = arrays(jnp.bfloat16), ops.Rule(scale=0.3, window=window)
    gpu("xla")

    assert fused.attend_fresh(*given, valid_BT=VALID_BT, rule=rule) is not None
    found = attended(*given, rule)

    # Two roundings of bfloat16, of weights and of sums of them, to outputs of about 1.
    with pytest.MonkeyPatch.context() as off:
        off.setattr(fused, "attend_fresh", lambda *_, **__: None)
        np.testing.assert_allclose(found, attended(*given, rule), atol=2**-6, rtol=0)


@pytest.mark.parametrize(
    ("dtype", "rule"),
    [
        (jnp.float32, ops.Rule(scale=1.0)),
        (jnp.bfloat16, ops.Rule(scale=1.0, soft_cap=5.0)),
        (jnp.bfloat16, ops.Rule(scale=1.0, causal=False)),
    ],
    ids=["float32", "soft-cap", "not-causal"],
)
def test_what_the_kernel_does_not_know_is_left_to_the_blocks(gpu, dtype, rule):
    gpu("xla")

    assert fused.attend_fresh(*arrays(dtype), valid_BT=VALID_BT, rule=rule) is None


def test_a_device_that_does_not_compile_the_kernel_goes_without(gpu):
    gpu("cudnn")

    rule = ops.Rule(scale=1.0)
    assert fused.attend_fresh(*arrays(jnp.bfloat16), valid_BT=VALID_BT, rule=rule) is None
