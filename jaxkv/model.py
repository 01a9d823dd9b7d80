"""The decoder: NNX modules own the parameters, one function computes with their nested dict.

`forward` reads tokens and a cache and returns logits and the next cache. It knows no layout:
positions come from the step that `caches.begin` planned, and each attention hands its queries, keys
and values to `caches.attend`. Letters: B rows, T new tokens, D width, N query heads, K key/value
heads, H head width, F feed-forward width, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxkv import caches, ops
from jaxkv.block import Dropout, Tap, block, rotation
from jaxkv.caches import Cache, Rotate, Step
from jaxkv.linear import linear, norm
from jaxkv.spec import config as spec
from jaxkv.spec.errors import RequestError, ShapeError

Params = Mapping[str, Any]


class Linear(nnx.Module):
    """A matrix stored (in, out), the order in which XLA reads it fastest for several rows.

    And an optional bias.
    """

    def __init__(self, weight: Array, bias: Array | None = None):
        self.weight = nnx.Param(weight)
        self.bias = None if bias is None else nnx.Param(bias)


class Norm(nnx.Module):
    """A gain, and for the layer norm a bias."""

    def __init__(self, weight: Array, bias: Array | None = None):
        self.weight = nnx.Param(weight)
        self.bias = None if bias is None else nnx.Param(bias)


class Attention(nnx.Module):
    """The packed query, key and value projection, the output projection, norms of q and k."""

    def __init__(
        self, qkv: Linear, o: Linear, q_norm: Norm | None = None, k_norm: Norm | None = None
    ):
        self.qkv, self.o = qkv, o
        self.q_norm, self.k_norm = q_norm, k_norm


class LatentAttention(nnx.Module):
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
        self.q, self.q_down, self.q_norm, self.q_up = q, q_down, q_norm, q_up
        self.kv_down, self.kv_norm = kv_down, kv_norm
        self.k_up, self.v_up, self.o = k_up, v_up, o


class Mlp(nnx.Module):
    """The feed-forward's matrices; gate and up are packed when there is a gate."""

    def __init__(self, up: Linear, down: Linear):
        self.up, self.down = up, down


class Experts(nnx.Module):
    """The router's matrix, and those of Z feed-forwards one after the other, gate and up packed.

    And a shared feed-forward, where there is one.
    """

    def __init__(self, router: Linear, up: Linear, down: Linear, shared: Mlp | None = None):
        self.router, self.up, self.down, self.shared = router, up, down, shared


class Layer(nnx.Module):
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
        self.attn_norm, self.attn, self.mlp_norm, self.mlp = attn_norm, attn, mlp_norm, mlp
        self.attn_post_norm, self.mlp_post_norm = attn_post_norm, mlp_post_norm


class Decoder(nnx.Module):
    """A decoder's parameters and the config that they belong to; made by `weights.from_arrays`.

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
        self.config = config
        self.training = training
        self.embed = nnx.Param(embed)
        self.position = None if position is None else nnx.Param(position)
        self.layers = nnx.List(layers)
        self.norm = norm
        self.head = head

    @property
    def dtype(self) -> jnp.dtype:
        """The parameters' dtype, which the cache shares."""
        return self.embed[...].dtype


