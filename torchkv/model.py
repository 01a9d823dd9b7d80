"""The decoder: modules own the parameters, one function computes with their nested dict.

`forward` reads tokens and a cache and returns logits and the next cache. It knows no layout:
positions come from the step that `caches.begin` planned, and each attention hands its queries, keys
and values to `caches.attend`. Letters: B rows, T new tokens, D width, N query heads, K key/value
heads, H head width, F feed-forward width, V vocabulary.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor as Array
from torch import nn

from jaxkv.spec import config as spec
from jaxkv.spec.errors import RequestError, ShapeError
from torchkv import caches, ops
from torchkv.caches import Cache, Rotate, Rule, Step

Params = Mapping[str, Any]
Tap = Callable[[str, Array], None]


class Linear(nn.Module):
    """A matrix stored (out, in), as `torch.nn.functional.linear` takes it, and an optional bias."""

    def __init__(self, weight: Array, bias: Array | None = None):
        super().__init__()
        self.weight = _frozen(weight)
        self.bias = None if bias is None else _frozen(bias)


class Norm(nn.Module):
    """A gain, and for the layer norm a bias."""

    def __init__(self, weight: Array, bias: Array | None = None):
        super().__init__()
        self.weight = _frozen(weight)
        self.bias = None if bias is None else _frozen(bias)


class Attention(nn.Module):
    """The packed query, key and value projection, and the output projection."""

    def __init__(self, qkv: Linear, o: Linear):
        super().__init__()
        self.qkv, self.o = qkv, o


class Mlp(nn.Module):
    """The feed-forward's matrices; gate and up are packed when there is a gate."""

    def __init__(self, up: Linear, down: Linear):
        super().__init__()
        self.up, self.down = up, down


class Layer(nn.Module):
    """One pre-norm block."""

    def __init__(self, attn_norm: Norm, attn: Attention, mlp_norm: Norm, mlp: Mlp):
        super().__init__()
        self.attn_norm, self.attn, self.mlp_norm, self.mlp = attn_norm, attn, mlp_norm, mlp


class Decoder(nn.Module):
    """A decoder's parameters and the config that they belong to; made by `weights.from_arrays`.

    Parameters ask for no gradients until `requires_grad_()` turns them on.

    Attributes:
        config: What the parameters mean.
        training: Whether dropout is on. Generation and caches refuse a model in training mode.
    """

    def __init__(
        self,
        config: spec.ModelConfig,
        *,
        embed: Array,
        position: Array | None,
        layers: list[Layer],
        norm: Norm,
        head: Linear | None,
        training: bool = False,
    ):
        super().__init__()
        self.config = config
        self.embed = _frozen(embed)
        self.position = None if position is None else _frozen(position)
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.head = head
        self.train(training)

    @property
    def dtype(self) -> torch.dtype:
        """The parameters' dtype, which the cache shares."""
        return self.embed.dtype


def params_of(model: Decoder) -> Params:
    """Return the parameters as a nested dict of tensors, the form that `forward` takes.

    The same memory, no copies.
    """
    return _tree(model)


def no_tap(name: str, x: Array) -> None:
    """Look at nothing."""


