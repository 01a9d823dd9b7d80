"""The bart family: an encoder and a decoder with learned positions, each norm behind the sum.

Source: transformers 5.24, `models/bart`: positions are read two rows further down their table, what
the embedding gives is normed, and nothing is normed at the end; the decoder attends to itself and
then to the encoder's result.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jaxkv.spec.checkpoint import Place, Stored
from jaxkv.spec.config import Attention, Encoder, Layer, Mlp, ModelConfig, Norm
from jaxkv.spec.config_json import (
    ACTIVATION_NAMES,
    ACTIVATIONS,
    COMMON_IGNORED,
    COMMON_NEUTRAL,
    ConfigJson,
)

HUGGINGFACE_ARCHITECTURE = "BartForConditionalGeneration"
HUGGINGFACE_PREFIX = "model."
"""Files saved from the bare model leave it out."""
HUGGINGFACE_IGNORED_TENSORS = {
    r"(en|de)coder\.embed_tokens\.weight": "the table of tokens is one: `shared`",
    r"(en|de)coder\.version": "of an old library",
}

_POSITION_OFFSET = 2
_NORM_EPS = 1e-5
_HEAD_BIAS = "final_logits_bias"
_STACK_NAMES = {
    "position.weight": "embed_positions.weight",
    "embed_norm.weight": "layernorm_embedding.weight",
    "embed_norm.bias": "layernorm_embedding.bias",
}
_LAYER_NAMES = {
    "attn.q": "self_attn.q_proj",
    "attn.k": "self_attn.k_proj",
    "attn.v": "self_attn.v_proj",
    "attn.o": "self_attn.out_proj",
    "attn_norm": "self_attn_layer_norm",
    "mlp.up": "fc1",
    "mlp.down": "fc2",
    "mlp_norm": "final_layer_norm",
}
_CROSS_NAMES = {
    "cross.q": "encoder_attn.q_proj",
    "cross.k": "encoder_attn.k_proj",
    "cross.v": "encoder_attn.v_proj",
    "cross.o": "encoder_attn.out_proj",
    "cross_norm": "encoder_attn_layer_norm",
}
HUGGINGFACE_READ = {
    "activation_function",
    "d_model",
    "decoder_attention_heads",
    "decoder_ffn_dim",
    "decoder_layers",
    "decoder_start_token_id",
    "encoder_attention_heads",
    "encoder_ffn_dim",
    "encoder_layers",
    "forced_bos_token_id",
    "max_position_embeddings",
    "scale_embedding",
    "tie_word_embeddings",
    "vocab_size",
}
_DROPOUT = "training only"
HUGGINGFACE_IGNORED = COMMON_IGNORED | {
    "activation_dropout": _DROPOUT,
    "attention_dropout": _DROPOUT,
    "classif_dropout": "of a classifier",
    "classifier_dropout": "of a classifier",
    "decoder_layerdrop": _DROPOUT,
    "dropout": _DROPOUT,
    "early_stopping": "of a search, which the caller asks for",
    "encoder_layerdrop": _DROPOUT,
    "forced_eos_token_id": "a row that spends its budget is not made to end",
    "gradient_checkpointing": _DROPOUT,
    "init_std": _DROPOUT,
    "no_repeat_ngram_size": "of a search, which the caller asks for",
    "num_hidden_layers": "another name of encoder_layers",
    "num_labels": "labels of a classifier",
    "output_past": "an old name of use_cache",
    "prefix": "of a task, which the caller writes",
}
HUGGINGFACE_NEUTRAL = COMMON_NEUTRAL | {
    "add_bias_logits": False,
    "add_final_layer_norm": False,
    "is_decoder": False,
    "is_encoder_decoder": True,
    "normalize_before": False,
    "normalize_embedding": True,
    "static_position_embeddings": False,
}
"""`normalize_before` and the like are switches of the first library's files."""


