"""A small Linen decoder whose cache is a collection of variables, written as one usually does.

Learned positions, several heads, and the cache of every attention as fixed buffers that
`dynamic_update_slice` writes. `decode` switches the cache on; a row's padding is not real.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp


class Attention(nn.Module):
    width: int
    heads: int
    capacity: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x, mask, *, decode):
        batch, length, _ = x.shape
        head_dim = 9
        features = (self.heads, head_dim)
        query = nn.DenseGeneral(features, param_dtype=self.dtype, name="query_proj")(x)
        key = nn.DenseGeneral(features, param_dtype=self.dtype, name="key_proj")(x)
        value = nn.DenseGeneral(features, param_dtype=self.dtype, name="value_proj")(x)
        if decode:
            shape = (batch, self.capacity, self.heads, head_dim)
            cached_key = self.variable("cache", "key", jnp.zeros, shape, self.dtype)
            cached_value = self.variable("cache", "value", jnp.zeros, shape, self.dtype)
            index = self.variable("cache", "index", lambda: jnp.zeros((), jnp.int32))
            start = index.value
            key = jax.lax.dynamic_update_slice_in_dim(cached_key.value, key, start, axis=1)
            value = jax.lax.dynamic_update_slice_in_dim(cached_value.value, value, start, axis=1)
            cached_key.value, cached_value.value = key, value
            index.value = index.value + length
        scores = jnp.einsum("bthd,bshd->bhts", query, key) / jnp.sqrt(head_dim)
        scores = jnp.where(mask[:, None], scores, jnp.finfo(scores.dtype).min)
        out = jnp.einsum("bhts,bshd->bthd", nn.softmax(scores), value)
        return nn.DenseGeneral(self.width, axis=(-2, -1), param_dtype=self.dtype, name="out_proj")(
            out
        )


class Decoder(nn.Module):
    vocab: int = 53
    width: int = 32
    heads: int = 3
    layers: int = 2
    longest: int = 64
    capacity: int = 32
    dtype: jnp.dtype = jnp.float64

    @nn.compact
    def __call__(self, ids, real=None, position=None, visible=None, *, decode=False):
        """Return logits [batch, tokens, vocab].

        real: bool [batch, tokens], False for padding. position: int [batch, tokens], instead of
        counting the real tokens. visible: bool [batch, tokens, all tokens], instead of causal.
        """
        batch, length = ids.shape
        slots = self.capacity if decode else length
        real = jnp.ones((batch, length), bool) if real is None else real
        past = jnp.zeros((), jnp.int32)
        seen = jnp.zeros((batch, slots), bool)
        if decode:
            filled = self.variable("cache", "filled", lambda: jnp.zeros((), jnp.int32))
            known = self.variable("cache", "real", jnp.zeros, (batch, slots), bool)
            past, seen = filled.value, known.value
        if position is None:
            position = seen.sum(axis=1, keepdims=True) + jnp.cumsum(real, axis=1) - 1
            position = jnp.maximum(position, 0)
        seen = jax.lax.dynamic_update_slice_in_dim(seen, real, past, axis=1)
        if decode:
            filled.value, known.value = past + length, seen
        queries = past + jnp.arange(length)[:, None]
        mask = jnp.arange(slots)[None, :] <= queries
        if visible is not None:
            mask = visible
        mask = mask & seen[:, None, :]
        x = nn.Embed(self.vocab, self.width, param_dtype=self.dtype, name="embed")(ids)
        x = x + nn.Embed(self.longest, self.width, param_dtype=self.dtype, name="wpe")(position)
        for layer in range(self.layers):
            h = nn.LayerNorm(param_dtype=self.dtype, name=f"norm_{layer}")(x)
            attention = Attention(
                self.width, self.heads, self.capacity, self.dtype, name=f"attention_{layer}"
            )
            x = x + attention(h, mask, decode=decode)
            h = nn.LayerNorm(param_dtype=self.dtype, name=f"feed_norm_{layer}")(x)
            h = nn.gelu(nn.Dense(48, param_dtype=self.dtype, name=f"up_{layer}")(h))
            x = x + nn.Dense(self.width, param_dtype=self.dtype, name=f"down_{layer}")(h)
        x = nn.LayerNorm(param_dtype=self.dtype, name="norm")(x)
        return nn.Dense(self.vocab, param_dtype=self.dtype, name="head")(x)


def room(cache, length):
    """Refuse tokens for which there is no room: inside the compiled step nothing can raise."""
    filled, slots = int(cache["filled"]), cache["real"].shape[1]
    if filled + length > slots:
        raise ValueError(f"{filled + length} tokens do not fit into a cache of {slots}")


def crop(cache, length):
    """Return the cache with only its first tokens."""

    def shorten(path, leaf):
        name = path[-1].key
        if name in ("index", "filled"):
            return jnp.asarray(length, jnp.int32)
        if name == "real":
            return leaf & (jnp.arange(leaf.shape[1]) < length)
        return leaf

    return jax.tree_util.tree_map_with_path(shorten, cache)


def reorder(cache, rows):
    """Return the cache with its rows taken in another order."""

    def pick(path, leaf):
        name = path[-1].key
        if name in ("index", "filled"):
            return leaf
        return leaf[rows]

    return jax.tree_util.tree_map_with_path(pick, cache)
