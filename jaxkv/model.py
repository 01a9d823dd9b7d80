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
from jaxkv.block import Dropout, Tap
from jaxkv.caches import Cache, Source
from jaxkv.linear import by_rows, linear, norm
from jaxkv.spec import config as spec
from jaxkv.spec.errors import RequestError, ShapeError
from jaxkv.stack import embed, no_tap, run_layers

Params = Mapping[str, Any]


class Linear(nnx.Module):
    """A matrix stored (in, out), and an optional bias."""

    def __init__(self, weight: Array, bias: Array | None = None):
        self.weight = nnx.Param(weight)
        self.bias = None if bias is None else nnx.Param(bias)


class Turned(Linear):
    """A matrix stored (out, in), as checkpoints have it, for `linear.turned`.

    So stand an attention's qkv and a feed-forward's down: 2 to 16 rows read them faster that way,
    and one row no slower.
    """


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


class Cross(nnx.Module):
    """The query and output projections, and the packed one of the encoder's result."""

    def __init__(self, q: Linear, kv: Linear, o: Linear):
        self.q, self.kv, self.o = q, kv, o


class Mlp(nnx.Module):
    """The feed-forward's matrices; gate and up are packed when there is a gate."""

    def __init__(self, up: Linear, down: Linear):
        self.up, self.down = up, down


class Experts(nnx.Module):
    """The router's matrix, and those of Z feed-forwards, in one array or apart, gate and up packed.

    And a shared feed-forward, where there is one.
    """

    def __init__(
        self,
        router: Linear,
        up: Linear | list[Linear],
        down: Linear | list[Linear],
        shared: Mlp | None = None,
    ):
        self.router, self.shared = router, shared
        self.up = nnx.List(up) if isinstance(up, list) else up
        self.down = nnx.List(down) if isinstance(down, list) else down


class Layer(nnx.Module):
    """One block; the post norms and the cross attention are there where the config has them."""

    def __init__(
        self,
        attn_norm: Norm,
        attn: Attention | LatentAttention,
        mlp_norm: Norm,
        mlp: Mlp | Experts,
        attn_post_norm: Norm | None = None,
        mlp_post_norm: Norm | None = None,
        cross_norm: Norm | None = None,
        cross: Cross | None = None,
    ):
        self.attn_norm, self.attn, self.mlp_norm, self.mlp = attn_norm, attn, mlp_norm, mlp
        self.attn_post_norm, self.mlp_post_norm = attn_post_norm, mlp_post_norm
        self.cross_norm, self.cross = cross_norm, cross


class Encoder(nnx.Module):
    """An encoder's own parameters; the table of tokens is the decoder's."""

    def __init__(
        self,
        *,
        position: Array | None,
        layers: list[Layer],
        norm: Norm | None,
        embed_norm: Norm | None,
        relative: Array | None,
    ):
        self.position = None if position is None else nnx.Param(position)
        self.layers = nnx.List(layers)
        self.norm, self.embed_norm = norm, embed_norm
        self.relative = None if relative is None else nnx.Param(relative)


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
        norm: Norm | None,
        head: Linear | None,
        training: bool = False,
        embed_norm: Norm | None = None,
        relative: Array | None = None,
        head_bias: Array | None = None,
        encoder: Encoder | None = None,
        mtp: nnx.Module | None = None,
    ):
        self.config = config
        self.training = training
        self.embed = nnx.Param(embed)
        self.position = None if position is None else nnx.Param(position)
        self.layers = nnx.List(layers)
        self.norm = norm
        self.head = head
        self.embed_norm = embed_norm
        self.relative = None if relative is None else nnx.Param(relative)
        self.head_bias = None if head_bias is None else nnx.Param(head_bias)
        self.encoder, self.mtp = encoder, mtp

    @property
    def dtype(self) -> jnp.dtype:
        """The parameters' dtype, which the cache shares."""
        return self.embed[...].dtype


def params_of(model: Decoder) -> Params:
    """Return the parameters as a nested dict of arrays.

    The form that `forward` takes and `jax.jit` passes quickly.
    """
    return _tree(model)


