"""What the gemma families share: norms around each part, a scaled embedding, a query scale.

Source: transformers 5.24, `models/gemma2` and `models/gemma3`.
"""

from dataclasses import replace
from typing import Any

from jaxkv.spec import llama_json
from jaxkv.spec.checkpoint import Place
from jaxkv.spec.config import Attention, ModelConfig
from jaxkv.spec.config_json import COMMON_NEUTRAL, ConfigJson

READ = (llama_json.READ - {"hidden_act"}) | {
    "attention_bias",
    "final_logit_softcapping",
    "head_dim",
    "hidden_activation",
    "layer_types",
    "query_pre_attn_scalar",
    "sliding_window",
}
IGNORED = llama_json.IGNORED | {"hidden_act": "the family reads hidden_activation"}
NEUTRAL = COMMON_NEUTRAL | {"use_bidirectional_attention": False}
_NAMES = llama_json.LAYER_NAMES | {
    "attn_post_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
}


def places(config: ModelConfig) -> dict[str, Place]:
    """Return where a checkpoint keeps each weight, the head's too when it is tied."""
    return llama_json.places(config, _NAMES)


def attention(data: ConfigJson, **more: Any) -> Attention:
    """Return an attention whose scores are scaled by a number of their own.

    Args:
        data: Of the whole file.
        more: Fields of the attention in which it differs.

    Raises:
        ConfigError: A number is missing or something else.
    """
    bias = data.flag("attention_bias", False)
    scale = data.number("query_pre_attn_scalar", 256)
    return llama_json.attention(
        data, head_dim=256, qkv_bias=bias, out_bias=bias, score_width=scale, **more
    )


def decoder(
    data: ConfigJson, family: str, attentions: tuple[Attention, ...], soft_cap: float | None
) -> ModelConfig:
    """Return the decoder with these attentions.

    Args:
        data: Of the whole file.
        family: Its name.
        attentions: Of each layer.
        soft_cap: Of the logits.

    Raises:
        ConfigError: A key is missing or something else.
    """
    mlp = llama_json.mlp(data, act="hidden_activation", default="gelu_pytorch_tanh")
    config = llama_json.decoder(
        data,
        family,
        attentions,
        (mlp,) * len(attentions),
        tied=True,
        scaled_embedding=True,
        logit_soft_cap=soft_cap,
    )
    layers = tuple(replace(layer, post_norms=True) for layer in config.layers)
    return replace(config, layers=layers, norm=replace(config.norm, plus_one=True))


def to_json(config: ModelConfig) -> dict[str, Any]:
    """Return what `config.json` says of the parts that the gemma families share."""
    first = config.layers[0].attention
    scale = first.score_width or first.head_dim
    keys = llama_json.to_json(config, act="hidden_activation")
    return (
        keys
        | llama_json.windows_to_json(config)
        | {
            "attention_bias": first.qkv_bias,
            "final_logit_softcapping": config.logit_soft_cap,
            # The library's own type for it is a whole number.
            "query_pre_attn_scalar": int(scale) if scale == int(scale) else scale,
        }
    )
