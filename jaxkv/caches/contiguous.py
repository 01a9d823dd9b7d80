"""The contiguous layout: one key and one value buffer a layer.

Token number p of a row stands in slot p. An attention to latents has no value buffer: its values
are the first `rank` channels of the keys.

Letters: B rows, T new tokens, N query heads, K key/value heads, H head width, S slots = capacity, X
= B*K.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxkv import ops
from jaxkv.caches import slots
from jaxkv.caches.state import Bias, Cache, Expand, Rotate, Step
from jaxkv.pytree import pytree, static
from jaxkv.spec.config import Attention


@pytree
class ContiguousSite:
    """One attention's buffers; slots at and beyond a row's length are never read."""

    k_XHS: Float[Array, "X H S"]
    v_XSH: Float[Array, "X S H"] | None
    rank: int | None = static()


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

    Cost: allocates 2 * batch * K * capacity * H elements; half of them for a latent's keys alone.
    """
    lines, width = batch * attention.num_kv_heads, attention.head_dim
    keys = jnp.zeros((lines, width, capacity), dtype)
    if attention.latent is not None:
        return ContiguousSite(keys, None, attention.latent.rank)
    return ContiguousSite(keys, jnp.zeros((lines, capacity, width), dtype), None)


def check(
    site: ContiguousSite,
    k_BTKH: Float[Array, "B T K _"] | None,
    v_BTKH: Float[Array, "B T K _"] | None,
    *,
    rule: ops.Rule,
) -> None:
    """Refuse what this site was not made for.

    Raises:
        Unsupported: Keys or values are missing, or there are values beside latents.
        ShapeError: Batch, K, H or dtype differ.
    """
    slots.check_new(site.k_XHS, k_BTKH, v_BTKH, rank=site.rank)


