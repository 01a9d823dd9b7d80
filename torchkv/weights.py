"""Arrays under canonical names -> this twin's parameters.

Reordering and packing happen here, and only here.

Letters: D width, N query heads, K key/value heads, H head width, F feed-forward width, Z experts,
E packed outputs, C channels of a latent.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor as Array

from jaxkv.spec import config as spec
from jaxkv.spec.checkpoint import check_weights
from torchkv.caches import check_dtype
from torchkv.model import (
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
)
from torchkv.mtp import Mtp

Read = Callable[..., Array]


def from_arrays(
    config: spec.ModelConfig,
    arrays: Mapping[str, np.ndarray],
    *,
    dtype: Any = "float32",
    interleaved_qk: bool = False,
) -> Decoder:
    """Return a decoder that holds copies of the arrays, in evaluation mode.

    On torch's default device.

    Args:
        config: The model's sizes.
        arrays: Canonical name (spec.weight_shapes) -> array, matrices (out, in).
        dtype: Of the parameters.
        interleaved_qk: Whether the rows of q and k stand in the pair order of interleaved rotary,
            as GGUF files of the llama architecture have them; they are put into half-split order.

    Raises:
        WeightError: A tensor is missing, unexpected or misshapen.
        RequestError: The dtype cannot be had.

    Cost: one copy of the weights, tensor by tensor.
    """
    check_weights(config, shapes_of(arrays))
    kind = check_dtype("from_arrays", dtype)
    heads = _rotary_heads(config) if interleaved_qk else {}

    def part(name: str) -> Array:
        array = np.ascontiguousarray(arrays[name])
        owner = name.rpartition(".")[0]
        if owner in heads:
            array = half_split(array, heads=heads[owner])
        if array.dtype.kind != "f":
            array = array.astype(np.float32)  # numpy's extension types, bfloat16 among them
        return torch.from_numpy(array if array.flags.writeable else array.copy())

    def read(*names: str) -> Array:
        # Several matrices of one input, stacked along their outputs, are one matrix: one product
        # instead of several. One copy of them all: the parts may be pages of a file.
        parts = [part(name) for name in names]
        whole = torch.cat(parts, max(parts[0].dim() - 2, 0))
        return whole.to(device=torch.get_default_device(), dtype=kind)

    encoder, has_own_bias = config.encoder, config.tied_head and config.head_bias
    return Decoder(
        config,
        embed=read("embed.weight"),
        **_side(read, "", config.layers, config),
        head=None if config.tied_head else _linear(read, ["head"], config.head_bias),
        head_bias=read("head.bias") if has_own_bias else None,
        encoder=encoder and Encoder(**_side(read, "encoder.", encoder.layers, config)),
        mtp=_mtp(read, config) if config.has_mtp else None,
    )


def to_arrays(model: Decoder) -> dict[str, np.ndarray]:
    """Return the decoder's weights under canonical names, (out, in): the inverse of `from_arrays`.

    numpy has no bfloat16, so such weights come back in float32, which holds them exactly.
    """
    config = model.config
    parts: dict[str, Array | None] = {"embed.weight": model.embed, "head.bias": model.head_bias}
    parts |= _unpack_side("", model, config.layers, config.width)
    if model.encoder is not None and config.encoder is not None:
        parts |= _unpack_side("encoder.", model.encoder, config.encoder.layers, config.width)
    if isinstance(model.mtp, Mtp):
        parts |= _unpack_mtp(model.mtp, config)
    if model.head is not None:
        parts |= _unpack({"head": config.vocab_size}, model.head)
    return {name: _to_numpy(part) for name, part in parts.items() if part is not None}


def shapes_of(arrays: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return each array's shape, not reading those of a mapping that knows its `shapes`."""
    if hasattr(arrays, "shapes"):
        return dict(arrays.shapes)  # pyright: ignore[reportAttributeAccessIssue] asked above
    return {name: tuple(np.shape(array)) for name, array in arrays.items()}


def half_split(weight: np.ndarray, *, heads: int) -> np.ndarray:
    """Return rows (or a bias) with rotary pairs (2i, 2i + 1) moved to (i, i + H/2).

    Source: the reordering of llama.cpp's converter, undone; `heads` counts KV heads for k.
    """
    row_E = np.arange(weight.shape[0]).reshape(heads, -1)
    evens_then_odds = np.concatenate([row_E[:, 0::2], row_E[:, 1::2]], axis=1)
    return weight[evens_then_odds.ravel()]


def _rotary_heads(config: spec.ModelConfig) -> dict[str, int]:
    heads: dict[str, int] = {}
    for i, layer in enumerate(config.layers):
        heads[f"layers.{i}.attn.q"] = layer.attention.num_heads
        heads[f"layers.{i}.attn.k"] = layer.attention.num_kv_heads
    return heads


def _linear(read: Read, names: list[str], bias: bool) -> Linear:
    weight_ED = read(*[f"{name}.weight" for name in names])
    return Linear(weight_ED, read(*[f"{name}.bias" for name in names]) if bias else None)


