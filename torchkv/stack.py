"""A stack of blocks, of a decoder or an encoder: what enters it, and one run through its layers.

Letters: B rows, T new tokens, D width.
"""

import math
from collections.abc import Mapping
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor as Array

from jaxkv.spec import config as spec
from torchkv.block import Dropout, Tap, block, rotation
from torchkv.caches import Bias, Rotate, Step
from torchkv.linear import norm
from torchkv.relative import relative_bias

Params = Mapping[str, Any]


def no_tap(name: str, x: Array) -> Array:
    """Return x as it is."""
    return x


def embed(
    params: Params,
    p: Params,
    ids_BT: Int[Array, "B T"],
    step: Step,
    config: spec.ModelConfig,
) -> Float[Array, "B T D"]:
    """Return what enters the first layer.

    Args:
        params: The model's, for the table of tokens.
        p: The stack's own: its learned positions and its norm, where it has them.
        ids_BT: Token ids.
        step: From `caches.begin`, for the positions.
        config: The model's.
    """
    position_BT = step.position_BT
    if step.start is None:
        # Padding may be any number, also past either table: it reads row 0, and never reaches a
        # real token.
        ids_BT, position_BT = (x.masked_fill(~step.valid_BT, 0) for x in (ids_BT, position_BT))
    x_BTD = F.embedding(ids_BT, params["embed"])
    if config.scaled_embedding:
        x_BTD = x_BTD * x_BTD.new_tensor(math.sqrt(config.width))
    if "position" in p:
        x_BTD = x_BTD + F.embedding(position_BT + config.position_offset, p["position"])
    return norm(p["embed_norm"], x_BTD, config.norm) if "embed_norm" in p else x_BTD


def run_layers(
    p: Params,
    x_BTD: Float[Array, "B T D"],
    sites: tuple[Any, ...],
    step: Step,
    layers: tuple[spec.Layer, ...],
    config: spec.ModelConfig,
    drop: Dropout,
    tap: Tap,
    *,
    absorbed: bool | None = None,
) -> tuple[Float[Array, "B T D"], tuple[Any, ...]]:
    """Return the stream after all layers, and their sites with the new keys and values.

    Args:
        p: The stack's own.
        x_BTD: From `embed`.
        sites: One per attention, in the order of the forward pass.
        step: From `caches.begin`.
        layers: What the parameters mean.
        config: Of the model.
        drop: Applied to what attention and feed-forward give.
        tap: Called with the name and value of intermediate results; what it returns goes on in
            their place.
        absorbed: See `latent.attend_latent`.
    """
    rotates, bias = _rotations(step, layers, x_BTD.dtype), _bias(p, layers)
    before, after = iter(sites), []
    for i, (own, layer) in enumerate(zip(p["layers"], layers, strict=True)):
        held = tuple(islice(before, 1 if layer.cross is None else 2))
        rotate = rotates.get(layer.attention.rope)
        x_BTD, new = block(
            own,
            x_BTD,
            held,
            step,
            layer,
            config,
            rotate,
            bias,
            drop,
            _named(tap, i),
            absorbed=absorbed,
        )
        after += new
    return x_BTD, tuple(after)


def _rotations(
    step: Step, layers: tuple[spec.Layer, ...], dtype: torch.dtype
) -> dict[spec.Rope | None, Rotate]:
    """Return one rotation for all layers that share their rotary positions."""
    length_B = step.length_B + step.count_B
    ropes = {layer.attention.rope for layer in layers if layer.attention.rope}
    return {rope: rotation(rope, step.position_BT, length_B, dtype=dtype) for rope in ropes}


def _bias(p: Params, layers: tuple[spec.Layer, ...]) -> Bias | None:
    """Return the relative bias of all layers that have one: they share its table."""
    for layer in layers:
        a = layer.attention
        if a.relative is not None:
            return relative_bias(p["relative"], relative=a.relative, causal=a.causal)
    return None


def _named(tap: Tap, layer: int) -> Tap:
    return tap if tap is no_tap else lambda name, x: tap(f"layers.{layer}.{name}", x)
