"""Arrays under canonical names -> this twin's parameters.

Transposing and packing happen here, and only here.

Letters: D width, N query heads, K key/value heads, H head width, F feed-forward width, E = (N + 2K)
* H.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxkv.caches import check_dtype
from jaxkv.model import Attention, Decoder, Layer, Linear, Mlp, Norm
from jaxkv.spec import config as spec
from jaxkv.spec.checkpoint import check_weights

Read = Callable[[str], np.ndarray]


def from_arrays(
    config: spec.ModelConfig,
    arrays: Mapping[str, np.ndarray],
    *,
    dtype: Any = "float32",
    interleaved_qk: bool = False,
) -> Decoder:
    """Return a decoder that holds copies of the arrays.

    Args:
        config: The model's sizes.
        arrays: Canonical name (spec.config.weight_shapes) -> array, matrices (out, in).
        dtype: Of the parameters.
        interleaved_qk: Whether the rows of q and k stand in the pair order of interleaved rotary,
            as GGUF files of the llama architecture have them; they are put into half-split order.

    Raises:
        WeightError: A tensor is missing, unexpected or misshapen.
        RequestError: The dtype cannot be had.

    Cost: one copy of the weights, tensor by tensor.
    """
    check_weights(config, shapes_of(arrays))
    dtype = check_dtype("from_arrays", dtype)

    def read(name: str) -> np.ndarray:
        return np.asarray(arrays[name])

    def place(x: np.ndarray) -> Any:
        return jnp.asarray(x, dtype)

    layers = [
        Layer(
            _norm(read, f"layers.{i}.attn_norm", config.norm, place),
            _attention(read, f"layers.{i}.attn", layer.attention, place, interleaved_qk),
            _norm(read, f"layers.{i}.mlp_norm", config.norm, place),
            _mlp(read, f"layers.{i}.mlp", layer.mlp, place),
        )
        for i, layer in enumerate(config.layers)
    ]
    return Decoder(
        config,
        embed=place(read("embed.weight")),
        position=place(read("position.weight")) if config.learned_positions else None,
        layers=layers,
        norm=_norm(read, "norm", config.norm, place),
        head=None if config.tied_head else _linear(read, ["head"], config.head_bias, place),
    )


def to_arrays(model: Decoder) -> dict[str, np.ndarray]:
    """Return the decoder's weights under canonical names, (out, in).

    The inverse of `from_arrays`.
    """
    config = model.config
    arrays = {"embed.weight": np.asarray(model.embed[...])}
    if model.position is not None:
        arrays["position.weight"] = np.asarray(model.position[...])
    for i, (layer, sizes) in enumerate(zip(model.layers, config.layers, strict=True)):
        a, name = sizes.attention, f"layers.{i}"
        q, kv = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
        arrays |= _unpack_norm(f"{name}.attn_norm", layer.attn_norm)
        arrays |= _unpack(
            [f"{name}.attn.q", f"{name}.attn.k", f"{name}.attn.v"], [q, kv, kv], layer.attn.qkv
        )
        arrays |= _unpack([f"{name}.attn.o"], [config.width], layer.attn.o)
        arrays |= _unpack_norm(f"{name}.mlp_norm", layer.mlp_norm)
        parts = [f"{name}.mlp.gate", f"{name}.mlp.up"] if sizes.mlp.gated else [f"{name}.mlp.up"]
        arrays |= _unpack(parts, [sizes.mlp.width] * len(parts), layer.mlp.up)
        arrays |= _unpack([f"{name}.mlp.down"], [config.width], layer.mlp.down)
    arrays |= _unpack_norm("norm", model.norm)
    if model.head is not None:
        arrays |= _unpack(["head"], [config.vocab_size], model.head)
    return arrays


def shapes_of(arrays: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return each array's shape.

    Without reading it where the mapping can tell (a checkpoint's `shapes`).
    """
    known = getattr(arrays, "shapes", None)
    return (
        dict(known)
        if known is not None
        else {name: np.shape(array) for name, array in arrays.items()}
    )


def half_split(weight: np.ndarray, *, heads: int) -> np.ndarray:
    """Return rows (or a bias) reordered from interleaved rotary pairs (2i.

    2i + 1) to half-split pairs (i, i + H/2).

    Source: the reordering of llama.cpp's converter, undone; `heads` counts KV heads for k.
    """
    out_width = weight.shape[0]
    pairs = weight.reshape(heads, out_width // heads // 2, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def _linear(read: Read, names: list[str], bias: bool, place: Callable[[np.ndarray], Any]) -> Linear:
    # Several (out, in) matrices of one input become one (in, out) matrix: one product instead of
    # several.
    weight_DE = np.concatenate([read(f"{name}.weight") for name in names]).T
    bias_E = np.concatenate([read(f"{name}.bias") for name in names]) if bias else None
    return Linear(place(weight_DE), None if bias_E is None else place(bias_E))


def _attention(
    read: Read, name: str, a: spec.Attention, place: Callable[[np.ndarray], Any], interleaved: bool
) -> Attention:
    heads = {f"{name}.q": a.num_heads, f"{name}.k": a.num_kv_heads}

    def reordered(full_name: str) -> np.ndarray:
        owner = full_name.rpartition(".")[0]
        array = read(full_name)
        return half_split(array, heads=heads[owner]) if interleaved and owner in heads else array

    qkv = _linear(reordered, [f"{name}.q", f"{name}.k", f"{name}.v"], a.qkv_bias, place)
    return Attention(qkv, _linear(read, [f"{name}.o"], a.out_bias, place))


def _mlp(read: Read, name: str, m: spec.Mlp, place: Callable[[np.ndarray], Any]) -> Mlp:
    inputs = [f"{name}.gate", f"{name}.up"] if m.gated else [f"{name}.up"]
    return Mlp(_linear(read, inputs, m.bias, place), _linear(read, [f"{name}.down"], m.bias, place))


def _norm(read: Read, name: str, norm: spec.Norm, place: Callable[[np.ndarray], Any]) -> Norm:
    bias = place(read(f"{name}.bias")) if norm.kind == "layer" else None
    return Norm(place(read(f"{name}.weight")), bias)


def _unpack(names: list[str], widths: list[int], linear: Linear) -> dict[str, np.ndarray]:
    weight_ED, edges = np.asarray(linear.weight[...]).T, np.cumsum(widths)[:-1]
    arrays = {f"{n}.weight": w for n, w in zip(names, np.split(weight_ED, edges), strict=True)}
    if linear.bias is not None:
        parts = np.split(np.asarray(linear.bias[...]), edges)
        arrays |= {f"{n}.bias": b for n, b in zip(names, parts, strict=True)}
    return arrays


def _unpack_norm(name: str, norm: Norm) -> dict[str, np.ndarray]:
    bias = {} if norm.bias is None else {f"{name}.bias": np.asarray(norm.bias[...])}
    return {f"{name}.weight": np.asarray(norm.weight[...])} | bias
