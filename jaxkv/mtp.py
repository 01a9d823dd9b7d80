"""DeepSeek-V3's module that predicts one token further, as a draft for the model that it is of.

At place i it reads the model's normed stream h_i beside the embedding of the token after it,

    x_i = M [norm(embed(t_{i + 1})); norm(h_i)],

runs one layer over them, and its own normed result goes through the model's head: the token at
i + 2. Further ones come from the same module: its result stands for the stream that the model has
not made yet. Letters: B rows, T tokens, K drafted tokens, D width, V vocabulary.

Source: DeepSeek-V3 (arXiv:2412.19437), section 2.2; that h is normed, and the order of the two
halves: transformers 5.24, `modeling_layers.MtpLayer` and `candidate_generator`.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxkv import caches
from jaxkv.block import Dropout
from jaxkv.caches import Cache
from jaxkv.drafts import Drafts, draw_drafts
from jaxkv.linear import linear, norm
from jaxkv.loop import Terms, Text
from jaxkv.model import Layer, Linear, Norm, Params, project
from jaxkv.pytree import pytree
from jaxkv.spec.config import ModelConfig
from jaxkv.stack import no_tap, run_layers


class Mtp(nnx.Module):
    """The module's parameters: norms, a product of two streams, one layer."""

    def __init__(
        self, embed_norm: Norm, stream_norm: Norm, merge: Linear, layers: list[Layer], norm: Norm
    ):
        self.embed_norm, self.stream_norm, self.norm = embed_norm, stream_norm, norm
        self.merge, self.layers = merge, nnx.List(layers)


@pytree
class MtpDraft:
    """What the module has read, and what of the model's stream it has not.

    Attributes:
        cache: Of its one layer; slot i holds what it read at place i.
        stream_BTD: The model's stream at the places from `cache.length_B` on, not normed yet; at
            those whose next token the text lacks it does not matter.
    """

    cache: Cache
    stream_BTD: Float[Array, "B T D"]


class Stream:
    """A tap that keeps the model's stream behind its last layer, not normed yet."""

    def __init__(self, config: ModelConfig):
        self.name = f"layers.{config.num_layers - 1}.resid"
        self.x_BTD: Array | None = None

    def __call__(self, name: str, x: Array) -> Array:
        """Return x as it is."""
        if name == self.name:
            self.x_BTD = x
        return x

    @property
    def heard_BTD(self) -> Float[Array, "B T D"]:
        """What the last forward left."""
        assert self.x_BTD is not None  # a forward went before
        return self.x_BTD


def stack_of(config: ModelConfig) -> ModelConfig:
    """Return the config of the module's one layer, for its cache."""
    return replace(config, layers=config.layers[-1:], draft_layers=0, has_mtp=False)


def predict(
    params: Params,
    stream_BTD: Float[Array, "B T D"],
    ids_BT: Int[Array, "B T"],
    cache: Cache,
    count_B: Int[Array, " B"],
    *,
    config: ModelConfig,
    fresh: bool = False,
    rectangular: bool = False,
) -> tuple[Float[Array, "B T D"], Cache]:
    """Return the module's own stream, normed as the head takes it, and the cache with T places.

    Args:
        params: The model's, from `params_of`.
        stream_BTD: The model's normed stream at T places, or the module's own of the place before.
        ids_BT: int32, the token after each place.
        cache: From `caches.init(stack_of(config))`.
        count_B: int32, how many of the T places of each row are real.
        config: The model's; static, as is what follows.
        fresh: See `forward`.
        rectangular: See `forward`.
    """
    p, own = params["mtp"], stack_of(config)
    promises = {"fresh": fresh, "rectangular": rectangular, "clean": True}
    cache, step = caches.begin(cache, count_B, T=ids_BT.shape[1], **promises)
    token_BTD = norm(p["embed_norm"], params["embed"][ids_BT], config.norm)
    said_BTD = norm(p["stream_norm"], stream_BTD, config.norm)
    x_BTD = linear(p["merge"], jnp.concatenate([token_BTD, said_BTD], axis=-1))
    x_BTD, sites = run_layers(
        p, x_BTD, cache.sites, step, own.layers, own, Dropout(0.0, None), no_tap
    )
    return norm(p["norm"], x_BTD, config.norm), caches.commit(cache, step, sites)


