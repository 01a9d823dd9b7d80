"""The same weights in another form: another window, heads repeated, another attention code."""

import copy
import re
from dataclasses import replace
from typing import Any

from crosscheck.adapters.hf_facts import decoder_config, text_config
from crosscheck.adapters.hf_facts import windows as windows_of
from crosscheck.adapters.torch_tools import torch_module
from crosscheck.errors import CrosscheckError, Refused

ATTENTIONS = ("eager", "sdpa")
KV_WEIGHTS = re.compile(r"\.(k_proj|v_proj|k_norm)\.(weight|bias)$")


def names(model: Any, windows: tuple[int | None, ...]) -> tuple[str, ...]:
    """Return the variants that this model can take the form of."""
    found: list[str] = list(ATTENTIONS)
    if can_repeat_heads(model):
        found.append("gqa_as_mha")
    if any(windows) and isinstance(getattr(text_config(model), "sliding_window", None), int):
        found.append("window=N")
    return tuple(found)


def can_repeat_heads(model: Any) -> bool:
    """Return whether keys and values have weights of their own, fewer heads than queries."""
    config = text_config(model)
    heads = getattr(config, "num_attention_heads", 0)
    shared = getattr(config, "num_key_value_heads", None)
    split = [n for n, _ in model.named_parameters() if n.endswith("k_proj.weight")]
    return isinstance(shared, int) and 0 < shared < heads and bool(split)


def variant(model: Any, name: str) -> Any:
    """Return a new model with the same function and weights.

    Raises:
        CrosscheckError: No such variant.
        Refused: A window of one token.
    """
    config = copy.deepcopy(model.config)
    if name in ATTENTIONS:
        return rebuilt(model, config, attn=name)
    if name == "gqa_as_mha":
        text = decoder_config(config)
        text.num_key_value_heads = text.num_attention_heads
        return rebuilt(model, config)
    if name.startswith("window=") and name[7:].isdigit():
        if int(name[7:]) < 2:
            # A sliding layer keeps its last W - 1 tokens as keys[-W + 1:], which is all for W = 1.
            raise Refused(f"variant: {name}: transformers' sliding layers need at least 2 tokens.")
        decoder_config(config).sliding_window = int(name[7:])
        return rebuilt(model, config)
    raise CrosscheckError(
        f"variant: name is {name!r}, expected eager, sdpa, gqa_as_mha or window=N."
    )


def facts_of(model: Any, facts: Any) -> Any:
    """Return the facts of a variant: its windows and heads are others."""
    config = text_config(model)
    heads = getattr(config, "num_key_value_heads", None)
    same = facts.kv_heads in (None, heads) or "gqa_as_mha" not in facts.variants
    return replace(
        facts,
        windows=windows_of(model)[: len(facts.windows)],
        kv_heads=facts.kv_heads if same else heads,
    )


def rebuilt(model: Any, config: Any, *, attn: str | None = None) -> Any:
    """Return a new model of the same class from a changed config, with the same weights."""
    attn = attn or model.config._attn_implementation
    dtype = next(model.parameters()).dtype
    # By what name it takes a dtype changes with the release; nothing is loaded before the cast.
    twin = type(model)._from_config(config, attn_implementation=attn).to(dtype)
    state = model.state_dict()
    for key, slot in twin.state_dict().items():
        if slot.shape != state[key].shape:
            state[key] = _repeated(key, state[key], slot.shape, text_config(model))
    twin.load_state_dict(state)
    twin = twin.eval()
    tables = dict(model.named_buffers())
    with torch_module().no_grad():
        for key, slot in twin.named_buffers():
            if key in tables and tables[key].shape == slot.shape:
                slot.copy_(tables[key])
    return twin


def _repeated(key: str, weight: Any, shape: Any, config: Any) -> Any:
    """Return a key or value weight whose heads are repeated, each next to itself."""
    if not KV_WEIGHTS.search(key) or weight.shape[1:] != shape[1:]:
        raise CrosscheckError(
            f"variant: weight {key!r} is {tuple(weight.shape)}, expected {tuple(shape)}."
        )
    heads = config.num_key_value_heads
    by_head = weight.reshape(heads, -1, *weight.shape[1:])
    repeated = torch_module().repeat_interleave(by_head, shape[0] // weight.shape[0], 0)
    return repeated.reshape(shape)