def attend(
    site: ContiguousSite,
    step: Step,
    q_BTNH: Float[Array, "B T N _"],
    k_BTKH: Float[Array, "B T K H"],
    v_BTKH: Float[Array, "B T K H"] | None,
    *,
    rule: ops.Rule,
    rotate: Rotate | None = None,
    bias: Bias | None = None,
    expand: Expand | None = None,
) -> tuple[Float[Array, "B T N _"], ContiguousSite]:
    """Return the attention output of T new tokens, and the site with their keys and values written.

    Row b writes its first step.count_B[b] tokens at slots [length_B[b], length_B[b] + count_B[b]);
    query i of row b sees the slots whose position is at most length_B[b] + i. The site passed in is
    not changed.

    Args:
        site: One attention's buffers.
        step: From `begin`: positions, counts, room. The same for all layers.
        q_BTNH: Queries, not rotated.
        k_BTKH: Keys, not rotated. Same dtype as the site.
        v_BTKH: Values; None where they are the first channels of the keys.
        rule: Scale, soft cap, window; static.
        rotate: Applied to queries and keys with their positions; None for learned positions.
        bias: Addend of the scores from query and key positions.
        expand: From latents, with their rotary keys turned, to the keys and values of all heads;
            None to attend to the latents themselves.

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
        k_BTKH, v_BTKH = slots.new_values(k_BTKH, v_BTKH, expand, rank=site.rank)
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
    k_XHS, v_XSH = site.k_XHS, slots.values_of(site.k_XHS, site.v_XSH, rank=site.rank)
    if expand is not None:
        k_XHS, v_XSH = slots.expanded(site.k_XHS, expand, rows=key_BS.shape[0])
    out = slots.attend_slots(
        q_BTNH,
        k_XHS,
        v_XSH,
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
    if values is None:
        return None if site.rank is not None else "has no values beside its keys"
    if values.shape != (lines, slots, width) or values.dtype != keys.dtype:
        return f"has values {values.dtype}{values.shape} beside keys {keys.dtype}{keys.shape}"
    return None


def read(
    site: ContiguousSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K _"], Int[Array, "B S"], Bool[Array, "B S"]]:
    """Return keys, values, the position of each slot, and which slots hold a token.

    A probe for tests and crosscheck.
    """
    key_BS, valid_BS = _places(site, length_B)
    v_XSH = slots.values_of(site.k_XHS, site.v_XSH, rank=site.rank)
    k_BSKH, v_BSKH = slots.by_row(site.k_XHS, v_XSH, rows=length_B.shape[0])
    return k_BSKH, v_BSKH, key_BS, valid_BS


def floor(site: ContiguousSite, cache: Cache) -> Int[Array, " B"]:
    """Return the shortest length that each row can be rolled back to.

    0, nothing is ever evicted.
    """
    return jnp.zeros_like(cache.length_B)


def gather_site(site: ContiguousSite, rows_B: Int[Array, " C"], *, batch: int) -> ContiguousSite:
    """Return the site of the named rows, in their order; rows may repeat."""
    return jax.tree.map(lambda x: slots.gather_rows(x, rows_B, batch=batch), site)


def narrow_site(site: ContiguousSite, *, slots: int) -> ContiguousSite:
    """Return a site of the first slots."""
    values = None if site.v_XSH is None else site.v_XSH[:, :slots]
    return ContiguousSite(site.k_XHS[:, :, :slots], values, site.rank)


def widen_site(site: ContiguousSite, old: ContiguousSite) -> ContiguousSite:
    """Return the old, larger site with its first slots replaced."""
    origin = (0, 0, 0)
    return jax.tree.map(lambda x, wide: jax.lax.dynamic_update_slice(wide, x, origin), site, old)


def scrub_site(
    site: ContiguousSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> ContiguousSite:
    """Return the site with values of 0 in every slot that holds no token."""
    _, valid_BS = _places(site, length_B)
    if site.v_XSH is None:
        k_XSH = slots.scrub_values(site.k_XHS.swapaxes(1, 2), valid_BS)
        return ContiguousSite(k_XSH.swapaxes(1, 2), None, site.rank)
    return ContiguousSite(site.k_XHS, slots.scrub_values(site.v_XSH, valid_BS), None)


def poison_site(
    site: ContiguousSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> ContiguousSite:
    """Return the site with NaN in every slot that holds no token."""
    _, valid_BS = _places(site, length_B)
    return ContiguousSite(*slots.poison(site.k_XHS, site.v_XSH, valid_BS), site.rank)


def _places(site: ContiguousSite, length_B: Array) -> tuple[Array, Array]:
    rows, capacity = length_B.shape[0], site.k_XHS.shape[2]
    key_BS = jnp.broadcast_to(jnp.arange(capacity, dtype=jnp.int32), (rows, capacity))
    return key_BS, key_BS < length_B[:, None]


def _write(site: ContiguousSite, step: Step, k_BTKH: Array, v_BTKH: Array | None) -> ContiguousSite:
    capacity, tokens = site.k_XHS.shape[2], k_BTKH.shape[1]
    buffers = site.k_XHS, site.v_XSH
    new_k, new_v = slots.heads_first(k_BTKH), None if v_BTKH is None else slots.heads_first(v_BTKH)
    keep_X = jnp.repeat(step.count_B > 0, k_BTKH.shape[2])
    if step.fresh:
        # The padding beyond a row's count lands in slots beyond its length, which nothing reads.
        start, room = jnp.zeros((), jnp.int32), min(tokens, capacity)
        new = new_k[:, :room], None if new_v is None else new_v[:, :room]
        return ContiguousSite(
            *slots.write_slice(*buffers, *new, start=start, keep_X=keep_X), site.rank
        )
    if step.rectangular and tokens == 1:
        start = jnp.max(jnp.where(step.count_B > 0, step.length_B, 0))
        return ContiguousSite(
            *slots.write_slice(*buffers, new_k, new_v, start=start, keep_X=keep_X), site.rank
        )
    slot_BT = jnp.where(step.valid_BT, step.position_BT, capacity)
    return ContiguousSite(*slots.write_slots(*buffers, new_k, new_v, slot_BT=slot_BT), site.rank)
