"""The cross layout: keys and values of the encoder's result, computed once a request.

No step writes to it. It has a length of its own a source, and the tokens of the decoder's rows are
none of its business. A cache of B rows may hold fewer sources: then B/U rows, one after the other
(the beams of one request), share each.

Letters: B rows of the decoder, U sources, T new tokens, S source slots, N query heads, K key/value
heads, H head width.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor as Array

from jaxkv.spec.config import Attention
from jaxkv.spec.errors import ShapeError, Unsupported
from torchkv import ops
from torchkv.caches import slots
from torchkv.caches.state import Bias, Cache, Expand, Rotate, Step


@dataclass(frozen=True)
class CrossSite:
    """One cross attention's buffers; slots at and beyond a source's length are never read."""

    k_UKSH: Float[Array, "U K S H"]
    v_UKSH: Float[Array, "U K S H"]
    source_length_U: Int[Array, " U"]


Source = tuple[CrossSite, ...]
"""What an encoder leaves: a site for each layer of the decoder, as wide as the text encoded."""


def init_site(
    attention: Attention, *, sources: int, capacity: int, dtype: torch.dtype
) -> CrossSite:
    """Return empty buffers: until `fill_site`, every query sees nothing and gets zeros.

    Cost: allocates 2 * sources * K * capacity * H elements.
    """
    shape = (sources, attention.num_kv_heads, capacity, attention.head_dim)
    keys, values = (torch.zeros(shape, dtype=dtype) for _ in range(2))
    return CrossSite(keys, values, torch.zeros(sources, dtype=torch.int32))


def hold(
    k_USKH: Float[Array, "U S K H"],
    v_USKH: Float[Array, "U S K H"],
    source_length_U: Int[Array, " U"],
) -> CrossSite:
    """Return a site of just these keys and values; 0 stands beyond each source's length."""
    place_S = torch.arange(k_USKH.shape[1], device=k_USKH.device)
    beyond_U1S1 = (place_S >= source_length_U.unsqueeze(1))[:, None, :, None]
    k_UKSH, v_UKSH = (
        slots.heads_first(x_USKH).masked_fill(beyond_U1S1, 0.0) for x_USKH in (k_USKH, v_USKH)
    )
    # A copy: no tensor may stand in a cache twice, and every layer is given this one.
    return CrossSite(k_UKSH, v_UKSH, source_length_U.to(torch.int32, copy=True))


def fill_site(site: CrossSite, source: CrossSite) -> CrossSite:
    """Return the site with a source's keys and values in its first slots, written in place.

    Raises:
        ShapeError: The source has more tokens than slots, or another number of texts, another K, H
            or dtype.

    Cost: writes the source's elements.
    """
    slots_given, slots_held = source.k_UKSH.shape[2], site.k_UKSH.shape[2]
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
    site.k_UKSH[:, :, :slots_given] = source.k_UKSH
    site.v_UKSH[:, :, :slots_given] = source.v_UKSH
    # Not written in place: another cache may share the buffers and hold another length.
    return CrossSite(site.k_UKSH, site.v_UKSH, source.source_length_U)


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
        rule: Scale and soft cap; not causal, no window.
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
    (sources, kv_heads, _, held_width), (rows, _, heads, width) = site.k_UKSH.shape, q_BTNH.shape
    if rows % sources or heads % kv_heads or width != held_width:
        raise ShapeError(
            f"attend: q_BTNH has (B, N, H) {(rows, heads, width)}, the site {sources} sources with "
            f"(K, H) {(kv_heads, held_width)}. Was the cache made for another model?"
        )
    # The rows of one source are so many more queries of it.
    q_UMNH = q_BTNH.reshape(sources, -1, heads, width)
    place_US, valid_US = _places(site)
    out_UMNH = slots.attend_slots(
        q_UMNH,
        site.k_UKSH,
        site.v_UKSH,
        query_BT=q_UMNH.new_zeros(q_UMNH.shape[:2], dtype=torch.int32),
        key_BS=place_US,
        valid_BS=valid_US,
        rule=rule,
        clean=step.clean,
    )
    # torch's kernels give NaN, or a mean, to a query that sees nothing.
    out_UMNH = out_UMNH.masked_fill((site.source_length_U == 0)[:, None, None, None], 0.0)
    return out_UMNH.reshape(q_BTNH.shape), site


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
    times = length_B.shape[0] // site.source_length_U.shape[0]
    found = (*slots.by_row(site.k_UKSH, site.v_UKSH), *_places(site))
    k, v, key, valid = (x.repeat_interleave(times, 0) for x in found)
    return k, v, key, valid