def places_from_huggingface(config: ModelConfig) -> dict[str, Place]:
    """Return where a checkpoint keeps each weight, the head's too when it is tied."""
    places: dict[str, Place] = {
        "embed.weight": Stored("model.shared.weight"),
        "head.weight": Stored("lm_head.weight"),
        "head.bias": Stored(_HEAD_BIAS, lead=True),
    }
    assert config.encoder is not None  # `config_from_huggingface` gives one
    sides = (("encoder.", "encoder", config.encoder.layers), ("", "decoder", config.layers))
    for prefix, side, layers in sides:
        for name, given in _STACK_NAMES.items():
            places[f"{prefix}{name}"] = Stored(f"model.{side}.{given}")
        for i in range(len(layers)):
            names = _LAYER_NAMES | (_CROSS_NAMES if side == "decoder" else {})
            for name, given in names.items():
                for kind in ("weight", "bias"):
                    stored = Stored(f"model.{side}.layers.{i}.{given}.{kind}")
                    places[f"{prefix}layers.{i}.{name}.{kind}"] = stored
    return places


def config_from_huggingface(data: ConfigJson) -> ModelConfig:
    """Return the config that a `config.json` of model type `bart` describes.

    Raises:
        ConfigError: A key is missing or out of range, or changes the function in a way that is not
            supported; each is named.
    """
    data.check_keys(HUGGINGFACE_READ, HUGGINGFACE_IGNORED, HUGGINGFACE_NEUTRAL)
    positions = data.whole("max_position_embeddings", 1024)
    cross = replace(_attention(data, "decoder"), causal=False)
    decoder = Layer(
        _attention(data, "decoder"), _mlp(data, "decoder"), norm_after=True, cross=cross
    )
    reading = replace(_attention(data, "encoder"), causal=False)
    encoder = Layer(reading, _mlp(data, "encoder"), norm_after=True)
    return ModelConfig(
        family="bart",
        vocab_size=data.whole("vocab_size"),
        width=data.whole("d_model"),
        max_positions=positions,
        layers=(decoder,) * data.layers("decoder_layers"),
        norm=Norm("layer", _NORM_EPS),
        learned_positions=True,
        tied_head=data.flag("tie_word_embeddings", True),
        head_bias=True,
        scaled_embedding=data.flag("scale_embedding", False),
        embed_norm=True,
        position_offset=_POSITION_OFFSET,
        final_norm=False,
        encoder=Encoder(
            layers=(encoder,) * data.layers("encoder_layers"),
            max_positions=positions,
            start_ids=data.start_ids(default=2),
        ),
    )


def config_for_tensors(config: ModelConfig, tensor_names: Collection[str]) -> ModelConfig:
    """Return the config without the head's bias where a file leaves it out: it is then all 0."""
    return replace(config, head_bias=_HEAD_BIAS in tensor_names)


def config_to_huggingface(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model, without what all families' have."""
    assert config.encoder is not None  # the family has one
    keys: dict[str, Any] = {
        "d_model": config.width,
        "decoder_layers": config.num_layers,
        "encoder_layers": config.encoder.num_layers,
        "is_encoder_decoder": True,
        "max_position_embeddings": config.max_positions,
        "scale_embedding": config.scaled_embedding,
        "tie_word_embeddings": config.tied_head,
        "vocab_size": config.vocab_size,
        # Absent, the library has an id of its own, past a small vocabulary.
        "forced_eos_token_id": None,
    }
    for side, layer in (("decoder", config.layers[0]), ("encoder", config.encoder.layers[0])):
        assert isinstance(layer.mlp, Mlp)  # the family has no experts
        keys[f"{side}_attention_heads"] = layer.attention.num_heads
        keys[f"{side}_ffn_dim"] = layer.mlp.width
        keys["activation_function"] = ACTIVATION_NAMES[layer.mlp.activation]
    names = ("decoder_start_token_id", "forced_bos_token_id")
    return keys | dict(zip(names, config.encoder.start_ids, strict=False))


def _attention(data: ConfigJson, side: str) -> Attention:
    width, heads = data.whole("d_model"), data.whole(f"{side}_attention_heads")
    if width % heads:
        raise data.fault(
            "d_model", f"a multiple of {side}_attention_heads {heads}", "Is the file complete?"
        )
    return Attention(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=width // heads,
        window=None,
        rope=None,
        qkv_bias=True,
        out_bias=True,
    )


def _mlp(data: ConfigJson, side: str) -> Mlp:
    activation = data.choice("activation_function", ACTIVATIONS, "gelu")
    return Mlp(data.whole(f"{side}_ffn_dim"), activation, gated=False, bias=True)
