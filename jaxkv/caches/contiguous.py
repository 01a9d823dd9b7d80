"""The contiguous layout: one key and one value buffer a layer.

Token number p of a row stands in slot p.

Letters: B rows, T new tokens, N query heads, K key/value heads, H head width, S slots = capacity, X
= B*K.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxkv import ops
from jaxkv.caches import slots
from jaxkv.caches.state import Bias, Cache, Expand, Rotate, Step
from jaxkv.pytree import pytree
from jaxkv.spec.config import Attention


@pytree
class ContiguousSite:
    """One attention's buffers; slots at and beyond a row's length are never read."""

    k_XHS: Float[Array, "X H S"]
    v_XSH: Float[Array, "X S H"]


def init_site(
    attention: Attention,
    *,
    batch: int,
    capacity: int,
    dtype: jnp.dtype,
    slack: int = 0,
    shared: None = None,
) -> ContiguousSite:
    """Return empty buffers; `slack` is not needed, every length can be rolled back to.

    Cost: allocates 2 * batch * K * capacity * H elements.
    """
    lines, width = batch * attention.num_kv_heads, attention.head_dim
    return ContiguousSite(
        jnp.zeros((lines, width, capacity), dtype), jnp.zeros((lines, capacity, width), dtype)
    )


def check(
    site: ContiguousSite,
    k_BTKH: Float[Array, "B T K _"] | None,
    v_BTKH: Float[Array, "B T K _"] | None,
    *,
    rule: ops.Rule,
) -> None:
    """Refuse what this site was not made for.

    Raises:
        Unsupported: Keys or values are missing.
        ShapeError: Batch, K, H or dtype differ.
    """
    slots.check_new(site.k_XHS, k_BTKH, v_BTKH)


def attend(
    site: ContiguousSite,
    step: Step,
    q_BTNH: Float[Array, "B T N H"],
    k_BTKH: Float[Array, "B T K H"],
    v_BTKH: Float[Array, "B T K H"],
    *,
    rule: ops.Rule,
    rotate: Rotate | None = None,
    bias: Bias | None = None,
    expand: Expand | None = None,
) -> tuple[Float[Array, "B T N H"], ContiguousSite]:
    """Return the attention output of T new tokens, and the site with their keys and values written.

    Row b writes its first step.count_B[b] tokens at slots [length_B[b], length_B[b] + count_B[b]);
    query i of row b sees the slots whose position is at most length_B[b] + i. The site passed in is
    not changed.

    Args:
        site: One attention's buffers.
        step: From `begin`: positions, counts, room. The same for all layers.
        q_BTNH: Queries, not rotated.
        k_BTKH: Keys, not rotated. Same dtype as the site.
        v_BTKH: Values.
        rule: Scale, soft cap, window; static.
        rotate: Applied to queries and keys with their positions; None for learned positions.
        bias: Addend of the scores from query and key positions.
        expand: For latent attention; not offered here yet.

    Raises:
        ShapeError: Batch, K, H or dtype differ from the site (at trace time under jit); see
            `caches.attend`.

    Not checked here: room for the tokens, which depends on data; `generation.plan` checks it on the
    host and `begin` refuses the row.
    Cost: writes 2*B*T*K*H elements; reads the whole buffers, or nothing but the new tokens when the
    step is fresh.
    """
    if rotate is not None:
        q_BTNH, k_BTKH = rotate(q_BTNH, step.position_BT), rotate(k_BTKH, step.position_BT)
    site = _write(site, step, k_BTKH, v_BTKH)
    if step.fresh:
        out = slots.attend_fresh(
            q_BTNH,
            k_BTKH,
            v_BTKH,
            position_BT=step.position_BT,
            valid_BT=step.valid_BT,
            rule=rule,
            bias=bias,
        )
        return out, site
    key_BS, valid_BS = _places(site, step.length_B + step.count_B)
    out = slots.attend_slots(
        q_BTNH,
        site.k_XHS,
        site.v_XSH,
        query_BT=step.position_BT,
        key_BS=key_BS,
        valid_BS=valid_BS,
        rule=rule,
        clean=step.clean,
        bias=bias,
    )
    return out, site


def fault(site: ContiguousSite, cache: Cache) -> str | None:
    """Return what of the site does not fit its cache, or None: slots, and values beside keys."""
    keys, values = site.k_XHS, site.v_XSH
    lines, width, slots = keys.shape
    if slots != cache.capacity:
        return f"has {slots} slots, the cache has capacity {cache.capacity}"
    if values.shape != (lines, slots, width) or values.dtype != keys.dtype:
        return f"has values {values.dtype}{values.shape} beside keys {keys.dtype}{keys.shape}"
    return None


def read(
    site: ContiguousSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K H"], Int[Array, "B S"], Bool[Array, "B S"]]:
    """Return keys, values, the position of each slot, and which slots hold a token.

    A probe for tests and crosscheck.
    """
    key_BS, valid_BS = _places(site, length_B)
    k_BSKH, v_BSKH = slots.by_row(site.k_XHS, site.v_XSH, rows=length_B.shape[0])
    return k_BSKH, v_BSKH, key_BS, valid_BS


def floor(site: ContiguousSite, cache: Cache) -> Int[Array, " B"]:
    """Return the shortest length that each row can be rolled back to.

    0, nothing is ever evicted.
    """
    return jnp.zeros_like(cache.length_B)


def gather_site(site: ContiguousSite, rows_B: Int[Array, " C"], *, batch: int) -> ContiguousSite:
    """Return the site of the named rows, in their order; rows may repeat."""
    keys = slots.gather_rows(site.k_XHS, rows_B, batch=batch)
    return ContiguousSite(keys, slots.gather_rows(site.v_XSH, rows_B, batch=batch))


def narrow_site(site: ContiguousSite, *, slots: int) -> ContiguousSite:
    """Return a site of the first slots."""
    return ContiguousSite(site.k_XHS[:, :, :slots], site.v_XSH[:, :slots])


def widen_site(site: ContiguousSite, old: ContiguousSite) -> ContiguousSite:
    """Return the old, larger site with its first slots replaced."""
    origin = (0, 0, 0)
    return ContiguousSite(
        jax.lax.dynamic_update_slice(old.k_XHS, site.k_XHS, origin),
        jax.lax.dynamic_update_slice(old.v_XSH, site.v_XSH, origin),
    )


def scrub_site(
    site: ContiguousSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> ContiguousSite:
    """Return the site with values of 0 in every slot that holds no token."""
    _, valid_BS = _places(site, length_B)
    return ContiguousSite(site.k_XHS, slots.scrub_values(site.v_XSH, valid_BS))


def poison_site(
    site: ContiguousSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> ContiguousSite:
    """Return the site with NaN in every slot that holds no token."""
    _, valid_BS = _places(site, length_B)
    return ContiguousSite(*slots.poison(site.k_XHS, site.v_XSH, valid_BS))


def _places(site: ContiguousSite, length_B: Array) -> tuple[Array, Array]:
    rows, capacity = length_B.shape[0], site.k_XHS.shape[2]
    key_BS = jnp.broadcast_to(jnp.arange(capacity, dtype=jnp.int32), (rows, capacity))
    return key_BS, key_BS < length_B[:, None]


def _write(site: ContiguousSite, step: Step, k_BTKH: Array, v_BTKH: Array) -> ContiguousSite:
    capacity, tokens = site.k_XHS.shape[2], k_BTKH.shape[1]
    new_k, new_v = slots.heads_first(k_BTKH), slots.heads_first(v_BTKH)
    keep_X = jnp.repeat(step.count_B > 0, k_BTKH.shape[2])
    if step.fresh:
        # The padding beyond a row's count lands in slots beyond its length, which nothing reads.
        start, room = jnp.zeros((), jnp.int32), min(tokens, capacity)
        return ContiguousSite(
            *slots.write_slice(
                site.k_XHS, site.v_XSH, new_k[:, :room], new_v[:, :room], start=start, keep_X=keep_X
            )
        )
    if step.rectangular and tokens == 1:
        start = jnp.max(jnp.where(step.count_B > 0, step.length_B, 0))
        return ContiguousSite(
            *slots.write_slice(site.k_XHS, site.v_XSH, new_k, new_v, start=start, keep_X=keep_X)
        )
    slot_BT = jnp.where(step.valid_BT, step.position_BT, capacity)
    return ContiguousSite(*slots.write_slots(site.k_XHS, site.v_XSH, new_k, new_v, slot_BT=slot_BT))
