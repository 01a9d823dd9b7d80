"""What `config.json` and the tensors of llama's many descendants have in common.

A family of them states its differences. Source: transformers 5.24, `models/llama`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxkv.spec import rope_json
from jaxkv.spec.checkpoint import Place, Stored
from jaxkv.spec.config import Attention, Experts, Layer, Mlp, ModelConfig, Norm
from jaxkv.spec.config_json import ACTIVATION_NAMES, ACTIVATIONS, COMMON_IGNORED, ConfigJson
from jaxkv.spec.scaling import DynamicScaling

PREFIX = "model."
"""Files saved from the bare decoder leave it out."""
IGNORED_TENSORS = {
    r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq": "rotary frequencies follow from the config"
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn.q": "self_attn.q_proj",
    "attn.k": "self_attn.k_proj",
    "attn.v": "self_attn.v_proj",
    "attn.q_norm": "self_attn.q_norm",
    "attn.k_norm": "self_attn.k_norm",
    "attn.o": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}
READ = {
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
    "tie_word_embeddings",
    "vocab_size",
    *rope_json.KEYS,
}
IGNORED = COMMON_IGNORED | {"attention_dropout": "training only"}

_MODEL_NAMES = {
    "embed.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
_ATTENTIONS = ("full_attention", "sliding_attention")


def places(config: ModelConfig, names: Mapping[str, str] = LAYER_NAMES) -> dict[str, Place]:
    """Return where a checkpoint keeps each weight, the head's too when it is tied.

    Args:
        config: Of the model.
        names: Canonical part of a layer -> its name in the file.
    """
    layers = {
        f"layers.{i}.{name}.{kind}": f"model.layers.{i}.{given}.{kind}"
        for i in range(config.num_layers)
        for name, given in names.items()
        for kind in ("weight", "bias")
    }
    return {name: Stored(given) for name, given in (_MODEL_NAMES | layers).items()}


def attention(data: ConfigJson, *, head_dim: int | None = None, **more: Any) -> Attention:
    """Return an attention over all earlier tokens, without bias.

    Args:
        data: Of the whole file.
        head_dim: Where the file states none; by default width / heads.
        more: Fields of the attention in which it differs.

    Raises:
        ConfigError: A number is missing or something else.
    """
    width, heads = data.whole("hidden_size"), data.whole("num_attention_heads")
    if "head_dim" not in data.data and head_dim is None and width % heads:
        raise data.fault(
            "hidden_size", f"a multiple of num_attention_heads {heads}", "Set head_dim."
        )
    head_dim = data.whole("head_dim", width // heads if head_dim is None else head_dim)
    plain = Attention(
        num_heads=heads,
        num_kv_heads=data.whole("num_key_value_heads", heads),
        head_dim=head_dim,
        window=None,
        rope=more.pop("rope") if "rope" in more else rope_json.rope(data, head_dim),
        qkv_bias=False,
        out_bias=False,
    )
    return replace(plain, **more)


def mlp(
    data: ConfigJson,
    *,
    key: str = "intermediate_size",
    act: str = "hidden_act",
    default: str = "silu",
) -> Mlp:
    """Return a gated feed-forward without bias.

    Args:
        data: Of the whole file.
        key: Which holds its width.
        act: Which holds the name of its activation.
        default: Its activation where the file does not say.

    Raises:
        ConfigError: A key is missing or something else.
    """
    return Mlp(data.whole(key), data.choice(act, ACTIVATIONS, default), gated=True, bias=False)


def windows(
    data: ConfigJson, slides: tuple[bool, ...], window: int | None
) -> tuple[int | None, ...]:
    """Return each layer's window, None where it sees all earlier tokens.

    Args:
        data: Of the whole file.
        slides: Which layers have a window, where the file has no layer_types.
        window: Of those that have one.

    Raises:
        ConfigError: A layer's type is neither full nor sliding attention, or slides without a
            window.
    """
    types = data.names("layer_types", _ATTENTIONS, len(slides))
    if types is not None:
        slides = tuple(each == "sliding_attention" for each in types)
    if any(slides) and window is None:
        raise data.fault("sliding_window", "a number, as layer_types asks for it", "Add it.")
    return tuple(window if each else None for each in slides)


def decoder(
    data: ConfigJson,
    family: str,
    attentions: tuple[Attention, ...],
    mlps: tuple[Mlp | Experts, ...],
    *,
    tied: bool = False,
    eps: float = 1e-6,
    **more: Any,
) -> ModelConfig:
    """Return the decoder of these parts, a layer an attention and a feed-forward.

    Args:
        data: Of the whole file.
        family: Its name.
        attentions: Of each layer.
        mlps: Of each layer.
        tied: Whether the head is tied where the file does not say.
        eps: Of the norms where the file does not say.
        more: Fields of the config in which it differs.

    Raises:
        ConfigError: A key is missing or something else.
    """
    plain = ModelConfig(
        family=family,
        vocab_size=data.whole("vocab_size"),
        width=data.whole("hidden_size"),
        max_positions=rope_json.max_positions(data),
        layers=tuple(Layer(*each) for each in zip(attentions, mlps, strict=True)),
        norm=Norm(kind="rms", eps=data.number("rms_norm_eps", eps)),
        learned_positions=False,
        tied_head=data.flag("tie_word_embeddings", tied),
        head_bias=False,
    )
    return replace(plain, **more)


def to_json(config: ModelConfig, *, act: str = "hidden_act") -> dict[str, Any]:
    """Return what `config.json` says of the parts that all of these families share.

    Args:
        config: Of the model; its first layer stands for all, and `write_huggingface` checks that
            what is written is read as this config.
        act: The key of the activation.
    """
    first, mlp = config.layers[0].attention, config.layers[0].mlp
    mlp = mlp.expert if isinstance(mlp, Experts) else mlp
    scaling = None if first.rope is None else first.rope.scaling
    trained = isinstance(scaling, DynamicScaling)
    positions = scaling.original_max_positions if trained else config.max_positions
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": first.num_heads,
        "num_key_value_heads": first.num_kv_heads,
        "head_dim": first.head_dim,
        "intermediate_size": mlp.width,
        act: ACTIVATION_NAMES[mlp.activation],
        "max_position_embeddings": positions,
        "rms_norm_eps": config.norm.eps,
        "tie_word_embeddings": config.tied_head,
        "rope_parameters": rope_json.to_json(first.rope),
    }


def windows_to_json(config: ModelConfig) -> dict[str, Any]:
    """Return `layer_types` and `sliding_window`, which `windows` reads."""
    windows = [layer.attention.window for layer in config.layers]
    types = ["full_attention" if each is None else "sliding_attention" for each in windows]
    return {
        "layer_types": types,
        "sliding_window": next((each for each in windows if each is not None), None),
    }
