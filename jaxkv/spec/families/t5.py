"""The t5 family (T5, T5 v1.1, Flan-T5): encoder and decoder with a relative bias of the scores.

Source: transformers 5.24, `models/t5`: scores are not scaled, the bias's table stands in the first
layer of each stack and serves all, norms have no mean and no bias, and no position enters the
stream. The first version has a ReLU, and its head is the embedding, on what D^(-1/2) has scaled;
v1.1 and Flan-T5 have a gated GELU and a head of their own.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jaxkv.spec.checkpoint import Place, Stored
from jaxkv.spec.config import (
    Activation,
    Attention,
    Encoder,
    Layer,
    Mlp,
    ModelConfig,
    Norm,
    Relative,
)
from jaxkv.spec.config_json import COMMON_IGNORED, COMMON_NEUTRAL, ConfigJson

HUGGINGFACE_ARCHITECTURE = "T5ForConditionalGeneration"
HUGGINGFACE_PREFIX = ""
HUGGINGFACE_IGNORED_TENSORS = {
    r"(en|de)coder\.embed_tokens\.weight": "the table of tokens is one: `shared`",
    r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight": (
        "of an old library; the cross attention has no bias"
    ),
}

MAX_POSITIONS = 2**15
"""No table ends: a bound for those who ask how long a text may be, far past any training."""
_HEAD = "lm_head.weight"
# Half of `feed_forward_proj` -> the activation; "gelu" alone is the exact one, gated it is not.
_FEED_FORWARDS: dict[str, tuple[Activation, bool]] = {
    "relu": ("relu", False),
    "gelu": ("gelu", False),
    "gelu_new": ("gelu_tanh", False),
    "silu": ("silu", False),
    "gated-gelu": ("gelu_tanh", True),
    "gated-relu": ("relu", True),
    "gated-silu": ("silu", True),
}
HUGGINGFACE_READ = {
    "d_ff",
    "d_kv",
    "d_model",
    "decoder_start_token_id",
    "feed_forward_proj",
    "forced_bos_token_id",
    "layer_norm_epsilon",
    "num_decoder_layers",
    "num_heads",
    "num_layers",
    "relative_attention_max_distance",
    "relative_attention_num_buckets",
    "scale_decoder_outputs",
    "tie_word_embeddings",
    "vocab_size",
}
HUGGINGFACE_IGNORED = COMMON_IGNORED | {
    "classifier_dropout": "of a classifier",
    "dense_act_fn": "follows from feed_forward_proj",
    "dropout_rate": "training only",
    "initializer_factor": "training only",
    "is_gated_act": "follows from feed_forward_proj",
    "n_positions": "the length of training; no table ends there",
    "output_past": "an old name of use_cache",
}
HUGGINGFACE_NEUTRAL = COMMON_NEUTRAL | {"is_decoder": False, "is_encoder_decoder": True}


def places_from_huggingface(config: ModelConfig) -> dict[str, Place]:
    """Return where a checkpoint keeps each weight, the head's too when it is tied."""
    places: dict[str, Place] = {
        "embed.weight": Stored("shared.weight"),
        "head.weight": Stored(_HEAD),
    }
    assert config.encoder is not None  # `config_from_huggingface` gives one
    sides = (("encoder.", "encoder", config.encoder.layers), ("", "decoder", config.layers))
    for prefix, side, layers in sides:
        bias = "layer.0.SelfAttention.relative_attention_bias.weight"
        places[f"{prefix}relative.weight"] = Stored(f"{side}.block.0.{bias}")
        places[f"{prefix}norm.weight"] = Stored(f"{side}.final_layer_norm.weight")
        for i, layer in enumerate(layers):
            for name, given in _layer_names(layer).items():
                stored = Stored(f"{side}.block.{i}.layer.{given}.weight")
                places[f"{prefix}layers.{i}.{name}.weight"] = stored
    return places