def _side(
    read: Read, prefix: str, layers: tuple[spec.Layer, ...], config: spec.ModelConfig
) -> dict[str, Any]:
    """Return what a decoder and its encoder both have, by the names of their parameters."""
    stack: dict[str, Any] = {"position": None, "relative": None, "norm": None, "embed_norm": None}
    if config.learned_positions:
        stack["position"] = read(f"{prefix}position.weight")
    if any(layer.attention.relative is not None for layer in layers):
        stack["relative"] = read(f"{prefix}relative.weight")
    if config.final_norm:
        stack["norm"] = _norm(read, f"{prefix}norm", config.norm)
    if config.embed_norm:
        stack["embed_norm"] = _norm(read, f"{prefix}embed_norm", config.norm)
    names = (f"{prefix}layers.{i}" for i in range(len(layers)))
    made = [_layer(read, name, layer, config) for name, layer in zip(names, layers, strict=True)]
    return stack | {"layers": made}


def _mtp(read: Read, config: spec.ModelConfig) -> Mtp:
    gains = ("embed_norm", "stream_norm", "norm")
    norms = {part: _norm(read, f"mtp.{part}", config.norm) for part in gains}
    layer = _layer(read, "mtp.layers.0", config.layers[-1], config)
    return Mtp(merge=_linear(read, ["mtp.merge"], False), layers=[layer], **norms)


def _layer(read: Read, name: str, layer: spec.Layer, config: spec.ModelConfig) -> Layer:
    parts = ["attn_norm", "mlp_norm"]
    parts += ["attn_post_norm", "mlp_post_norm"] if layer.post_norms else []
    parts += ["cross_norm"] if layer.cross else []
    norms = {part: _norm(read, f"{name}.{part}", config.norm) for part in parts}
    attn, mlp = (
        _attention(read, f"{name}.attn", layer.attention),
        _mlp(read, f"{name}.mlp", layer.mlp),
    )
    cross = layer.cross and _cross(read, f"{name}.cross", layer.cross)
    return Layer(attn=attn, mlp=mlp, cross=cross, **norms)


def _cross(read: Read, name: str, a: spec.Attention) -> Cross:
    kv = _linear(read, [f"{name}.k", f"{name}.v"], a.qkv_bias)
    q, o = _linear(read, [f"{name}.q"], a.qkv_bias), _linear(read, [f"{name}.o"], a.out_bias)
    return Cross(q, kv, o)


def _attention(read: Read, name: str, a: spec.Attention) -> Attention | LatentAttention:
    if a.latent is not None:
        return _latent_attention(read, name, a)
    qkv = _linear(read, [f"{name}.q", f"{name}.k", f"{name}.v"], a.qkv_bias)
    norms = [f"{name}.q_norm", f"{name}.k_norm"] if a.qk_norm else []
    return Attention(
        qkv,
        _linear(read, [f"{name}.o"], a.out_bias),
        *(_norm(read, each, a.qk_norm) for each in norms if a.qk_norm),
    )


def _latent_attention(read: Read, name: str, a: spec.Attention) -> LatentAttention:
    def gain(part: str) -> Norm:
        return Norm(read(f"{name}.{part}.weight"))

    k_up, v_up = (
        Linear(read(f"{name}.{part}.weight").unflatten(0, (a.num_heads, -1)))
        for part in ("k_up", "v_up")
    )
    kv_down = _linear(read, [f"{name}.kv_down"], a.qkv_bias)
    o = _linear(read, [f"{name}.o"], a.out_bias)
    if a.latent is None or a.latent.query_rank is None:
        q = _linear(read, [f"{name}.q"], False)
        return LatentAttention(q, kv_down, gain("kv_norm"), k_up, v_up, o)
    q_down = _linear(read, [f"{name}.q_down"], a.qkv_bias)
    queries = q_down, gain("q_norm"), _linear(read, [f"{name}.q_up"], False)
    return LatentAttention(None, kv_down, gain("kv_norm"), k_up, v_up, o, *queries)


def _mlp(read: Read, name: str, m: spec.Mlp | spec.Experts) -> Mlp | Experts:
    if isinstance(m, spec.Experts):
        router = _linear(read, [f"{name}.router"], bool(m.routing and m.routing.choice_bias))
        up = _linear(read, [f"{name}.experts.gate", f"{name}.experts.up"], False)
        down = _linear(read, [f"{name}.experts.down"], False)
        return Experts(router, up, down, _shared(read, f"{name}.shared", m))
    inputs = ["gate", "up"] if m.gated else ["up"]
    up = _linear(read, [f"{name}.{each}" for each in inputs], m.bias)
    return Mlp(up, _linear(read, [f"{name}.down"], m.bias))


def _shared(read: Read, name: str, m: spec.Experts) -> Mlp | None:
    shared = None if m.shared is None else _mlp(read, name, m.shared)
    assert not isinstance(shared, Experts)  # `spec.Experts.shared` is one feed-forward
    return shared


