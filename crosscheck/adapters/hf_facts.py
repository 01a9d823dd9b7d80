"""What a transformers config says: windows, positions, padding. No model is run here."""

from typing import Any

from crosscheck.adapters import torch_capture

SLIDING = ("sliding_attention", "hybrid_sliding", "reference_sliding_attention")
PLAIN_ROPE = (None, "default", "linear", "llama3", "proportional")


def text_config(model: Any) -> Any:
    """Return the config of the decoder."""
    return decoder_config(model.config)


def decoder_config(config: Any) -> Any:
    """Return the part of a config that is the decoder's; transformers 4.42 has no word for it."""
    if not hasattr(config, "get_text_config"):
        return getattr(config, "text_config", config)
    return config.get_text_config(decoder=True)


def windows(model: Any) -> tuple[int | None, ...]:
    """Return the window of each layer that attends; None for a layer that sees everything."""
    config = text_config(model)
    own = _own_windows(model) if getattr(config, "layer_types", None) is None else ()
    return own or _told_windows(config)


def _own_windows(model: Any) -> tuple[int | None, ...]:
    """Return what the attentions themselves say, as in releases without layer types; () if not."""
    home = torch_capture.blocks(model)
    attentions = [torch_capture.attention(block) for block in home[1]] if home else []
    if not attentions or not all(hasattr(a, "sliding_window") for a in attentions):
        return ()
    return tuple(attention.sliding_window for attention in attentions)


def _told_windows(config: Any) -> tuple[int | None, ...]:
    types = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if types is None and hasattr(config, "attention_layers"):
        local = getattr(config, "window_size", None)
        return tuple(local if kind == "local" else None for kind in config.attention_layers)
    if types is None:
        return (window,) * depth(config)
    sizes = {name: window for name in SLIDING}
    sizes["chunked_attention"] = getattr(config, "attention_chunk_size", None)
    return tuple(sizes.get(kind) for kind in types if kind not in ("moe", "mlp"))


def depth(config: Any) -> int:
    """Return the number of blocks."""
    return int(getattr(config, "num_hidden_layers", 0) or 0)


def pad_id(config: Any) -> int | None:
    """Return the padding id, where there is one inside the vocabulary."""
    pad = getattr(config, "pad_token_id", None)
    return pad if isinstance(pad, int) and 0 <= pad < config.vocab_size else None


def first_id(config: Any) -> int:
    """Return the smallest ordinary id: above a padding id that stands at the start."""
    pad = pad_id(config)
    return pad + 1 if pad is not None and pad < min(8, config.vocab_size // 2) else 0


def max_positions(config: Any) -> int | None:
    """Return the longest text, where the config names one."""
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"):
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def learned_positions(model: Any) -> str | None:
    """Return the name of a table of learned positions, if the model has one."""
    for name, module in model.named_modules():
        leaf = name.rsplit(".", 1)[-1].lower()
        if hasattr(module, "num_embeddings") and ("position" in leaf or leaf in ("wpe", "embed_p")):
            return name
    return None


def not_rope(model: Any) -> str | None:
    """Return why a common shift of all positions may change the logits; None where it must not."""
    table = learned_positions(model)
    if table is not None:
        return f"learned positions ({table})"
    if not any("rotary" in type(m).__name__.lower() for m in model.modules()):
        return "no rotary embedding was found"
    kinds = _rope_kinds(getattr(text_config(model), "rope_parameters", None))
    strange = sorted(str(k) for k in kinds if k not in PLAIN_ROPE)
    return f"rope type {strange[0]} depends on the length" if strange else None


def _rope_kinds(parameters: Any) -> set[Any]:
    """Return the rope types of a flat table, or of one table a layer type."""
    if not isinstance(parameters, dict):
        return {None}
    nested = [v for v in parameters.values() if isinstance(v, dict)]
    if nested:
        return {v.get("rope_type") for v in nested}
    return {parameters.get("rope_type")}
