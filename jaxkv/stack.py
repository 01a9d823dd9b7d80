"""A stack of blocks, of a decoder or an encoder: what enters it, and one run through its layers.

Letters: B rows, T new tokens, D width.
"""

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from jaxkv.block import Dropout, Tap, block, rotation
from jaxkv.caches import Bias, Rotate, Step
from jaxkv.linear import norm
from jaxkv.relative import relative_bias
from jaxkv.spec import config as spec

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
        ids_BT: int32 token ids.
        step: From `caches.begin`, for the positions.
        config: Static.
    """
    x_BTD = params["embed"][ids_BT]
    if config.scaled_embedding:
        x_BTD = x_BTD * jnp.asarray(config.width**0.5, x_BTD.dtype)
    if config.learned_positions:
        # Padding beyond the table reads row 0: what it holds never reaches a real token.
        place_BT = jnp.where(step.valid_BT, step.position_BT + config.position_offset, 0)
        x_BTD = x_BTD + p["position"][place_BT]
    return norm(p["embed_norm"], x_BTD, config.norm) if config.embed_norm else x_BTD


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
        layers: What the parameters mean; static.
        config: Of the model; static.
        drop: Applied to what attention and feed-forward give.
        tap: Called with the name and value of intermediate results; what it returns goes on in
            their place.
        absorbed: See `latent.attend_latent`; static.
    """
    rotates, bias = _rotations(step, layers, x_BTD.dtype), _bias(p, layers)
    called = _called(x_BTD, drop, tap)
    before, after = iter(sites), []
    for i, layer in enumerate(layers):
        held = tuple(islice(before, 1 if layer.cross is None else 2))
        own: tuple[Any, ...] = p["layers"][i], x_BTD, held, step
        if called is not None:
            fixed: dict[str, Any] = {"layer": layer, "config": config, "absorbed": absorbed}
            x_BTD, new = called(_read(own[0]), *own[1:], p.get("relative"), **fixed)
        else:
            rotate = rotates.get(layer.attention.rope)
            seen = rotate, bias, drop, _named(tap, i)
            x_BTD, new = block(*own, layer, config, *seen, absorbed=absorbed)
        after += new
    return x_BTD, tuple(after)


def _called(x_BTD: Array, drop: Dropout, tap: Tap) -> Callable[..., Any] | None:
    """Return the block as a function of its own inside the program that is traced, if it can be.

    Layers of one kind are then traced and lowered once, not once each, which no compilation cache
    saves; XLA makes one program of them again.
    """
    if not isinstance(x_BTD, Tracer) or drop.rate > 0.0 or tap is not no_tap:
        return None

    def one(*arrays: Any, **fixed: Any) -> Any:
        return _untapped(*arrays, **fixed)

    # A function of this trace alone: what it finds in other modules may be another by the next.
    return jax.jit(one, static_argnames=("layer", "config", "absorbed"))


def _read(p: Params) -> Params:
    """Return what a block reads: not how an encoder's result becomes keys, which `fill` does.

    A loop around a call carries all that the call is given.
    """
    if "cross" not in p:
        return p
    return {**p, "cross": {name: part for name, part in p["cross"].items() if name != "kv"}}


def _untapped(
    p: Params,
    x_BTD: Array,
    held: tuple[Any, ...],
    step: Step,
    table_CN: Array | None,
    *,
    layer: spec.Layer,
    config: spec.ModelConfig,
    absorbed: bool | None,
) -> tuple[Array, tuple[Any, ...]]:
    """Return what `block` does where nobody looks at what it computes and nothing is dropped."""
    a, off = layer.attention, Dropout(0.0, None)
    rotate, bias = _rotations(step, (layer,), x_BTD.dtype).get(a.rope), None
    if a.relative is not None:
        assert table_CN is not None  # `weights` reads one for layers that have a bias
        bias = relative_bias(table_CN, relative=a.relative, causal=a.causal)
    return block(p, x_BTD, held, step, layer, config, rotate, bias, off, no_tap, absorbed=absorbed)


def _rotations(
    step: Step, layers: tuple[spec.Layer, ...], dtype: jnp.dtype
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
