"""What a tester may know about a subject of this twin: sizes, capabilities, and what is not there.

Letters: B rows, S slots, K key/value heads, H head width, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxkv.spec.config import ModelConfig
from torchkv.model import Decoder

_ALWAYS = (
    "cache chunk capacity rollback gather fork grow count left_pad right_pad positions "
    "visible window kv kv_write capture f64 f32 layouts speculate"
)
_NEVER = {
    "persistent": "buffers are written in place, so a state that was stepped on is consumed",
    "jit": "PyTorch runs this twin op by op, nothing is compiled",
    "batch_invariant": "a matrix product may round a row by the number of its neighbours",
}

_RESTEPPED = ("cache.partition", "cache.prefix", "cache.program", "spec.greedy", "window.ring")
_FOLLOWS = (
    "Rotary speeds follow the length of a row: earlier keys keep the speeds of their time, so a "
    "text's result depends on the steps in which it was fed.",
    "docs/families.md",
)


@dataclass(frozen=True)
class SubjectInfo:
    """What the tester may know about a subject.

    Attributes:
        name: For reports.
        framework: "jax" or "torch".
        dtype: Of the parameters and the cache.
        vocab_size: V.
        num_layers: Sites of the cache.
        capabilities: What it can be asked for.
        kv_heads: K of the first layer.
        windows: Of each layer, None for a layer that sees everything.
        max_positions: The longest text.
        weights_hash: Of the weights under canonical names, in the dtype that they were loaded in;
            the twins' are equal for equal weights.
        notes: Sentences for reports.
        absent: Capability -> why it is not offered.
        variants: Names that `variant` takes; N stands for a number.
        steady: The longest text whose result does not depend on its steps; None for any.
        documented: Relation -> a sentence about a difference there by design, and its source.
    """

    name: str
    framework: str
    dtype: str
    vocab_size: int
    num_layers: int
    capabilities: frozenset[str]
    kv_heads: int | None = None
    windows: tuple[int | None, ...] = ()
    max_positions: int | None = None
    weights_hash: str | None = None
    notes: tuple[str, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)
    variants: tuple[str, ...] = ()
    steady: int | None = None
    documented: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class KV:
    """One layer's cache as stored.

    Keys (after rotation) and values, the position of each slot, which slots are valid.
    """

    keys_BSKH: np.ndarray
    values_BSKH: np.ndarray
    position_BS: np.ndarray
    valid_BS: np.ndarray


def describe(
    model: Decoder,
    *,
    layout: str,
    name: str,
    weights_hash: str | None = None,
    notes: tuple[str, ...] = (),
    options: Mapping[str, Any] | None = None,
) -> SubjectInfo:
    """Return what a subject on a layout offers, and why it does not offer the rest."""
    config = model.config
    absent = _absent(config, layout) | _changed(config, layout, options or {})
    extra = {"rope", "gqa", "mla", "paged", "quant", "quant_invariant", "cross", "prefix"}
    extra -= absent.keys()
    return SubjectInfo(
        name=name,
        framework="torch",
        dtype=str(model.dtype).removeprefix("torch."),
        vocab_size=config.vocab_size,
        num_layers=config.num_layers,
        capabilities=frozenset({*_ALWAYS.split(), *extra} - absent.keys()),
        kv_heads=config.layers[0].attention.num_kv_heads,
        windows=tuple(layer.attention.window for layer in config.layers),
        max_positions=config.max_positions,
        weights_hash=weights_hash,
        notes=notes,
        absent=absent,
        variants=_variants(config, layout),
        steady=_steady(config),
        documented=dict.fromkeys(_RESTEPPED, _FOLLOWS) if config.follows_length else {},
    )


def _steady(config: ModelConfig) -> int | None:
    ropes = [layer.attention.rope for layer in config.layers]
    scalings = [rope.scaling for rope in ropes if rope is not None and rope.follows_length]
    starts = [getattr(scaling, "original_max_positions", 0) for scaling in scalings]
    return min(starts, default=None)


def _absent(config: ModelConfig, layout: str) -> dict[str, str]:
    attentions = [layer.attention for layer in config.layers]
    absent = dict(_NEVER)
    if config.encoder is None:
        absent["cross"] = "the model is a decoder alone"
    else:
        absent["capture"] = "points are not driven beside an encoder"
        absent["speculate"] = "drafts are not verified beside an encoder"
    if config.learned_positions:
        absent["rope"] = "positions are learned, so a shift reads another part of their table"
    elif config.follows_length:
        absent["rope"] = "rotary speeds follow the length, so a shift past a length changes them"
    if config.follows_length:
        why = "rotary speeds follow the length, so that drafts are verified at other speeds"
        absent["speculate"] = why
    if all(a.groups == 1 for a in attentions):
        absent["gqa"] = "every query head has a key/value head of its own already"
    if any(a.latent is not None for a in attentions):
        absent["gqa"] = "latent attention has one head of keys and values"
    else:
        absent["mla"] = "the model has no latent attention"
    if layout != "paged":
        absent["paged"] = f"the {layout} layout has no pages; layout=paged has"
        absent["prefix"] = "prefixes are shared as pages, which layout=paged has"
    if layout == "window" and any(a.window is not None for a in attentions):
        absent["rollback"] = "a ring has evicted what a long rollback needs"
    return absent


def _changed(config: ModelConfig, layout: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return what a layout that changes results does not offer, and why."""
    ring = "what a long rollback needs is no longer there as it was"
    if layout == "quantized":
        absent = {"layouts": "its layout is what it tests; variant 'exact' is another function"}
        if any(x.attention.window for x in config.layers):
            absent["rollback"] = ring
        if options.get("order") == "kivi":
            why = "order=kivi reads a step's own tokens as they are and earlier ones from codes"
            absent["chunk"] = f"{why}, so that what a text gives depends on how it was cut"
            absent["rollback"] = f"{why}, so that going back and on is another cut of the text"
            absent["speculate"] = f"{why}, so that verifying drafts is another cut of the text"
            absent["quant_invariant"] = why
        else:
            absent["pos.shift"] = "keys are rounded as they stand rotated: a shift rounds others"
        return absent
    none = f"the {layout} layout has no codes; layout=quantized has"
    absent = {"quant": none, "quant_invariant": none}
    if not layout.startswith("sinks"):
        return absent
    policy = "its policy drops tokens, by itself and by their places: it is no full attention"
    held = ("cache.prefix", "cache.write_set")
    for name in ("layouts", "window", "positions", "visible", "rope", *held):
        absent[name] = policy
    return absent | {"rollback": ring, "speculate": ring}


def _variants(config: ModelConfig, layout: str) -> tuple[str, ...]:
    attentions = [layer.attention for layer in config.layers]
    names = ["layout_contiguous", "layout_paged", "window=N", "eager"]
    if layout.startswith("sinks"):
        names = ["eager"]
    elif layout == "quantized":
        names = ["exact", "window=N", "eager"]
    if any(a.window is not None for a in attentions) and not layout.startswith("sinks"):
        names.append("layout_window")
    if any(a.latent is not None for a in attentions):
        names += ["mla_absorbed", "mla_naive"]
    elif any(a.groups > 1 for a in attentions):
        names.append("gqa_as_mha")
    if layout == "paged":
        names.append("page_size=N")
    return tuple(sorted(names))
