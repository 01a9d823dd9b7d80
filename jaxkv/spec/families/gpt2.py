"""The gpt2 family: learned positions, layer norm, packed q, k and v, tanh GELU, a tied head.

Source: transformers 5.24, `models/gpt2`: its Conv1D holds matrices (in, out), and c_attn packs all
queries, then all keys, then all values.
"""

from collections.abc import Mapping
from typing import Any

from jaxkv.spec import llama_gguf
from jaxkv.spec.checkpoint import Place, Stored
from jaxkv.spec.config import Attention, Layer, Mlp, ModelConfig, Norm
from jaxkv.spec.config_json import ACTIVATIONS, COMMON_IGNORED, COMMON_NEUTRAL, ConfigJson
from jaxkv.spec.errors import ConfigError
from jaxkv.spec.gguf_keys import NEUTRAL, GgufKeys
from jaxkv.spec.gguf_rope import Tensors

GGUF_INTERLEAVED_QK = False
"""Only arch `llama` permutes rows."""
HUGGINGFACE_ARCHITECTURE = "GPT2LMHeadModel"
HUGGINGFACE_PREFIX = "transformer."
"""Files saved from the bare decoder, the published ones among them, leave it out."""
HUGGINGFACE_IGNORED_TENSORS = {r"h\.\d+\.attn\.(masked_)?bias": "the causal mask, stored"}

_MODEL_NAMES = {
    "embed.weight": "transformer.wte.weight",
    "position.weight": "transformer.wpe.weight",
    "norm.weight": "transformer.ln_f.weight",
    "norm.bias": "transformer.ln_f.bias",
    "head.weight": "lm_head.weight",
}
# canonical name -> (source name, which of the packed parts, matrix (in, out)).
_LAYER_NAMES: dict[str, tuple[str, int | None, bool]] = {
    "attn_norm": ("ln_1", None, False),
    "attn.q": ("attn.c_attn", 0, True),
    "attn.k": ("attn.c_attn", 1, True),
    "attn.v": ("attn.c_attn", 2, True),
    "attn.o": ("attn.c_proj", None, True),
    "mlp_norm": ("ln_2", None, False),
    "mlp.up": ("mlp.c_fc", None, True),
    "mlp.down": ("mlp.c_proj", None, True),
}
HUGGINGFACE_READ = {
    "activation_function",
    "layer_norm_epsilon",
    "n_ctx",
    "n_embd",
    "n_head",
    "n_inner",
    "n_layer",
    "n_positions",
    "tie_word_embeddings",
    "vocab_size",
}
HUGGINGFACE_IGNORED = COMMON_IGNORED | {
    "attn_pdrop": "training only",
    "embd_pdrop": "training only",
    "resid_pdrop": "training only",
    "summary_activation": "of a classifier",
    "summary_first_dropout": "of a classifier",
    "summary_proj_to_labels": "of a classifier",
    "summary_type": "of a classifier",
    "summary_use_proj": "of a classifier",
}
_GGUF_NAMES = {
    "attn_norm": "attn_norm",
    "attn.o": "attn_output",
    "mlp_norm": "ffn_norm",
    "mlp.up": "ffn_up",
    "mlp.down": "ffn_down",
}
GGUF_ROPE_TENSORS: tuple[str, ...] = ()
GGUF_READ = {
    "attention.head_count",
    "attention.head_count_kv",
    "attention.layer_norm_epsilon",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
}
# Weight and bias of five parts and of the packed q, k and v.
_GGUF_TENSORS_A_LAYER = 12
HUGGINGFACE_NEUTRAL = COMMON_NEUTRAL | {
    "reorder_and_upcast_attn": False,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
}


def places_from_huggingface(config: ModelConfig) -> dict[str, Place]:
    """Return where a Hugging Face checkpoint keeps each weight, the head's too when it is tied."""
    width = config.width
    places: dict[str, Place] = {name: Stored(given) for name, given in _MODEL_NAMES.items()}
    for i in range(config.num_layers):
        for name, (given, part, in_out) in _LAYER_NAMES.items():
            outputs = None if part is None else (part * width, (part + 1) * width)
            for kind in ("weight", "bias"):
                stored = Stored(f"transformer.h.{i}.{given}.{kind}", outputs, in_out)
                places[f"layers.{i}.{name}.{kind}"] = stored
    return places


