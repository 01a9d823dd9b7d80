"""Arrays under canonical names -> this twin's parameters.

Transposing and packing happen here, and only here. Letters: D width, N query heads, K key/value
heads, H head width, F feed-forward width, Z experts, E packed outputs, C channels of a latent.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkv.caches import check_dtype
from jaxkv.model import (
    Attention,
    Cross,
    Decoder,
    Encoder,
    Experts,
    LatentAttention,
    Layer,
    Linear,
    Mlp,
    Norm,
    Turned,
)
from jaxkv.mtp import Mtp
from jaxkv.spec import config as spec
from jaxkv.spec.checkpoint import check_weights
from jaxkv.spec.reading import reading

Read = Callable[[str], np.ndarray]
Place = Callable[..., Any]

# Most experts that stand apart: each is a branch of the program, in every layer.
_APART = 16
_ALIGNMENT = 64


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
        arrays: Canonical name (spec.weight_shapes) -> array, matrices (out, in).
        dtype: Of the parameters.
        interleaved_qk: Whether the rows of q and k stand in the pair order of interleaved rotary,
            as GGUF files of the llama architecture have them; they are put into half-split order.

    Raises:
        WeightError: A tensor is missing, unexpected or misshapen.
        RequestError: The dtype cannot be had.

    Cost: one copy of the weights, tensor by tensor; `reading` holds a few more.
    """
    check_weights(config, shapes_of(arrays))
    dtype = check_dtype("from_arrays", dtype)

    def place(x: np.ndarray, *, own: bool = False) -> Any:
        # A copy of what may be pages of a file; memory that is ours alone becomes the array.
        return jnp.asarray(x, dtype) if own else jnp.array(x, dtype)

    encoder = config.encoder
    with reading(arrays) as read:
        side = partial(_side, read, config=config, place=place, interleaved=interleaved_qk)
        return Decoder(
            config,
            embed=place(read("embed.weight")),
            **side("", config.layers),
            head=None if config.tied_head else _linear(read, ["head"], config.head_bias, place),
            head_bias=place(read("head.bias")) if config.tied_head and config.head_bias else None,
            encoder=None if encoder is None else Encoder(**side("encoder.", encoder.layers)),
            mtp=_mtp(read, config, place, interleaved_qk) if config.has_mtp else None,
        )


def to_arrays(model: Decoder) -> dict[str, np.ndarray]:
    """Return the decoder's weights under canonical names, (out, in).

    The inverse of `from_arrays`.
    """
    config = model.config
    arrays = {"embed.weight": np.asarray(model.embed[...])}
    arrays |= _unpack_side("", model, config.layers, config.width)
    if model.encoder is not None and config.encoder is not None:
        arrays |= _unpack_side("encoder.", model.encoder, config.encoder.layers, config.width)
    if isinstance(model.mtp, Mtp):
        arrays |= _unpack_mtp(model.mtp, config)
    if model.head_bias is not None:
        arrays["head.bias"] = np.asarray(model.head_bias[...])
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
    """Return rows (or a bias) in half-split pairs (i, i + H/2), not interleaved (2i, 2i + 1).

    Source: the reordering of llama.cpp's converter, undone; `heads` counts KV heads for k.
    """
    out_width = weight.shape[0]
    pairs = weight.reshape(heads, out_width // heads // 2, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def _linear(
    read: Read, names: list[str], bias: bool, place: Place, kind: type[Linear] = Linear
) -> Linear:
    # Several (out, in) matrices of one input become one matrix: one product instead of several.
    weight = _join([read(f"{name}.weight") for name in names], is_turned=kind is Turned)
    bias_E = np.concatenate([read(f"{name}.bias") for name in names]) if bias else None
    return kind(place(weight, own=True), None if bias_E is None else place(bias_E))