def forward(
    params: Params,
    ids_BT: Int[Array, "B T"],
    cache: Cache | None,
    count_B: Int[Array, " B"],
    *,
    config: spec.ModelConfig,
    fresh: bool = False,
    rectangular: bool = False,
    clean: bool = False,
    last_only: bool = False,
    training: bool = False,
    key: torch.Generator | None = None,
    tap: Tap = no_tap,
) -> tuple[Float[Array, "B _ V"], Cache | None]:
    """Return logits of T tokens a row and the cache that holds them too.

    The cache passed in is consumed. With a cache no gradients are recorded.

    Args:
        params: From `params_of`.
        ids_BT: Token ids; what stands beyond a row's count does not matter.
        cache: Earlier tokens, or None for a forward that keeps nothing.
        count_B: int32, how many of the T tokens of each row are real.
        config: The model's.
        fresh: Promise that every row of the cache is empty (always so without a cache).
        rectangular: Promise of one length and one count, see `caches.begin`.
        clean: Promise of finite numbers in unused slots, see `caches.begin`.
        last_only: Return only each row's logits at its last real token, as T = 1.
        training: Dropout on; needs `key`.
        key: A random generator for dropout, on the model's device.
        tap: Called with the name and value of intermediate results, in the order of the
            computation.

    Returns:
        Logits; those beyond a row's count mean nothing, and those of a row without a cache that is
        longer than the model's positions are NaN. And the cache, None without one.

    Raises:
        ShapeError: ids_BT is empty, or the cache was made for another model, dtype or batch.
        RequestError: training without a key or with a cache, or the cache was consumed.
    """
    _check_forward(ids_BT, cache, config, training, key)
    drop = _Dropout(config.dropout_rate if training else 0.0, key)
    if cache is None:
        with torch.device(ids_BT.device):
            none = caches.init(
                config,
                batch=ids_BT.shape[0],
                capacity=config.max_positions,
                dtype=params["embed"].dtype,
                layout="uncached",
            )
        none, step = caches.begin(none, count_B, T=ids_BT.shape[1], fresh=True)
        logits_BTV, _ = _decode(params, ids_BT, none.sites, step, config, last_only, drop, tap)
        # A refused row leaves no mark without a cache: its logits must not look like an answer.
        return logits_BTV.masked_fill((step.excess_B > 0)[:, None, None], torch.nan), None
    with torch.no_grad():
        cache, step = caches.begin(
            cache,
            count_B,
            T=ids_BT.shape[1],
            fresh=fresh,
            rectangular=rectangular,
            clean=clean,
        )
        logits_BTV, sites = _decode(params, ids_BT, cache.sites, step, config, last_only, drop, tap)
        return logits_BTV, caches.commit(cache, step, sites)


def rotation(rope: spec.Rope, position_BT: Int[Array, "B T"], *, dtype: torch.dtype) -> Rotate:
    """Return the function that turns queries or keys by their positions.

    The step's own positions are tabled once.
    """
    table = partial(
        ops.rope_table,
        theta=rope.theta,
        rotary_dim=rope.rotary_dim,
        dtype=dtype,
        scaling=rope.scaling,
    )
    own = table(position_BT)

    def rotate(x_BTNH: Array, at_BT: Array) -> Array:
        cos_BTR, sin_BTR = own if at_BT is position_BT else table(at_BT)
        return ops.apply_rope(x_BTNH, cos_BTR, sin_BTR)

    return rotate


def _frozen(x: Array) -> nn.Parameter:
    return nn.Parameter(x, requires_grad=False)


def _tree(module: nn.Module) -> dict[str, Any]:
    tree: dict[str, Any] = dict(module.named_parameters(recurse=False))
    for name, child in module.named_children():
        is_list = isinstance(child, nn.ModuleList)
        tree[name] = [_tree(each) for each in child] if is_list else _tree(child)
    return tree


def _decode(
    params: Params,
    ids_BT: Array,
    before: tuple[Any, ...],
    step: Step,
    config: spec.ModelConfig,
    last_only: bool,
    drop: "_Dropout",
    tap: Tap,
) -> tuple[Array, tuple[Any, ...]]:
    x_BTD = _embed(params, ids_BT, step)
    tap("embed", x_BTD)
    ropes = {layer.attention.rope for layer in config.layers}
    rotates = {rope: rotation(rope, step.position_BT, dtype=x_BTD.dtype) for rope in ropes if rope}
    sites = []
    for i, (p, layer) in enumerate(zip(params["layers"], config.layers, strict=True)):
        named = tap if tap is no_tap else _named(tap, i)
        h_BTD = _norm(p["attn_norm"], x_BTD, config.norm)
        named("attn_norm", h_BTD)
        rotate = rotates.get(layer.attention.rope) if layer.attention.rope else None
        a_BTD, site = _attention(p["attn"], h_BTD, before[i], step, layer.attention, rotate, named)
        sites.append(site)
        named("attn", a_BTD)
        x_BTD = x_BTD + drop(a_BTD)
        m_BTD = _mlp(p["mlp"], _norm(p["mlp_norm"], x_BTD, config.norm), layer.mlp)
        named("mlp", m_BTD)
        x_BTD = x_BTD + drop(m_BTD)
        named("resid", x_BTD)
    if last_only:
        x_BTD = _last(x_BTD, step)
    x_BTD = _norm(params["norm"], x_BTD, config.norm)
    tap("norm", x_BTD)
    logits_BTV = _head(params, x_BTD)
    tap("logits", logits_BTV)
    return logits_BTV, tuple(sites)