def config_from_huggingface(data: ConfigJson) -> ModelConfig:
    """Return the config that a `config.json` of model type `gpt2` describes.

    Raises:
        ConfigError: A key is missing or out of range, or changes the function in a way that is not
            supported; each is named.
    """
    data.check_keys(HUGGINGFACE_READ, HUGGINGFACE_IGNORED, HUGGINGFACE_NEUTRAL)
    width, heads = data.whole("n_embd"), data.whole("n_head")
    positions = data.whole("n_positions")
    if width % heads:
        raise ConfigError(
            f"{data.owner}: n_embd is {width}, expected a multiple of n_head {heads}. "
            "Is the file complete?"
        )
    if data.whole("n_ctx", positions) != positions:
        raise data.fault("n_ctx", f"n_positions {positions}", "Is the file complete?")
    attention = Attention(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=width // heads,
        window=None,
        rope=None,
        qkv_bias=True,
        out_bias=True,
    )
    mlp = Mlp(
        width=data.whole("n_inner", 4 * width),
        activation=data.choice("activation_function", ACTIVATIONS, "gelu_new"),
        gated=False,
        bias=True,
    )
    return ModelConfig(
        family="gpt2",
        vocab_size=data.whole("vocab_size"),
        width=width,
        max_positions=positions,
        layers=(Layer(attention, mlp),) * data.layers("n_layer"),
        norm=Norm(kind="layer", eps=data.number("layer_norm_epsilon", 1e-5)),
        learned_positions=True,
        tied_head=data.flag("tie_word_embeddings", True),
        head_bias=False,
    )


def config_to_huggingface(config: ModelConfig) -> dict[str, Any]:
    """Return the `config.json` of a model, without what all families' have."""
    mlp = config.layers[0].mlp
    assert isinstance(mlp, Mlp)  # the family has no experts
    return {
        "activation_function": "gelu_new" if mlp.activation == "gelu_tanh" else mlp.activation,
        "layer_norm_epsilon": config.norm.eps,
        "n_embd": config.width,
        "n_head": config.layers[0].attention.num_heads,
        "n_inner": mlp.width,
        "n_layer": config.num_layers,
        "n_positions": config.max_positions,
        "tie_word_embeddings": config.tied_head,
        "vocab_size": config.vocab_size,
    }


def places_from_gguf(config: ModelConfig) -> dict[str, Place]:
    """Return where a GGUF file keeps each weight: matrices (out, in), q, k and v packed."""
    places = llama_gguf.places(config, _GGUF_NAMES)
    for i in range(config.num_layers):
        for part, name in enumerate("qkv"):
            span = (part * config.width, (part + 1) * config.width)
            for kind in ("weight", "bias"):
                packed = Stored(f"blk.{i}.attn_qkv.{kind}", span)
                places[f"layers.{i}.attn.{name}.{kind}"] = packed
    return places


def config_from_gguf(metadata: Mapping[str, Any], tensors: Tensors) -> ModelConfig:
    """Return the config that GGUF metadata of arch `gpt2` describes.

    Args:
        metadata: Key -> value of the whole file.
        tensors: GGUF name of each tensor in the file -> a function that reads it.

    Raises:
        ConfigError: A key is missing or out of range, or a key or tensor changes the function in a
            way that is not supported; each is named.
    """
    keys = GgufKeys(metadata, "gpt2")
    keys.check(GGUF_READ, NEUTRAL, tensors, rope_tensors=GGUF_ROPE_TENSORS)
    width, heads = keys.whole("embedding_length"), keys.whole("attention.head_count")
    if keys.whole("attention.head_count_kv", heads) != heads:
        raise keys.fault(
            "attention.head_count_kv", f"{heads} (as many as heads)", "Is the file complete?"
        )
    if width % heads:
        raise keys.fault(
            "attention.head_count",
            f"a divisor of embedding_length {width}",
            "Is the file complete?",
        )
    attention = Attention(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=width // heads,
        window=None,
        rope=None,
        qkv_bias=True,
        out_bias=True,
    )
    mlp = Mlp(keys.whole("feed_forward_length"), "gelu_tanh", gated=False, bias=True)
    layers = llama_gguf.num_layers(keys, tensors, _GGUF_TENSORS_A_LAYER)
    return ModelConfig(
        family="gpt2",
        vocab_size=llama_gguf.vocab_size(keys),
        width=width,
        max_positions=keys.whole("context_length"),
        layers=(Layer(attention, mlp),) * layers,
        norm=Norm(kind="layer", eps=keys.number("attention.layer_norm_epsilon")),
        learned_positions=True,
        tied_head="output.weight" not in tensors,
        head_bias=False,
    )