def _side(
    read: Read,
    prefix: str,
    layers: tuple[spec.Layer, ...],
    *,
    config: spec.ModelConfig,
    place: Place,
    interleaved: bool,
) -> dict[str, Any]:
    """Return what a decoder and its encoder both have, by the names of their parameters."""
    is_biased = any(layer.attention.relative for layer in layers)
    norms = {"norm": config.final_norm, "embed_norm": config.embed_norm}
    tables = {"position": config.learned_positions, "relative": is_biased}
    return {
        "layers": [
            _layer(read, f"{prefix}layers.{i}", layer, config, place, interleaved)
            for i, layer in enumerate(layers)
        ],
        **{
            name: _norm(read, f"{prefix}{name}", config.norm, place) if there else None
            for name, there in norms.items()
        },
        **{
            name: place(read(f"{prefix}{name}.weight")) if there else None
            for name, there in tables.items()
        },
    }


def _mtp(read: Read, config: spec.ModelConfig, place: Place, interleaved: bool) -> Mtp:
    layer = _layer(read, "mtp.layers.0", config.layers[-1], config, place, interleaved)
    gains = ("embed_norm", "stream_norm", "norm")
    norms = {part: _norm(read, f"mtp.{part}", config.norm, place) for part in gains}
    return Mtp(merge=_linear(read, ["mtp.merge"], False, place), layers=[layer], **norms)


def _layer(
    read: Read,
    name: str,
    layer: spec.Layer,
    config: spec.ModelConfig,
    place: Place,
    interleaved: bool,
) -> Layer:
    def norm(part: str) -> Norm:
        return _norm(read, f"{name}.{part}", config.norm, place)

    return Layer(
        norm("attn_norm"),
        _attention(read, f"{name}.attn", layer.attention, place, interleaved),
        norm("mlp_norm"),
        _mlp(read, f"{name}.mlp", layer.mlp, place),
        norm("attn_post_norm") if layer.post_norms else None,
        norm("mlp_post_norm") if layer.post_norms else None,
        None if layer.cross is None else norm("cross_norm"),
        None if layer.cross is None else _cross(read, f"{name}.cross", layer.cross, place),
    )


def _cross(read: Read, name: str, a: spec.Attention, place: Place) -> Cross:
    q = _linear(read, [f"{name}.q"], a.qkv_bias, place)
    kv = _linear(read, [f"{name}.k", f"{name}.v"], a.qkv_bias, place)
    return Cross(q, kv, _linear(read, [f"{name}.o"], a.out_bias, place))


def _attention(
    read: Read, name: str, a: spec.Attention, place: Place, interleaved: bool
) -> Attention | LatentAttention:
    if a.latent is not None:
        return _latent_attention(read, name, a, a.latent, place)
    heads = {f"{name}.q": a.num_heads, f"{name}.k": a.num_kv_heads}

    def reordered(full_name: str) -> np.ndarray:
        owner = full_name.rpartition(".")[0]
        array = read(full_name)
        return half_split(array, heads=heads[owner]) if interleaved and owner in heads else array

    qkv = _linear(reordered, [f"{name}.{part}" for part in "qkv"], a.qkv_bias, place, Turned)
    o = _linear(read, [f"{name}.o"], a.out_bias, place)
    if a.qk_norm is None:
        return Attention(qkv, o)
    norms = (_norm(read, f"{name}.{part}_norm", a.qk_norm, place) for part in "qk")
    return Attention(qkv, o, *norms)


def _latent_attention(
    read: Read, name: str, a: spec.Attention, latent: spec.Latent, place: Place
) -> LatentAttention:
    def linear(part: str, *, bias: bool = False) -> Linear:
        return _linear(read, [f"{name}.{part}"], bias, place)

    def norm(part: str) -> Norm:
        return Norm(place(read(f"{name}.{part}.weight")))

    def up(part: str) -> Linear:
        rows = read(f"{name}.{part}.weight")
        return Linear(place(rows.reshape(a.num_heads, -1, latent.rank)))

    plain = latent.query_rank is None
    return LatentAttention(
        linear("q") if plain else None,
        linear("kv_down", bias=a.qkv_bias),
        norm("kv_norm"),
        up("k_up"),
        up("v_up"),
        linear("o", bias=a.out_bias),
        None if plain else linear("q_down", bias=a.qkv_bias),
        None if plain else norm("q_norm"),
        None if plain else linear("q_up"),
    )