def _layer_names(layer: Layer) -> dict[str, str]:
    parts = {"attn": "SelfAttention"} | ({"cross": "EncDecAttention"} if layer.cross else {})
    names = {}
    for at, (part, given) in enumerate(parts.items()):
        names |= {f"{part}.{each}": f"{at}.{given}.{each}" for each in "qkvo"}
        names[f"{part}_norm"] = f"{at}.layer_norm"
    assert isinstance(layer.mlp, Mlp)  # the family has no experts
    inside = {"gate": "wi_0", "up": "wi_1"} if layer.mlp.gated else {"up": "wi"}
    for name, given in (inside | {"down": "wo"}).items():
        names[f"mlp.{name}"] = f"{len(parts)}.DenseReluDense.{given}"
    return names | {"mlp_norm": f"{len(parts)}.layer_norm"}


def config_from_huggingface(data: ConfigJson) -> ModelConfig:
    """Return the config that a `config.json` of model type `t5` describes.

    Raises:
        ConfigError: A key is missing or out of range, or changes the function in a way that is not
            supported; each is named.
    """
    data.check_keys(HUGGINGFACE_READ, HUGGINGFACE_IGNORED, HUGGINGFACE_NEUTRAL)
    attention = _attention(data)
    seen = replace(attention, causal=False)
    mlp, layers = _mlp(data), data.layers("num_layers")
    decoder = Layer(attention, mlp, cross=replace(seen, relative=None))
    deep = data.layers("num_decoder_layers") if "num_decoder_layers" in data.data else layers
    # Files of v1.1 say by an untied head that nothing is scaled; newer ones have a key for it.
    tied = data.flag("tie_word_embeddings", True)
    return ModelConfig(
        family="t5",
        vocab_size=data.whole("vocab_size"),
        width=data.whole("d_model"),
        max_positions=MAX_POSITIONS,
        layers=(decoder,) * deep,
        norm=Norm("rms", data.number("layer_norm_epsilon", 1e-6)),
        learned_positions=False,
        tied_head=tied,
        head_bias=False,
        scaled_head=data.flag("scale_decoder_outputs", tied),
        encoder=Encoder(
            layers=(Layer(seen, mlp),) * layers,
            max_positions=MAX_POSITIONS,
            start_ids=data.start_ids(default=0),
        ),
    )


def config_for_tensors(config: ModelConfig, tensor_names: Collection[str]) -> ModelConfig:
    """Return the config with a head of its own where the file has one, though it is called tied.

    The library's newer files call every head tied. A scaled head is the embedding.
    """
    is_tied = config.tied_head and (config.scaled_head or _HEAD not in tensor_names)
    return replace(config, tied_head=is_tied)


def config_to_huggingface(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model, without what all families' have."""
    attention, mlp = config.layers[0].attention, config.layers[0].mlp
    assert isinstance(mlp, Mlp)  # the family has no experts
    assert attention.relative is not None  # the family has it, and an encoder
    assert config.encoder is not None
    names = {value: key for key, value in _FEED_FORWARDS.items()}
    starts = ("decoder_start_token_id", "forced_bos_token_id")
    return {
        "d_ff": mlp.width,
        "d_kv": attention.head_dim,
        "d_model": config.width,
        "feed_forward_proj": names[mlp.activation, mlp.gated],
        "is_encoder_decoder": True,
        "layer_norm_epsilon": config.norm.eps,
        "num_decoder_layers": config.num_layers,
        "num_heads": attention.num_heads,
        "num_layers": config.encoder.num_layers,
        "relative_attention_max_distance": attention.relative.max_distance,
        "relative_attention_num_buckets": attention.relative.buckets,
        "scale_decoder_outputs": config.scaled_head,
        "tie_word_embeddings": config.tied_head,
        "vocab_size": config.vocab_size,
    } | dict(zip(starts, config.encoder.start_ids, strict=False))


def _attention(data: ConfigJson) -> Attention:
    heads = data.whole("num_heads")
    return Attention(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=data.whole("d_kv"),
        window=None,
        rope=None,
        qkv_bias=False,
        out_bias=False,
        score_width=1.0,
        relative=Relative(
            data.whole("relative_attention_num_buckets", 32),
            data.whole("relative_attention_max_distance", 128),
        ),
    )


def _mlp(data: ConfigJson) -> Mlp:
    activation, gated = data.choice("feed_forward_proj", _FEED_FORWARDS, "relu")
    return Mlp(data.whole("d_ff"), activation, gated=gated, bias=False)
