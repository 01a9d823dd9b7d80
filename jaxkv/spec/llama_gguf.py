"""What GGUF files of llama's descendants have in common: keys, tensor names, defaults.

Source: the keys and tensor names of `gguf.constants` (gguf 0.19), and what llama.cpp makes of them:
absent optional keys mean as many KV heads as heads, heads as wide as width / heads, all of a head
turned, base 10,000, the vocabulary as long as the tokenizer's; the head is tied if `output.weight`
is absent.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from jaxkv.spec import gguf_rope
from jaxkv.spec.checkpoint import Place, Stored
from jaxkv.spec.config import Attention, Layer, Mlp, ModelConfig, Norm, Rope
from jaxkv.spec.errors import ConfigError
from jaxkv.spec.gguf_keys import GgufKeys

READ = gguf_rope.KEYS | {
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "vocab_size",
}
LAYER_NAMES = {
    "attn_norm": "attn_norm",
    "attn.q": "attn_q",
    "attn.k": "attn_k",
    "attn.v": "attn_v",
    "attn.o": "attn_output",
    "mlp_norm": "ffn_norm",
    "mlp.gate": "ffn_gate",
    "mlp.up": "ffn_up",
    "mlp.down": "ffn_down",
}
_MODEL_NAMES = {
    "embed": "token_embd",
    "position": "position_embd",
    "norm": "output_norm",
    "head": "output",
}


def places(config: ModelConfig, names: Mapping[str, str] = LAYER_NAMES) -> dict[str, Place]:
    """Return where a file keeps each weight that a model of `config` can have.

    Args:
        config: Of the model.
        names: Canonical part of a layer -> its name in the file.
    """
    layers = {
        f"layers.{i}.{name}": f"blk.{i}.{given}"
        for i in range(config.num_layers)
        for name, given in names.items()
    }
    return {
        f"{name}.{kind}": Stored(f"{given}.{kind}")
        for name, given in (_MODEL_NAMES | layers).items()
        for kind in ("weight", "bias")
    }


def attention(
    keys: GgufKeys, tensors: gguf_rope.Tensors, *, partial: bool = False, **more: Any
) -> Attention:
    """Return an attention over all earlier tokens, without bias.

    Args:
        keys: Of the file.
        tensors: Of the file.
        partial: Whether the family can turn a part of each head.
        more: Fields of the attention in which it differs.

    Raises:
        ConfigError: A key is missing or out of range.
    """
    heads, width = keys.whole("attention.head_count"), keys.whole("embedding_length")
    head_dim = _head_dim(keys, heads, width)
    turned = keys.whole("rope.dimension_count", head_dim)
    if turned != head_dim and not partial:
        # The converter permutes whole heads of llama, and llama.cpp then turns the first rows: with
        # fewer than H of them turned, no half-split rotation computes the same function.
        raise keys.fault(
            "rope.dimension_count",
            f"{head_dim} (the whole head, whose rows this format permutes)",
            "Take a checkpoint that turns whole heads.",
        )
    scaling = gguf_rope.scaling(keys, tensors, turned // 2)
    plain = Attention(
        num_heads=heads,
        num_kv_heads=keys.whole("attention.head_count_kv", heads),
        head_dim=head_dim,
        window=None,
        rope=Rope(keys.number("rope.freq_base", 10_000.0), turned, scaling),
        qkv_bias=False,
        out_bias=False,
    )
    return replace(plain, **more)


def decoder(
    keys: GgufKeys,
    attentions: tuple[Attention, ...],
    tensor_names: Collection[str],
    *,
    activation: Any = "silu",
) -> ModelConfig:
    """Return the decoder with these attentions and gated feed-forwards without bias.

    Args:
        keys: Of the file.
        attentions: Of each layer.
        tensor_names: Of the tensors in the file.
        activation: Of the feed-forwards.

    Raises:
        ConfigError: A key is missing or out of range.
    """
    mlp = Mlp(keys.whole("feed_forward_length"), activation=activation, gated=True, bias=False)
    return ModelConfig(
        family=keys.architecture,
        vocab_size=vocab_size(keys),
        width=keys.whole("embedding_length"),
        max_positions=keys.whole("context_length"),
        layers=tuple(Layer(attention, mlp) for attention in attentions),
        norm=Norm(kind="rms", eps=keys.number("attention.layer_norm_rms_epsilon")),
        learned_positions=False,
        tied_head="output.weight" not in tensor_names,
        head_bias=False,
    )


def vocab_size(keys: GgufKeys) -> int:
    """Return the stated number of tokens, else the tokenizer's.

    Raises:
        ConfigError: Neither is there.
    """
    tokens = keys.metadata.get("tokenizer.ggml.tokens")
    return keys.whole("vocab_size", len(tokens) if isinstance(tokens, list) else None)


def num_layers(keys: GgufKeys, tensor_names: Collection[str], a_layer: int) -> int:
    """Return the number of layers: a damaged one must not fill the memory.

    Args:
        keys: Of the file.
        tensor_names: Of the tensors in the file.
        a_layer: How many tensors a layer has at least.

    Raises:
        ConfigError: It is missing, or more than the tensors there are.
    """
    layers, most = keys.whole("block_count"), len(tensor_names) // a_layer
    if layers > most:
        raise ConfigError(
            f"config_from_gguf: {keys.architecture}.block_count is {layers}, expected at most "
            f"{most} with {len(tensor_names)} tensors ({a_layer} a layer). Is the file complete?"
        )
    return layers


def _head_dim(keys: GgufKeys, heads: int, width: int) -> int:
    if not keys.has("attention.key_length") and width % heads:
        name = keys.architecture
        raise ConfigError(
            f"config_from_gguf: {name}.embedding_length is {width}, expected a multiple of "
            f"{name}.attention.head_count {heads}. Set {name}.attention.key_length."
        )
    head_dim = keys.whole("attention.key_length", width // heads)
    if keys.whole("attention.value_length", head_dim) != head_dim:
        raise keys.fault(
            "attention.value_length",
            f"{head_dim} (as wide as keys)",
            "Take a checkpoint whose keys and values are equally wide.",
        )
    return head_dim