def _mlp(read: Read, name: str, m: spec.Mlp | spec.Experts, place: Place) -> Mlp | Experts:
    if isinstance(m, spec.Experts):
        bias = m.routing is not None and m.routing.choice_bias
        router = _linear(read, [f"{name}.router"], bias, place)
        apart = m.num_experts <= _APART and jax.default_backend() == "cpu"
        up = _stack(read, [f"{name}.experts.gate", f"{name}.experts.up"], place, apart=apart)
        down = _stack(read, [f"{name}.experts.down"], place, apart=apart)
        shared = None if m.shared is None else _mlp(read, f"{name}.shared", m.shared, place)
        assert not isinstance(shared, Experts)  # `spec.Experts.shared` is one feed-forward
        return Experts(router, up, down, shared)
    inputs = [f"{name}.gate", f"{name}.up"] if m.gated else [f"{name}.up"]
    up = _linear(read, inputs, m.bias, place)
    return Mlp(up, _linear(read, [f"{name}.down"], m.bias, place, Turned))


def _stack(read: Read, names: list[str], place: Place, *, apart: bool) -> Linear | list[Linear]:
    parts = [read(f"{name}.weight") for name in names]
    if not apart:
        return Linear(place(_join(parts), own=True))
    each = zip(*parts, strict=True)
    return [Linear(place(_join(list(matrices)), own=True)) for matrices in each]