def floor(site: CrossSite, cache: Cache) -> Int[Array, " B"]:
    """Return the shortest length that each row can be rolled back to.

    0: the source does not depend on the decoder's tokens.
    """
    return torch.zeros_like(cache.length_B)


def stray_rows(site: CrossSite, rows_B: Int[Array, " C"], *, batch: int) -> Int[Array, " C"]:
    """Return 1 for each row that would leave the rows that share its source, else 0.

    0 for all where each row has a source of its own.

    Raises:
        ShapeError: Rows share sources, and another number of rows is asked for.
    """
    beams = batch // site.source_length_U.shape[0]
    if beams == 1:
        return torch.zeros_like(rows_B)
    if rows_B.shape[0] != batch:
        raise ShapeError(
            f"gather: {rows_B.shape[0]} rows, expected {batch}: {beams} rows share each "
            "source. Make the cache with beams=1."
        )
    place_B = torch.arange(batch, device=rows_B.device)
    return (rows_B // beams != place_B // beams).to(torch.int32)


def gather_site(site: CrossSite, rows_B: Int[Array, " C"], *, batch: int) -> CrossSite:
    """Return a copy of the site's named rows, in their order; rows may repeat.

    Rows that share a source stay with it, so a beam's reordering moves nothing here.
    """
    if site.source_length_U.shape[0] != batch:
        return site
    return CrossSite(
        slots.gather_rows(site.k_UKSH, rows_B),
        slots.gather_rows(site.v_UKSH, rows_B),
        slots.gather_rows(site.source_length_U, rows_B),
    )


def reset_site(site: CrossSite, only_B: Bool[Array, " B"] | None) -> CrossSite:
    """Return the site without a source: nothing is seen until the next `fill_site`.

    Of some rows only the sources that all their rows let go.
    """
    if only_B is None:
        length_U = torch.zeros_like(site.source_length_U)
    else:
        gone_U = only_B.unflatten(0, (site.source_length_U.shape[0], -1)).all(1)
        length_U = site.source_length_U.masked_fill(gone_U, 0)
    return CrossSite(site.k_UKSH, site.v_UKSH, length_U)


def narrow_site(site: CrossSite, *, slots: int) -> CrossSite:
    """Return the site: the slots to be narrowed are the decoder's."""
    return site


def widen_site(site: CrossSite, old: CrossSite) -> CrossSite:
    """Return the site, see `narrow_site`."""
    return site


def scrub_site(
    site: CrossSite, shared: object, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> CrossSite:
    """Return the site with 0 in every slot that holds no token, in place."""
    _, valid_US = _places(site)
    slots.scrub_values(site.k_UKSH, valid_US)
    slots.scrub_values(site.v_UKSH, valid_US)
    return site


def poison_site(
    site: CrossSite, shared: object, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> CrossSite:
    """Return a copy of the site with NaN in every slot that holds no token."""
    keys, values = slots.poison(site.k_UKSH, site.v_UKSH, _places(site)[1])
    assert values is not None  # the source's values stand beside its keys
    return CrossSite(keys, values, site.source_length_U)


def _form(site: CrossSite) -> tuple[int, int, str]:
    sources, kv_heads, _, width = site.k_UKSH.shape
    return sources * kv_heads, width, str(site.k_UKSH.dtype).removeprefix("torch.")


def _places(site: CrossSite) -> tuple[Array, Array]:
    sources, _, capacity, _ = site.k_UKSH.shape
    place_S = torch.arange(capacity, dtype=torch.int32, device=site.k_UKSH.device)
    return place_S.expand(sources, -1), place_S < site.source_length_U.unsqueeze(1)