def _norm(read: Read, name: str, norm: spec.Norm) -> Norm:
    bias = read(f"{name}.bias") if norm.kind == "layer" else None
    return Norm(read(f"{name}.weight"), bias)


def _unpack_side(
    prefix: str, stack: Decoder | Encoder, sizes: tuple[spec.Layer, ...], width: int
) -> dict[str, Array | None]:
    parts: dict[str, Array | None] = {
        f"{prefix}position.weight": stack.position,
        f"{prefix}relative.weight": stack.relative,
    }
    for i, (layer, size) in enumerate(zip(stack.layers, sizes, strict=True)):
        assert isinstance(layer, Layer)  # nn.ModuleList has no item type
        parts |= _unpack_layer(f"{prefix}layers.{i}", layer, size, width)
    for name, norm in (("norm", stack.norm), ("embed_norm", stack.embed_norm)):
        parts |= _unpack({f"{prefix}{name}": width}, norm) if norm is not None else {}
    return parts


def _unpack_mtp(mtp: Mtp, config: spec.ModelConfig) -> dict[str, Array | None]:
    layer = mtp.layers[0]
    assert isinstance(layer, Layer)  # nn.ModuleList has no item type
    parts = _unpack_layer("mtp.layers.0", layer, config.layers[-1], config.width)
    for name in ("embed_norm", "stream_norm", "merge", "norm"):
        parts |= _unpack({f"mtp.{name}": config.width}, getattr(mtp, name))
    return parts


def _unpack_layer(
    name: str, layer: Layer, sizes: spec.Layer, width: int
) -> dict[str, Array | None]:
    m, mlp = sizes.mlp, layer.mlp
    packed: list[tuple[dict[str, int], Linear | Norm | None]] = [
        ({"attn_norm": width}, layer.attn_norm),
        *_parts_of(layer.attn, sizes.attention),
        ({"attn.o": width}, layer.attn.o),
        ({"attn_post_norm": width}, layer.attn_post_norm),
        ({"mlp_norm": width}, layer.mlp_norm),
        ({"mlp_post_norm": width}, layer.mlp_post_norm),
    ]
    if layer.cross is not None and sizes.cross is not None:
        c, cross = sizes.cross, layer.cross
        q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        packed += [
            ({"cross_norm": width}, layer.cross_norm),
            ({"cross.q": q}, cross.q),
            ({"cross.k": kv, "cross.v": kv}, cross.kv),
            ({"cross.o": width}, cross.o),
        ]
    inside = "mlp"
    if isinstance(m, spec.Experts):
        assert isinstance(mlp, Experts)  # `from_arrays` made both from one config
        packed.append(({"mlp.router": m.num_experts}, mlp.router))
        if m.shared is not None and mlp.shared is not None:
            both = {"mlp.shared.gate": m.shared.width, "mlp.shared.up": m.shared.width}
            packed += [(both, mlp.shared.up), ({"mlp.shared.down": width}, mlp.shared.down)]
        inside, m = "mlp.experts", m.expert
    gate = {f"{inside}.gate": m.width} if m.gated else {}
    packed += [(gate | {f"{inside}.up": m.width}, mlp.up), ({f"{inside}.down": width}, mlp.down)]
    arrays: dict[str, Array | None] = {}
    for widths, each in packed:
        if each is not None:
            arrays |= _unpack({f"{name}.{part}": size for part, size in widths.items()}, each)
    for part in ("k_up", "v_up") if isinstance(layer.attn, LatentAttention) else ():
        arrays[f"{name}.attn.{part}.weight"] = getattr(layer.attn, part).weight.flatten(0, 1)
    return arrays


def _parts_of(
    attn: Attention | LatentAttention, a: spec.Attention
) -> list[tuple[dict[str, int], Linear | Norm | None]]:
    if isinstance(attn, Attention):
        q, kv = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
        return [
            ({"attn.q": q, "attn.k": kv, "attn.v": kv}, attn.qkv),
            ({"attn.q_norm": a.head_dim}, attn.q_norm),
            ({"attn.k_norm": a.head_dim}, attn.k_norm),
        ]
    names = ("q", "q_down", "q_norm", "q_up", "kv_down", "kv_norm")
    parts = [(part, getattr(attn, part)) for part in names]
    return [({f"attn.{part}": len(x.weight)}, x) for part, x in parts if x is not None]


def _unpack(widths: dict[str, int], packed: Linear | Norm) -> dict[str, Array | None]:
    sizes = list(widths.values())
    # Outputs stand on the last axis but one, a norm's gains on the only one.
    parts = zip(widths, packed.weight.split(sizes, max(packed.weight.dim() - 2, 0)), strict=True)
    arrays: dict[str, Array | None] = {f"{name}.weight": part for name, part in parts}
    if packed.bias is not None:
        parts = zip(widths, packed.bias.split(sizes), strict=True)
        arrays |= {f"{name}.bias": part for name, part in parts}
    return arrays


def _to_numpy(x: Array) -> np.ndarray:
    x = x.detach().cpu()
    return (x.float() if x.dtype == torch.bfloat16 else x).numpy().copy()