def _join(parts: list[np.ndarray], *, is_turned: bool = False) -> np.ndarray:
    """Return matrices (out, in) as one, (in, out) unless turned; those of experts one by one."""
    axis = -2 if is_turned else -1
    parts = parts if is_turned else [part.swapaxes(-1, -2) for part in parts]
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    # Written in its last order at once: each copy on the way would be memory of the process.
    return np.concatenate(parts, axis=axis, out=_aligned(tuple(shape), parts[0].dtype))


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an uninitialized array that JAX takes over without a copy."""
    size_bytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(size_bytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size_bytes].view(dtype).reshape(shape)


def _norm(read: Read, name: str, norm: spec.Norm, place: Place) -> Norm:
    bias = place(read(f"{name}.bias")) if norm.kind == "layer" else None
    return Norm(place(read(f"{name}.weight")), bias)


def _unpack_side(
    prefix: str, stack: Decoder | Encoder, sizes: tuple[spec.Layer, ...], width: int
) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for name, table in (("position", stack.position), ("relative", stack.relative)):
        arrays |= {} if table is None else {f"{prefix}{name}.weight": np.asarray(table[...])}
    for i, (layer, size) in enumerate(zip(stack.layers, sizes, strict=True)):
        arrays |= _unpack_layer(f"{prefix}layers.{i}", layer, size, width)
    for name, norm in (("norm", stack.norm), ("embed_norm", stack.embed_norm)):
        arrays |= {} if norm is None else _unpack_norm(f"{prefix}{name}", norm)
    return arrays


def _unpack_mtp(mtp: Mtp, config: spec.ModelConfig) -> dict[str, np.ndarray]:
    arrays = _unpack(["mtp.merge"], [config.width], mtp.merge)
    arrays |= _unpack_layer("mtp.layers.0", mtp.layers[0], config.layers[-1], config.width)
    for part in ("embed_norm", "stream_norm", "norm"):
        arrays |= _unpack_norm(f"mtp.{part}", getattr(mtp, part))
    return arrays


def _unpack_layer(name: str, layer: Layer, sizes: spec.Layer, width: int) -> dict[str, np.ndarray]:
    norms = {
        "attn_norm": layer.attn_norm,
        "attn_post_norm": layer.attn_post_norm,
        "cross_norm": layer.cross_norm,
        "mlp_norm": layer.mlp_norm,
        "mlp_post_norm": layer.mlp_post_norm,
    }
    arrays = _unpack_attention(f"{name}.attn", layer.attn, sizes.attention)
    arrays |= _unpack([f"{name}.attn.o"], [width], layer.attn.o)
    arrays |= _unpack_mlp(f"{name}.mlp", layer.mlp, sizes.mlp, width)
    if layer.cross is not None and sizes.cross is not None:
        arrays |= _unpack_cross(f"{name}.cross", layer.cross, sizes.cross, width)
    for part, norm in norms.items():
        arrays |= {} if norm is None else _unpack_norm(f"{name}.{part}", norm)
    return arrays


def _unpack_cross(name: str, cross: Cross, a: spec.Attention, width: int) -> dict[str, np.ndarray]:
    q, kv = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
    arrays = _unpack([f"{name}.q"], [q], cross.q)
    arrays |= _unpack([f"{name}.k", f"{name}.v"], [kv, kv], cross.kv)
    return arrays | _unpack([f"{name}.o"], [width], cross.o)


def _unpack_attention(
    name: str, attn: Attention | LatentAttention, a: spec.Attention
) -> dict[str, np.ndarray]:
    if isinstance(attn, LatentAttention):
        return _unpack_latent(name, attn)
    q, kv = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
    arrays = _unpack([f"{name}.{part}" for part in "qkv"], [q, kv, kv], attn.qkv)
    for part, norm in (("q_norm", attn.q_norm), ("k_norm", attn.k_norm)):
        arrays |= {} if norm is None else _unpack_norm(f"{name}.{part}", norm)
    return arrays


def _unpack_latent(name: str, attn: LatentAttention) -> dict[str, np.ndarray]:
    arrays = _unpack_norm(f"{name}.kv_norm", attn.kv_norm)
    if attn.q_norm is not None:
        arrays |= _unpack_norm(f"{name}.q_norm", attn.q_norm)
    for part in ("q", "q_down", "q_up", "kv_down"):
        if (linear := getattr(attn, part)) is not None:
            arrays |= _unpack([f"{name}.{part}"], [linear.weight.shape[1]], linear)
    for part, up in (("k_up", attn.k_up), ("v_up", attn.v_up)):
        weight_NHC = np.asarray(up.weight[...])
        arrays[f"{name}.{part}.weight"] = weight_NHC.reshape(-1, weight_NHC.shape[-1])
    return arrays


def _unpack_mlp(
    name: str, mlp: Mlp | Experts, sizes: spec.Mlp | spec.Experts, width: int
) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    if isinstance(mlp, Experts) and isinstance(sizes, spec.Experts):
        arrays = _unpack([f"{name}.router"], [sizes.num_experts], mlp.router)
        if mlp.shared is not None and sizes.shared is not None:
            arrays |= _unpack_mlp(f"{name}.shared", mlp.shared, sizes.shared, width)
        name, sizes = f"{name}.experts", sizes.expert
    assert isinstance(sizes, spec.Mlp)  # experts are unwrapped above
    parts = [f"{name}.gate", f"{name}.up"] if sizes.gated else [f"{name}.up"]
    arrays |= _unpack(parts, [sizes.width] * len(parts), mlp.up)
    return arrays | _unpack([f"{name}.down"], [width], mlp.down)


def _unpack(
    names: list[str], widths: list[int], linear: Linear | Sequence[Linear]
) -> dict[str, np.ndarray]:
    if not isinstance(linear, Linear):
        each = [_unpack(names, widths, one) for one in linear]
        return {name: np.stack([one[name] for one in each]) for name in each[0]}
    weight, edges = np.asarray(linear.weight[...]), np.cumsum(widths)[:-1]
    weight_ED = weight if isinstance(linear, Turned) else weight.swapaxes(-1, -2)
    parts = np.split(weight_ED, edges, axis=-2)
    arrays = {f"{name}.weight": part for name, part in zip(names, parts, strict=True)}
    if linear.bias is not None:
        parts = np.split(np.asarray(linear.bias[...]), edges)
        arrays |= {f"{n}.bias": b for n, b in zip(names, parts, strict=True)}
    return arrays


def _unpack_norm(name: str, norm: Norm) -> dict[str, np.ndarray]:
    bias = {} if norm.bias is None else {f"{name}.bias": np.asarray(norm.bias[...])}
    return {f"{name}.weight": np.asarray(norm.weight[...])} | bias
