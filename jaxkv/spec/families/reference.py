"""The `reference` preset.

A small pre-norm decoder with learned positions, every size as the project's founding text fixes it.
"""

from jaxkv.spec.config import Attention, Layer, Mlp, ModelConfig, Norm


def preset() -> ModelConfig:
    """Return the reference decoder.

    Vocabulary 19, width 24, 3 heads of 8, 2 layers, 160 positions, exact GELU, untied head with
    bias.
    """
    attention = Attention(
        num_heads=3,
        num_kv_heads=3,
        head_dim=8,
        window=None,
        rope=None,
        qkv_bias=True,
        out_bias=True,
    )
    layer = Layer(attention, Mlp(width=96, activation="gelu", gated=False, bias=True))
    return ModelConfig(
        family="reference",
        vocab_size=19,
        width=24,
        max_positions=160,
        layers=(layer, layer),
        norm=Norm(kind="layer", eps=1e-5),
        learned_positions=True,
        tied_head=False,
        head_bias=True,
    )