def params_of(model: Decoder) -> Params:
    """Return the parameters as a nested dict of arrays.

    The form that `forward` takes and `jax.jit` passes quickly.
    """
    return nnx.to_pure_dict(nnx.state(model, nnx.Param))


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
    key: Array | None = None,
    tap: Tap = no_tap,
    absorbed: bool | None = None,
) -> tuple[Float[Array, "B _ V"], Cache | None]:
    """Return logits of T tokens a row and the cache that holds them too.

    The cache passed in still answers as before.

    Args:
        params: From `params_of`.
        ids_BT: int32 token ids; what stands beyond a row's count does not matter.
        cache: Earlier tokens, or None for a forward that keeps nothing.
        count_B: int32, how many of the T tokens of each row are real.
        config: The model's; static.
        fresh: Promise that every row of the cache is empty (always so without a cache); static.
        rectangular: Promise of one length and one count, see `caches.begin`; static.
        clean: Promise of finite numbers in unused slots, see `caches.begin`; static.
        last_only: Return only each row's logits at its last real token, as T = 1; static.
        training: Dropout on; needs `key`; static.
        key: A random key for dropout.
        tap: Called with the name and value of intermediate results, in the order of the
            computation; what it returns goes on in their place.
        absorbed: The form of attentions to latents: absorbed or expanded, None for the cheaper one
            of each; static.

    Not checked here: that ids lie inside the vocabulary, which depends on data; `generation.plan`
    and `Subject` check it on the host.

    Returns:
        Logits; those beyond a row's count mean nothing, and those of a row without a cache that is
        longer than the model's positions are NaN. And the cache, None without one.

    Raises:
        ShapeError: ids_BT is empty, or the cache was made for another model, dtype or batch.
        RequestError: training without a key or with a cache.
    """
    _check_forward(ids_BT, cache, config, training, key)
    tokens = ids_BT.shape[1]
    kept = cache is not None
    fresh = fresh or not kept
    if cache is None:
        cache = caches.init(
            config,
            batch=ids_BT.shape[0],
            capacity=config.max_positions,
            dtype=params["embed"].dtype,
            layout="uncached",
        )
    cache, step = caches.begin(
        cache, count_B, T=tokens, fresh=fresh, rectangular=rectangular, clean=clean
    )
    x_BTD = tap("embed", _embed(params, ids_BT, step, config))
    drop = Dropout(config.dropout_rate if training else 0.0, key)
    rotates = _rotations(step, config, x_BTD.dtype)
    sites = []
    for i, layer in enumerate(config.layers):
        p, rotate = params["layers"][i], rotates.get(layer.attention.rope)
        x_BTD, site = block(
            p,
            x_BTD,
            cache.sites[i],
            step,
            layer,
            config,
            rotate,
            drop,
            _named(tap, i),
            absorbed=absorbed,
        )
        sites.append(site)
    if last_only:
        last_B11 = jnp.maximum(step.count_B - 1, 0)[:, None, None]
        x_BTD = jnp.take_along_axis(x_BTD, last_B11, axis=1)
    x_BTD = tap("norm", norm(params["norm"], x_BTD, config.norm))
    logits_BTV = _head(params, x_BTD, config)
    if not kept:
        # A refused row leaves no mark without a cache: its logits must not look like an answer.
        logits_BTV = jnp.where(step.excess_B[:, None, None] > 0, jnp.nan, logits_BTV)
    return tap("logits", logits_BTV), caches.commit(cache, step, tuple(sites)) if kept else None


def _embed(params: Params, ids_BT: Array, step: Step, config: spec.ModelConfig) -> Array:
    x_BTD = params["embed"][ids_BT]
    if config.scaled_embedding:
        x_BTD = x_BTD * jnp.asarray(config.width**0.5, x_BTD.dtype)
    if not config.learned_positions:
        return x_BTD
    # Padding beyond the table reads row 0: what it holds never reaches a real token.
    place_BT = jnp.where(step.valid_BT, step.position_BT, 0)
    return x_BTD + params["position"][place_BT]


def _rotations(
    step: Step, config: spec.ModelConfig, dtype: jnp.dtype
) -> dict[spec.Rope | None, Rotate]:
    """Return one rotation for all layers that share their rotary positions."""
    length_B = step.length_B + step.count_B
    ropes = {layer.attention.rope for layer in config.layers if layer.attention.rope}
    return {rope: rotation(rope, step.position_BT, length_B, dtype=dtype) for rope in ropes}


def _head(params: Params, x_BTD: Array, config: spec.ModelConfig) -> Array:
    if config.tied_head:
        logits_BTV = jnp.einsum("BTD,VD->BTV", x_BTD, params["embed"])
    else:
        logits_BTV = linear(params["head"], x_BTD)
    cap = config.logit_soft_cap
    return logits_BTV if cap is None else ops.soft_cap(logits_BTV, cap=cap)


def _named(tap: Tap, layer: int) -> Tap:
    return lambda name, x: tap(f"layers.{layer}.{name}", x)


def _check_forward(
    ids_BT: Array, cache: Cache | None, config: spec.ModelConfig, training: bool, key: Array | None
) -> None:
    if ids_BT.ndim != 2 or 0 in ids_BT.shape:
        raise ShapeError(
            f"forward: ids_BT has shape {ids_BT.shape}, expected [batch, time] with at "
            "least 1 token."
        )
    if training and key is None:
        raise RequestError(
            "forward: training=True needs a random key for dropout. Pass key=jax.random.key(0)."
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
            f"forward: the cache has {len(cache.sites)} sites, the model "
            f"{config.num_layers} layers. "
            "Was the cache made for another model?"
        )
    if cache.length_B.shape[0] != ids_BT.shape[0]:
        raise ShapeError(
            f"forward: ids_BT has {ids_BT.shape[0]} rows, the cache {cache.length_B.shape[0]}. "
            "Make the cache with that batch."
        )
