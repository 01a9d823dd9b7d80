"""The gpt_neox family (Pythia): both parts of a block read one stream, and few channels turn.

Source: transformers 5.24, `models/gpt_neox`: query_key_value holds q, k and v head by head.
"""

from typing import Any

from jaxkv.spec import llama_json, rope_json
from jaxkv.spec.checkpoint import Place, Stored
from jaxkv.spec.config import Attention, Layer, Mlp, ModelConfig, Norm
from jaxkv.spec.config_json import ACTIVATIONS, COMMON_IGNORED, COMMON_NEUTRAL, ConfigJson

HUGGINGFACE_ARCHITECTURE = "GPTNeoXForCausalLM"
HUGGINGFACE_PREFIX = "gpt_neox."
"""Files saved from the bare decoder leave it out."""
HUGGINGFACE_IGNORED_TENSORS = {
    r"layers\.\d+\.attention\.(masked_)?bias": "the causal mask, stored",
    r"layers\.\d+\.attention\.rotary_emb\.inv_freq": "frequencies follow from the config",
}

_MODEL_NAMES = {
    "embed.weight": "gpt_neox.embed_in.weight",
    "norm.weight": "gpt_neox.final_layer_norm.weight",
    "norm.bias": "gpt_neox.final_layer_norm.bias",
    "head.weight": "embed_out.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn.o": "attention.dense",
    "mlp_norm": "post_attention_layernorm",
    "mlp.up": "mlp.dense_h_to_4h",
    "mlp.down": "mlp.dense_4h_to_h",
}
HUGGINGFACE_READ = {
    "attention_bias",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "layer_norm_eps",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "rotary_emb_base",
    "rotary_pct",
    "tie_word_embeddings",
    "use_parallel_residual",
    "vocab_size",
    "rope_parameters",
    "rope_scaling",
}
HUGGINGFACE_IGNORED = COMMON_IGNORED | {
    "attention_dropout": "training only",
    "attention_probs_dropout_prob": "training only",
    "classifier_dropout": "of a classifier",
    "hidden_dropout": "training only",
    "hidden_dropout_prob": "training only",
    "is_decoder": "the family's attention is causal either way",
}
HUGGINGFACE_NEUTRAL = {
    key: value for key, value in COMMON_NEUTRAL.items() if key not in HUGGINGFACE_IGNORED
}


def places_from_huggingface(config: ModelConfig) -> dict[str, Place]:
    """Return where a checkpoint keeps each weight, the head's too when it is tied."""
    places: dict[str, Place] = {name: Stored(given) for name, given in _MODEL_NAMES.items()}
    for i, layer in enumerate(config.layers):
        heads, width = layer.attention.num_heads, layer.attention.head_dim
        for kind in ("weight", "bias"):
            for name, given in _LAYER_NAMES.items():
                stored = Stored(f"gpt_neox.layers.{i}.{given}.{kind}")
                places[f"layers.{i}.{name}.{kind}"] = stored
            packed = f"gpt_neox.layers.{i}.attention.query_key_value.{kind}"
            for part, name in enumerate("qkv"):
                span = (part * width, (part + 1) * width)
                places[f"layers.{i}.attn.{name}.{kind}"] = Stored(packed, span, groups=heads)
    return places


def config_from_huggingface(data: ConfigJson) -> ModelConfig:
    """Return the config that a `config.json` of model type `gpt_neox` describes.

    Raises:
        ConfigError: A key is missing or out of range, or changes the function in a way that is not
            supported; each is named.
    """
    data.check_keys(HUGGINGFACE_READ, HUGGINGFACE_IGNORED, HUGGINGFACE_NEUTRAL)
    attention = _attention(data)
    activation = data.choice("hidden_act", ACTIVATIONS, "gelu")
    mlp = Mlp(data.whole("intermediate_size"), activation, gated=False, bias=True)
    layer = Layer(attention, mlp, parallel=data.flag("use_parallel_residual", True))
    return ModelConfig(
        family="gpt_neox",
        vocab_size=data.whole("vocab_size"),
        width=data.whole("hidden_size"),
        max_positions=rope_json.max_positions(data),
        layers=(layer,) * data.layers("num_hidden_layers"),
        norm=Norm(kind="layer", eps=data.number("layer_norm_eps", 1e-5)),
        learned_positions=False,
        tied_head=data.flag("tie_word_embeddings", False),
        head_bias=False,
    )


def config_to_huggingface(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model, without what all families' have."""
    layer, attention = config.layers[0], config.layers[0].attention
    keys = llama_json.to_json(config)
    unread = {"head_dim", "num_key_value_heads", "rms_norm_eps"}
    return {key: value for key, value in keys.items() if key not in unread} | {
        "attention_bias": attention.qkv_bias,
        "layer_norm_eps": config.norm.eps,
        "rope_parameters": rope_json.to_json(attention.rope, partial_of=attention.head_dim),
        "use_parallel_residual": layer.parallel,
    }


def _attention(data: ConfigJson) -> Attention:
    width, heads = data.whole("hidden_size"), data.whole("num_attention_heads")
    if width % heads:
        raise data.fault(
            "hidden_size", f"a multiple of num_attention_heads {heads}", "Is the file complete?"
        )
    bias, head_dim = data.flag("attention_bias", True), width // heads
    rope = rope_json.rope(
        data, head_dim, theta_key="rotary_emb_base", partial=data.number("rotary_pct", 0.25)
    )
    return Attention(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=head_dim,
        window=None,
        rope=rope,
        qkv_bias=bias,
        out_bias=bias,
    )