def _embed(params: Params, ids_BT: Array, step: Step) -> Array:
    # Padding may be any number, also past either table: it reads row 0, and never reaches a real
    # token.
    x_BTD = F.embedding(ids_BT.masked_fill(~step.valid_BT, 0), params["embed"])
    if "position" not in params:
        return x_BTD
    place_BT = step.position_BT.masked_fill(~step.valid_BT, 0)
    return x_BTD + F.embedding(place_BT, params["position"])


def _attention(
    p: Params,
    x_BTD: Array,
    site: Any,
    step: Step,
    a: spec.Attention,
    rotate: Rotate | None,
    tap: Tap,
) -> tuple[Array, Any]:
    q_BTNH, k_BTKH, v_BTKH = (
        _linear(p["qkv"], x_BTD)
        .unflatten(2, (-1, a.head_dim))
        .split((a.num_heads, a.num_kv_heads, a.num_kv_heads), 2)
    )
    rule = Rule(scale=a.head_dim**-0.5, window=a.window, soft_cap=a.soft_cap)
    tap("v", v_BTKH)
    o_BTNH, site = caches.attend(site, step, q_BTNH, k_BTKH, v_BTKH, rule=rule, rotate=rotate)
    return _linear(p["o"], o_BTNH.flatten(2)), site


def _mlp(p: Params, x_BTD: Array, m: spec.Mlp) -> Array:
    act, up_BTF = ops.ACTIVATIONS[m.activation], _linear(p["up"], x_BTD)
    if not m.gated:
        return _linear(p["down"], act(up_BTF))
    gate_BTF, up_BTF = up_BTF.chunk(2, -1)
    return _linear(p["down"], act(gate_BTF) * up_BTF)


def _norm(p: Params, x_BTD: Array, norm: spec.Norm) -> Array:
    if norm.kind == "rms":
        return ops.rms_norm(x_BTD, p["weight"], eps=norm.eps)
    return ops.layer_norm(x_BTD, p["weight"], p["bias"], eps=norm.eps)


def _linear(p: Params, x_BTD: Array) -> Array:
    return F.linear(x_BTD, p["weight"], p.get("bias"))


def _last(x_BTD: Array, step: Step) -> Array:
    if step.start is not None:
        return x_BTD[:, -1:]
    last_B = (step.count_B - 1).clamp(min=0)
    return x_BTD[torch.arange(len(last_B), device=last_B.device), last_B].unsqueeze(1)


def _head(params: Params, x_BTD: Array) -> Array:
    # A model without a head of its own is tied to the embedding.
    return _linear(params.get("head", {"weight": params["embed"]}), x_BTD)


class _Dropout:
    """Zeroes a share of a sub-layer's outputs and scales the rest. Rate 0 does nothing."""

    def __init__(self, rate: float, key: torch.Generator | None):
        self.rate, self.key = rate, key

    def __call__(self, x_BTD: Array) -> Array:
        if self.rate == 0.0:
            return x_BTD
        kept_BTD = torch.empty_like(x_BTD).bernoulli_(1 - self.rate, generator=self.key)
        return x_BTD * kept_BTD / (1 - self.rate)


def _named(tap: Tap, layer: int) -> Tap:
    return lambda name, x: tap(f"layers.{layer}.{name}", x)


def _check_forward(
    ids_BT: Array,
    cache: Cache | None,
    config: spec.ModelConfig,
    training: bool,
    key: torch.Generator | None,
) -> None:
    if ids_BT.ndim != 2 or 0 in ids_BT.shape:
        raise ShapeError(
            f"forward: ids_BT has shape {tuple(ids_BT.shape)}, expected [batch, time] with at "
            "least 1 token."
        )
    if training and key is None:
        raise RequestError(
            "forward: training=True needs a random key for dropout. Pass key=torch.Generator()."
        )
    if cache is None:
        return
    if training:
        raise RequestError(
            "forward: training=True with a cache, whose reuse dropout ends. Pass cache=None, or "
            "training=False."
        )
    if len(cache.sites) != config.num_layers:
        raise ShapeError(
            f"forward: the cache has {len(cache.sites)} sites, the model {config.num_layers} "
            "layers. Was the cache made for another model?"
        )
    if cache.length_B.shape[0] != ids_BT.shape[0]:
        raise ShapeError(
            f"forward: ids_BT has {ids_BT.shape[0]} rows, the cache {cache.length_B.shape[0]}. "
            "Make the cache with that batch."
        )
    if cache.length_B.device != ids_BT.device:
        raise ShapeError(
            f"forward: ids_BT is on {ids_BT.device}, the cache on {cache.length_B.device}. "
            "Make the cache under `with torch.device(...)`."
        )
