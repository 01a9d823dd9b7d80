"""The decoder: modules own the parameters, one function computes with their nested dict.

`forward` reads tokens and a cache and returns logits and the next cache. It knows no layout:
positions come from the step that `caches.begin` planned, and each attention hands its queries, keys
and values to `caches.attend`. Letters: B rows, T new tokens, D width, N query heads, K key/value
heads, H head width, F feed-forward width, V vocabulary.
"""

import math
from collections.abc import Mapping
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
from torchkv.block import Dropout, Tap, block, rotation
from torchkv.caches import Cache, Rotate, Step
from torchkv.linear import linear, norm

Params = Mapping[str, Any]


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
    """The packed query, key and value projection, the output projection, norms of q and k."""

    def __init__(
        self, qkv: Linear, o: Linear, q_norm: Norm | None = None, k_norm: Norm | None = None
    ):
        super().__init__()
        self.qkv, self.o = qkv, o
        self.q_norm, self.k_norm = q_norm, k_norm


class LatentAttention(nn.Module):
    """The products down to the latents and up from them, their norms, the output projection.

    Those up are one matrix a head, (N, H, C), to keys and to values.
    """

    def __init__(
        self,
        q: Linear | None,
        kv_down: Linear,
        kv_norm: Norm,
        k_up: Linear,
        v_up: Linear,
        o: Linear,
        q_down: Linear | None = None,
        q_norm: Norm | None = None,
        q_up: Linear | None = None,
    ):
        super().__init__()
        self.q, self.q_down, self.q_norm, self.q_up = q, q_down, q_norm, q_up
        self.kv_down, self.kv_norm = kv_down, kv_norm
        self.k_up, self.v_up, self.o = k_up, v_up, o


class Mlp(nn.Module):
    """The feed-forward's matrices; gate and up are packed when there is a gate."""

    def __init__(self, up: Linear, down: Linear):
        super().__init__()
        self.up, self.down = up, down


class Experts(nn.Module):
    """The router's matrix, and those of Z feed-forwards one after the other, gate and up packed.

    And a shared feed-forward, where there is one.
    """

    def __init__(self, router: Linear, up: Linear, down: Linear, shared: Mlp | None = None):
        super().__init__()
        self.router, self.up, self.down, self.shared = router, up, down, shared


class Layer(nn.Module):
    """One block; the post norms stand behind attention and feed-forward, where there are any."""

    def __init__(
        self,
        attn_norm: Norm,
        attn: Attention | LatentAttention,
        mlp_norm: Norm,
        mlp: Mlp | Experts,
        attn_post_norm: Norm | None = None,
        mlp_post_norm: Norm | None = None,
    ):
        super().__init__()
        self.attn_norm, self.attn, self.mlp_norm, self.mlp = attn_norm, attn, mlp_norm, mlp
        self.attn_post_norm, self.mlp_post_norm = attn_post_norm, mlp_post_norm


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


def no_tap(name: str, x: Array) -> Array:
    """Return x as it is."""
    return x


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
    absorbed: bool | None = None,
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
            computation; what it returns goes on in their place.
        absorbed: The form of attentions to latents: absorbed or expanded, None for the cheaper one
            of each.

    Returns:
        Logits; those beyond a row's count mean nothing, and those of a row without a cache that is
        longer than the model's positions are NaN. And the cache, None without one.

    Raises:
        ShapeError: ids_BT is empty, or the cache was made for another model, dtype or batch.
        RequestError: training without a key or with a cache, or the cache was consumed.
    """
    _check_forward(ids_BT, cache, config, training, key)
    drop = Dropout(config.dropout_rate if training else 0.0, key)
    decode = partial(
        _decode,
        params,
        ids_BT,
        config=config,
        last_only=last_only,
        drop=drop,
        tap=tap,
        absorbed=absorbed,
    )
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
        logits_BTV, _ = decode(none.sites, step)
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
        logits_BTV, sites = decode(cache.sites, step)
        return logits_BTV, caches.commit(cache, step, sites)


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
    *,
    config: spec.ModelConfig,
    last_only: bool,
    drop: Dropout,
    tap: Tap,
    absorbed: bool | None,
) -> tuple[Array, tuple[Any, ...]]:
    x_BTD = tap("embed", _embed(params, ids_BT, step, config))
    rotates = _rotations(step, config, x_BTD.dtype)
    sites = []
    for i, (p, layer) in enumerate(zip(params["layers"], config.layers, strict=True)):
        named = tap if tap is no_tap else _named(tap, i)
        rotate = rotates.get(layer.attention.rope)
        x_BTD, site = block(
            p, x_BTD, before[i], step, layer, config, rotate, drop, named, absorbed=absorbed
        )
        sites.append(site)
    if last_only:
        x_BTD = _last(x_BTD, step)
    x_BTD = tap("norm", norm(params["norm"], x_BTD, config.norm))
    logits_BTV = _head(params, x_BTD, config)
    return tap("logits", logits_BTV), tuple(sites)


def _rotations(
    step: Step, config: spec.ModelConfig, dtype: torch.dtype
) -> dict[spec.Rope | None, Rotate]:
    """Return one rotation for all layers that share their rotary positions."""
    length_B = step.length_B + step.count_B
    ropes = {layer.attention.rope for layer in config.layers if layer.attention.rope}
    return {rope: rotation(rope, step.position_BT, length_B, dtype=dtype) for rope in ropes}


def _embed(params: Params, ids_BT: Array, step: Step, config: spec.ModelConfig) -> Array:
    # Padding may be any number, also past either table: it reads row 0, and never reaches a real
    # token.
    x_BTD = F.embedding(ids_BT.masked_fill(~step.valid_BT, 0), params["embed"])
    if config.scaled_embedding:
        x_BTD = x_BTD * x_BTD.new_tensor(math.sqrt(config.width))
    if "position" not in params:
        return x_BTD
    place_BT = step.position_BT.masked_fill(~step.valid_BT, 0)
    return x_BTD + F.embedding(place_BT, params["position"])


def _last(x_BTD: Array, step: Step) -> Array:
    if step.start is not None:
        return x_BTD[:, -1:]
    last_B = (step.count_B - 1).clamp(min=0)
    return x_BTD[torch.arange(len(last_B), device=last_B.device), last_B].unsqueeze(1)


def _head(params: Params, x_BTD: Array, config: spec.ModelConfig) -> Array:
    # A model without a head of its own is tied to the embedding.
    logits_BTV = linear(params.get("head", {"weight": params["embed"]}), x_BTD)
    cap = config.logit_soft_cap
    return logits_BTV if cap is None else ops.soft_cap(logits_BTV, cap=cap)


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
