"""The cross layout: keys and values of the encoder's result, computed once a request.

No step writes to it. It has a length of its own a source, and the tokens of the decoder's rows are
none of its business. A cache of B rows may hold fewer sources: then B/U rows, one after the other
(the beams of one request), share each.

Letters: B rows of the decoder, U sources, T new tokens, S source slots, N query heads, K key/value
heads, H head width, X = U*K.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxkv import ops
from jaxkv.caches import slots
from jaxkv.caches.state import Bias, Cache, Expand, Rotate, Step
from jaxkv.pytree import pytree
from jaxkv.spec.config import Attention
from jaxkv.spec.errors import ShapeError, Unsupported


@pytree
class CrossSite:
    """One cross attention's buffers; slots at and beyond a source's length are never read."""

    k_XHS: Float[Array, "X H S"]
    v_XSH: Float[Array, "X S H"]
    source_length_U: Int[Array, " U"]


Source = tuple[CrossSite, ...]
"""What an encoder leaves: a site for each layer of the decoder, as wide as the text encoded."""


def init_site(attention: Attention, *, sources: int, capacity: int, dtype: jnp.dtype) -> CrossSite:
    """Return empty buffers: until `fill_site`, every query sees nothing and gets zeros.

    Cost: allocates 2 * sources * K * capacity * H elements.
    """
    lines, width = sources * attention.num_kv_heads, attention.head_dim
    return CrossSite(
        jnp.zeros((lines, width, capacity), dtype),
        jnp.zeros((lines, capacity, width), dtype),
        jnp.zeros((sources,), jnp.int32),
    )


def hold(
    k_USKH: Float[Array, "U S K H"],
    v_USKH: Float[Array, "U S K H"],
    source_length_U: Int[Array, " U"],
) -> CrossSite:
    """Return a site of just these keys and values; 0 stands beyond each source's length."""
    place_S = jnp.arange(k_USKH.shape[1], dtype=jnp.int32)
    real_US11 = (place_S < source_length_U[:, None])[:, :, None, None]
    k_XSH, v_XSH = (slots.heads_first(jnp.where(real_US11, x, 0)) for x in (k_USKH, v_USKH))
    # A copy: no array may stand in a cache twice, and every layer is given this one.
    return CrossSite(k_XSH.swapaxes(1, 2), v_XSH, jnp.copy(source_length_U.astype(jnp.int32)))


def fill_site(site: CrossSite, source: CrossSite) -> CrossSite:
    """Return the site with a source's keys and values in its first slots.

    Raises:
        ShapeError: The source has more tokens than slots, or another number of texts, another K, H
            or dtype.

    Cost: writes the source's elements, none where it is as wide as the site.
    """
    slots_given, slots_held = source.k_XHS.shape[2], site.k_XHS.shape[2]
    if slots_given > slots_held:
        raise ShapeError(
            f"fill: source has {slots_given} slots, the cache {slots_held} for it. Make the cache "
            f"with source_capacity={slots_given}."
        )
    for name, given, held in (
        ("texts", source.source_length_U.shape[0], site.source_length_U.shape[0]),
        ("lines and widths", _form(source), _form(site)),
    ):
        if given != held:
            raise ShapeError(
                f"fill: source has {name} {given}, the cache {held}. Was the cache made for "
                "another model, dtype or batch?"
            )
    if slots_given == slots_held:
        return source
    origin = (0, 0, 0)
    return CrossSite(
        jax.lax.dynamic_update_slice(site.k_XHS, source.k_XHS, origin),
        jax.lax.dynamic_update_slice(site.v_XSH, source.v_XSH, origin),
        source.source_length_U,
    )


def check(
    site: CrossSite,
    k_BTKH: Float[Array, "B T K _"] | None,
    v_BTKH: Float[Array, "B T K _"] | None,
    *,
    rule: ops.Rule,
) -> None:
    """Refuse what this site was not made for.

    Raises:
        Unsupported: Keys or values are given, or the rule hides some of the source.
    """
    if k_BTKH is not None or v_BTKH is not None:
        raise Unsupported(
            "attend: k_BTKH or v_BTKH is given, expected None for both: cross-attention reads what "
            "`fill` stored. Leave them out."
        )
    if rule.causal or rule.window is not None:
        raise Unsupported(
            f"attend: rule has causal={rule.causal} and window={rule.window}, expected False and "
            "None: every query sees the whole source. Pass Rule(causal=False)."
        )


def attend(
    site: CrossSite,
    step: Step,
    q_BTNH: Float[Array, "B T N H"],
    k_BTKH: None,
    v_BTKH: None,
    *,
    rule: ops.Rule,
    rotate: Rotate | None = None,
    bias: Bias | None = None,
    expand: Expand | None = None,
) -> tuple[Float[Array, "B T N H"], CrossSite]:
    """Return the attention output of T new tokens over their sources, and the site as it was.

    A query sees all tokens of its row's source, an empty one gives zeros.

    Args:
        site: One cross attention's buffers.
        step: From `begin`; only its promise of clean slots counts here.
        q_BTNH: Queries.
        k_BTKH: None, as are the values: nothing is written.
        v_BTKH: None.
        rule: Scale and soft cap; not causal, no window; static.
        rotate: None: the decoder's positions and the source's are not comparable.
        bias: None, for the same reason.
        expand: None.

    Raises:
        ShapeError: Rows, heads or widths do not fit the site.
        Unsupported: A closure over positions is given.

    Cost: reads the whole buffers.
    """
    if rotate is not None or bias is not None or expand is not None:
        raise Unsupported("attend: rotate, bias or expand is given for cross-attention. Pass None.")
    sources, (rows, tokens, heads, width) = site.source_length_U.shape[0], q_BTNH.shape
    kv_heads = site.k_XHS.shape[0] // sources
    if rows % sources or heads % kv_heads or width != site.k_XHS.shape[1]:
        raise ShapeError(
            f"attend: q_BTNH has (B, N, H) {(rows, heads, width)}, the site {sources} sources with "
            f"(K, H) {(kv_heads, site.k_XHS.shape[1])}. Was the cache made for another model?"
        )
    # The rows of one source are so many more queries of it.
    shared = rows // sources * tokens
    key_US, valid_US = _places(site)
    o_UMNH = slots.attend_slots(
        q_BTNH.reshape(sources, shared, heads, width),
        site.k_XHS,
        site.v_XSH,
        query_BT=jnp.zeros((sources, shared), jnp.int32),
        key_BS=key_US,
        valid_BS=valid_US,
        rule=rule,
        clean=step.clean,
    )
    return o_UMNH.reshape(q_BTNH.shape), site