def open_mtp(
    params: Params,
    stream_BTD: Float[Array, "B T D"],
    ids_BT: Int[Array, "B T"],
    cache: Cache,
    count_B: Int[Array, " B"],
    *,
    config: ModelConfig,
    rectangular: bool,
) -> MtpDraft:
    """Return the module once it has read the prompts, all places but their last.

    Args:
        params: The model's.
        stream_BTD: Behind its last layer, of the prompts, as `Stream` keeps it.
        ids_BT: int32 prompts from the left.
        cache: Empty.
        count_B: int32, tokens of each; 0 for a row that wants no drafts.
        config: Static, as is what follows.
        rectangular: Whether all rows have one count.
    """
    read_B = jnp.maximum(count_B - 1, 0)
    after_BT, said_BTD = jnp.roll(ids_BT, -1, axis=1), norm(params["norm"], stream_BTD, config.norm)
    promises = {"fresh": True, "rectangular": rectangular}
    _, cache = predict(params, said_BTD, after_BT, cache, read_B, config=config, **promises)
    last_B1D = jnp.take_along_axis(stream_BTD, read_B[:, None, None], axis=1)
    return MtpDraft(cache, last_B1D)


def draft_mtp(
    params: Params,
    mtp: MtpDraft,
    text: Text,
    terms: Terms,
    want_B: Int[Array, " B"],
    *,
    config: ModelConfig,
    k: int,
) -> tuple[Drafts, MtpDraft]:
    """Return the module's drafts, one after the other, and the module without them.

    First it reads the places whose stream the model has made since; what it reads of its own
    results is rolled back, since the model will make those streams.

    Args:
        params: The model's.
        mtp: What it has read; K + 1 places of the stream.
        text: What it continues.
        terms: Drafts are drawn as the rows' tokens are, with random numbers of their own.
        want_B: int32, drafts of each row; one that wants none is not forwarded.
        config: Static.
        k: K, static.

    Cost: as many steps of the module as the row that wants most, one at least.
    """
    slots, held_B = text.tokens_BS.shape[1], mtp.cache.length_B
    count_B = jnp.where(want_B > 0, text.length_B - 1 - held_B, 0)
    place_BT = held_B[:, None] + 1 + jnp.arange(k + 1, dtype=jnp.int32)
    ids_BT = jnp.take_along_axis(text.tokens_BS, jnp.minimum(place_BT, slots - 1), axis=1)
    said_BTD = norm(params["norm"], mtp.stream_BTD, config.norm)
    said_BTD, read = predict(params, said_BTD, ids_BT, mtp.cache, count_B, config=config)
    last_B11 = jnp.maximum(count_B - 1, 0)[:, None, None]
    said_B1D = jnp.take_along_axis(said_BTD, last_B11, axis=1)
    said = project(params, said_B1D, config)
    row_B = jnp.arange(want_B.shape[0], dtype=jnp.int32)

    def put(tokens_BS: Array, next_B: Array, at: Any) -> Array:
        to_B = jnp.where(want_B > at, text.length_B + at, slots)
        return tokens_BS.at[row_B, to_B].set(next_B, mode="drop")

    next_B, q_BV = draw_drafts(said, terms, text.tokens_BS, text.length_B, text.new_B)
    tokens_BS = put(text.tokens_BS, next_B, 0)
    q_BKV = None
    if q_BV is not None:
        q_BKV = jnp.zeros((len(q_BV), k, q_BV.shape[1]), q_BV.dtype).at[:, 0].set(q_BV)

    def body(state: tuple[Any, ...]) -> tuple[Any, ...]:
        at, tokens_BS, q_BKV, said_B1D, cache = state
        place_B1 = jnp.minimum(text.length_B + at, slots)[:, None] - 1
        last_B1 = jnp.take_along_axis(tokens_BS, place_B1, axis=1)
        count_B = (want_B > at).astype(jnp.int32)
        said_B1D, cache = predict(params, said_B1D, last_B1, cache, count_B, config=config)
        said = project(params, said_B1D, config)
        known = tokens_BS, text.length_B + at, text.new_B + at
        next_B, q_BV = draw_drafts(said, terms, *known)
        if q_BV is not None:
            q_BKV = jax.lax.dynamic_update_slice_in_dim(q_BKV, q_BV[:, None], at, axis=1)
        return at + 1, put(tokens_BS, next_B, at), q_BKV, said_B1D, cache

    first = jnp.ones((), jnp.int32), tokens_BS, q_BKV, said_B1D, read
    _, tokens_BS, q_BKV, _, after = jax.lax.while_loop(
        lambda state: state[0] < jnp.max(want_B), body, first
    )
    after = caches.rollback(after, held_B + count_B)
    ahead_BK = text.length_B[:, None] + jnp.arange(k, dtype=jnp.int32)
    ids_BK = jnp.take_along_axis(tokens_BS, jnp.minimum(ahead_BK, slots - 1), axis=1)
    return Drafts(ids_BK, want_B, q_BKV), replace(mtp, cache=after)