def _tree(module: nnx.Pytree) -> dict[Any, Any]:
    # What `nnx.to_pure_dict(nnx.state(...))` gives for these modules, which share no parameter, in
    # a tenth of its time: of a call of `generate` with a small model that was a fifth.
    tree: dict[Any, Any] = {}
    for name, value in vars(module).items():
        # The items of a list are named by digits; early flax 0.12 has them as int already.
        key = int(name) if str(name).isdigit() else name
        if isinstance(value, nnx.Param):
            tree[key] = value[...]
        elif isinstance(value, nnx.Pytree) and (below := _tree(value)):
            tree[key] = below
    return tree


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
    source: Source | None = None,
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
        source: What `encoder.encode` gave, for a model with an encoder and no cache; a cache is
            filled with it.
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
    _check_source(cache, config, source)
    tokens = ids_BT.shape[1]
    kept = cache is not None
    fresh = fresh or not kept
    if cache is None:
        cache = _unkept(params, config, ids_BT.shape[0], source)
    cache, step = caches.begin(
        cache, count_B, T=tokens, fresh=fresh, rectangular=rectangular, clean=clean
    )
    x_BTD = tap("embed", embed(params, params, ids_BT, step, config))
    drop = Dropout(config.dropout_rate if training else 0.0, key)
    x_BTD, sites = run_layers(
        params, x_BTD, cache.sites, step, config.layers, config, drop, tap, absorbed=absorbed
    )
    if last_only:
        last_B11 = jnp.maximum(step.count_B - 1, 0)[:, None, None]
        x_BTD = jnp.take_along_axis(x_BTD, last_B11, axis=1)
    if config.final_norm:
        x_BTD = norm(params["norm"], x_BTD, config.norm)
    x_BTD = tap("norm", x_BTD)
    logits_BTV = project(params, x_BTD, config)
    if not kept:
        # A refused row leaves no mark without a cache: its logits must not look like an answer.
        logits_BTV = jnp.where(step.excess_B[:, None, None] > 0, jnp.nan, logits_BTV)
    return tap("logits", logits_BTV), caches.commit(cache, step, sites) if kept else None


def _unkept(params: Params, config: spec.ModelConfig, rows: int, source: Source | None) -> Cache:
    """Return a cache that keeps nothing but the encoder's result."""
    sizes: dict[str, int] = {"batch": rows, "capacity": config.max_positions}
    if source is not None:
        sizes |= {"source_capacity": source[0].k_XHS.shape[2]}
        sizes |= {"beams": rows // source[0].source_length_U.shape[0]}
    cache = caches.init(config, **sizes, dtype=params["embed"].dtype, layout="uncached")
    return cache if source is None else caches.fill(cache, source)


def project(
    params: Params, x_BTD: Float[Array, "B T D"], config: spec.ModelConfig
) -> Float[Array, "B T V"]:
    """Return the logits of the normed stream: what the head gives."""
    if config.scaled_head:
        x_BTD = x_BTD * jnp.asarray(config.width**-0.5, x_BTD.dtype)
    if config.tied_head:
        logits_BTV = by_rows(params["embed"], x_BTD)
        if config.head_bias:
            logits_BTV = logits_BTV + params["head_bias"]
    else:
        logits_BTV = linear(params["head"], x_BTD)
    cap = config.logit_soft_cap
    return logits_BTV if cap is None else ops.soft_cap(logits_BTV, cap=cap)


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
    if len(cache.sites) != config.num_sites:
        raise ShapeError(
            f"forward: the cache has {len(cache.sites)} sites, the model {config.num_sites} "
            "attentions. Was the cache made for another model?"
        )
    if cache.length_B.shape[0] != ids_BT.shape[0]:
        raise ShapeError(
            f"forward: ids_BT has {ids_BT.shape[0]} rows, the cache {cache.length_B.shape[0]}. "
            "Make the cache with that batch."
        )


def _check_source(cache: Cache | None, config: spec.ModelConfig, source: Source | None) -> None:
    if config.encoder is None and source is not None:
        raise RequestError("forward: source is given, but the model has no encoder. Leave it out.")
    if config.encoder is not None and (cache is None) == (source is None):
        given = "neither a cache nor a source is" if cache is None else "a cache and a source are"
        raise RequestError(
            f"forward: {given} given, expected one: the model attends to an encoder's result. Pass "
            "source=encode(...), or `caches.fill` the cache with it."
        )