def fault(site: CrossSite, cache: Cache) -> str | None:
    """Return what of the site does not fit its cache, or None: whole groups of rows a source."""
    rows, sources = cache.length_B.shape[0], site.source_length_U.shape[0]
    return f"has {sources} sources, the cache {rows} rows" if rows % sources else None


def read(
    site: CrossSite, shared: object, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K H"], Int[Array, "B S"], Bool[Array, "B S"]]:
    """Return keys, values, the place of each slot in the source, and which slots hold a token.

    Of each row its source's; the decoder's lengths are ignored.
    """
    key_US, valid_US = _places(site)
    sources = site.source_length_U.shape[0]
    found = (*slots.by_row(site.k_XHS, site.v_XSH, rows=sources), key_US, valid_US)
    times = length_B.shape[0] // sources
    k, v, key, valid = (jnp.repeat(x, times, axis=0) for x in found)
    return k, v, key, valid


def floor(site: CrossSite, cache: Cache) -> Int[Array, " B"]:
    """Return the shortest length that each row can be rolled back to.

    0: the source does not depend on the decoder's tokens.
    """
    return jnp.zeros_like(cache.length_B)


def stray_rows(site: CrossSite, rows_B: Int[Array, " C"], *, batch: int) -> Int[Array, " C"]:
    """Return 1 for each row that would leave the rows that share its source, else 0.

    0 for all where each row has a source of its own.

    Raises:
        ShapeError: Rows share sources, and another number of rows is asked for.
    """
    sources = site.source_length_U.shape[0]
    if sources == batch:
        return jnp.zeros_like(rows_B)
    if rows_B.shape[0] != batch:
        raise ShapeError(
            f"gather: {rows_B.shape[0]} rows, expected {batch}: {batch // sources} rows share each "
            "source. Make the cache with beams=1."
        )
    group_B = jnp.arange(batch, dtype=jnp.int32) // (batch // sources)
    return (rows_B // (batch // sources) != group_B).astype(jnp.int32)


def gather_site(site: CrossSite, rows_B: Int[Array, " C"], *, batch: int) -> CrossSite:
    """Return the site of the named rows, in their order; rows may repeat.

    Rows that share a source stay with it, so a beam's reordering moves nothing here.
    """
    if site.source_length_U.shape[0] != batch:
        return site
    return CrossSite(
        slots.gather_rows(site.k_XHS, rows_B, batch=batch),
        slots.gather_rows(site.v_XSH, rows_B, batch=batch),
        jnp.take(site.source_length_U, rows_B, mode="clip"),
    )


def reset_site(site: CrossSite, only_B: Bool[Array, " B"] | None) -> CrossSite:
    """Return the site without a source: nothing is seen until the next `fill_site`.

    Of some rows only the sources that all their rows let go.
    """
    if only_B is None:
        length_U = jnp.zeros_like(site.source_length_U)
    else:
        gone_U = jnp.all(only_B.reshape(site.source_length_U.shape[0], -1), axis=1)
        length_U = jnp.where(gone_U, 0, site.source_length_U)
    return CrossSite(site.k_XHS, site.v_XSH, length_U)


def narrow_site(site: CrossSite, *, slots: int) -> CrossSite:
    """Return the site: the slots to be narrowed are the decoder's."""
    return site


def widen_site(site: CrossSite, old: CrossSite) -> CrossSite:
    """Return the site, see `narrow_site`."""
    return site


def scrub_site(
    site: CrossSite, shared: object, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> CrossSite:
    """Return the site with values of 0 in every slot that holds no token."""
    values = slots.scrub_values(site.v_XSH, _places(site)[1])
    return CrossSite(site.k_XHS, values, site.source_length_U)


def poison_site(
    site: CrossSite, shared: object, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> CrossSite:
    """Return the site with NaN in every slot that holds no token."""
    keys, values = slots.poison(site.k_XHS, site.v_XSH, _places(site)[1])
    assert values is not None  # the source's values stand beside its keys
    return CrossSite(keys, values, site.source_length_U)


def _form(site: CrossSite) -> tuple[int, int, str]:
    lines, width, _ = site.k_XHS.shape
    return lines, width, str(site.k_XHS.dtype)


def _places(site: CrossSite) -> tuple[Array, Array]:
    sources, capacity = site.source_length_U.shape[0], site.k_XHS.shape[2]
    key_US = jnp.broadcast_to(jnp.arange(capacity, dtype=jnp.int32), (sources, capacity))
    return key_US, key_US < site.source_length_U[:, None]
