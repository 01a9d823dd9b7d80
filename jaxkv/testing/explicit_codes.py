"""What a query reads of codes, where everything is kept as it was: for the testers' own layout.

The scheme of `order="chunk_invariant"` and of codes token by token, once more: codes are made when
they are read. What has been a code before gives the same one again, so that such a state may go on
from a cache's.

Letters: B rows, T new tokens, S slots (token p of a row in slot p), U groups of tokens, G tokens of
a group, Z groups of channels, K key/value heads, H head width.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxkv.caches import codes
from jaxkv.caches.layouts import LAYOUTS, layout_for
from jaxkv.spec.compression import Groups, PerToken, quantization
from jaxkv.spec.config import Attention, ModelConfig

Form = Groups | PerToken


def form_of(config: ModelConfig, layout: str, options: Mapping[str, Any]) -> Form | None:
    """Return how a subject's texts are read from codes, whatever their steps; None if they aren't.

    With `order="kivi"` what is read depends on the steps.
    """
    if layout != "quantized":
        return None
    form = quantization(width=config.layers[0].attention.head_dim, **options)
    return None if isinstance(form, Groups) and form.order == "kivi" else form


def form_for(attention: Attention, form: Form | None) -> Form | None:
    """Return the form of one layer: none where it has a window, which keeps its exact ring."""
    is_coded = layout_for(attention, "quantized") is LAYOUTS["quantized"]
    return form if is_coded else None


def edges(form: Form, token: Int[Array, "*A"]) -> tuple[Int[Array, "*A"], Int[Array, "*A"]]:
    """Return up to which token, that one not included, a token reads keys and values from codes.

    Args:
        form: The scheme.
        token: How many tokens of the row come before it.
    """
    if isinstance(form, PerToken):
        return token + 1, token + 1
    residual, held = form.residual_length, token + 1
    return held // residual * residual, jnp.maximum(held - residual, 0)


def keys_from_codes(k_BSKH: Float[Array, "B S K H"], form: Form) -> Float[Array, "B S K H"]:
    """Return the keys as their codes give them; a group that is not whole comes out as anything."""
    if isinstance(form, PerToken):
        return _per_token(k_BSKH, form)
    slots = k_BSKH.shape[1]
    whole_BSKH = jnp.pad(k_BSKH, ((0, 0), (0, -slots % form.group_size), (0, 0), (0, 0)))
    k_BUGKH = whole_BSKH.reshape(len(k_BSKH), -1, form.group_size, *k_BSKH.shape[2:])
    k_BUKHG = jnp.moveaxis(k_BUGKH, 2, -1)
    read_BUKHG = codes.dequantize(*codes.quantize(k_BUKHG, bits=form.bits))
    read_BSKH = jnp.moveaxis(read_BUKHG, -1, 2).reshape(whole_BSKH.shape)
    return read_BSKH[:, :slots].astype(k_BSKH.dtype)


def values_from_codes(v_BSKH: Float[Array, "B S K H"], form: Form) -> Float[Array, "B S K H"]:
    """Return the values as their codes give them."""
    if isinstance(form, PerToken):
        return _per_token(v_BSKH, form)
    v_BSKZG = v_BSKH.reshape(*v_BSKH.shape[:-1], -1, form.group_size)
    read_BSKZG = codes.dequantize(*codes.quantize(v_BSKZG, bits=form.bits))
    return read_BSKZG.reshape(v_BSKH.shape).astype(v_BSKH.dtype)


def as_read(
    k_BSKH: Float[Array, "B S K H"],
    v_BSKH: Float[Array, "B S K H"],
    length_B: Int[Array, " B"],
    form: Form,
) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K H"]]:
    """Return keys and values as a cache of these lengths gives them back."""
    coded = keys_from_codes(k_BSKH, form), values_from_codes(v_BSKH, form)
    slot_S = jnp.arange(k_BSKH.shape[1], dtype=jnp.int32)
    k_BSKH, v_BSKH = (
        jnp.where((slot_S < edge_B[:, None])[:, :, None, None], from_codes, as_it_was)
        for edge_B, from_codes, as_it_was in zip(
            edges(form, length_B - 1), coded, (k_BSKH, v_BSKH), strict=True
        )
    )
    return k_BSKH, v_BSKH


def _per_token(x_BSKH: Array, form: PerToken) -> Array:
    quantize = codes.quantize_int8 if form.kind == "int8" else codes.quantize_fp8
    code_BSKH, scale_BSK = quantize(x_BSKH)
    up = codes.wide(scale_BSK.dtype)
    return (code_BSKH.astype(up) * scale_BSK.astype(up)[..., None]).astype(x_BSKH.dtype)
