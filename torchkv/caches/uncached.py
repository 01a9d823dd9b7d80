"""No storage at all: attention over the tokens of one fresh step.

For scoring and for the uncached comparison.

Letters: B rows, T new tokens, N query heads, K key/value heads, H head width, S slots (none).
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
class UncachedSite:
    """Nothing but the sizes that a site is checked against."""

    num_kv_heads: int
    head_dim: int
    rank: int | None


def init_site(
    attention: Attention,
    *,
    batch: int,
    capacity: int,
    dtype: torch.dtype,
    slack: int = 0,
    shared: None = None,
) -> UncachedSite:
    """Return a site that stores nothing."""
    latent = attention.latent
    rank = None if latent is None else latent.rank
    return UncachedSite(attention.num_kv_heads, attention.head_dim, rank)


def check(
    site: UncachedSite,
    k_BTKH: Float[Array, "B T K _"] | None,
    v_BTKH: Float[Array, "B T K _"] | None,
    *,
    rule: ops.Rule,
) -> None:
    """Refuse what this site was not made for.

    Raises:
        Unsupported: Keys or values are missing.
        ShapeError: K or H differ.
    """
    new_k_BTKH, _ = slots.both(k_BTKH, v_BTKH, rank=site.rank)
    have, given = (site.num_kv_heads, site.head_dim), tuple(new_k_BTKH.shape[2:])
    if have != given:
        raise ShapeError(
            f"attend: k_BTKH has (K, H) {given}, the site {have}. Was it made for this model?"
        )


def attend(
    site: UncachedSite,
    step: Step,
    q_BTNH: Float[Array, "B T N _"],
    k_BTKH: Float[Array, "B T K H"],
    v_BTKH: Float[Array, "B T K H"] | None,
    *,
    rule: ops.Rule,
    rotate: Rotate | None = None,
    bias: Bias | None = None,
    expand: Expand | None = None,
) -> tuple[Float[Array, "B T N _"], UncachedSite]:
    """Return attention of the tokens to themselves.

    Raises:
        Unsupported: The step is not fresh: what came before was not kept.
    """
    if not step.fresh:
        raise Unsupported(
            "attend: the uncached layout keeps nothing, so a step must be fresh. Feed the whole "
            "text."
        )
    q_BTNH, k_BTKH = slots.turned(q_BTNH, k_BTKH, step, rotate)
    k_BTKH, v_BTKH = slots.new_values(k_BTKH, v_BTKH, expand, rank=site.rank)
    out_BTNH = slots.attend_fresh(
        q_BTNH,
        k_BTKH,
        v_BTKH,
        position_BT=step.position_BT,
        valid_BT=step.valid_BT,
        rule=rule,
        bias=bias,
    )
    return out_BTNH, site


def fault(site: UncachedSite, cache: Cache) -> str | None:
    """Return None: there is nothing that could not fit."""
    return None


def read(
    site: UncachedSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K H"], Int[Array, "B S"], Bool[Array, "B S"]]:
    """Raise: there is nothing to read.

    Raises:
        Unsupported: Always.
    """
    raise Unsupported(
        "read: the uncached layout keeps nothing. Use layout='contiguous' to look at keys and "
        "values."
    )


def floor(site: UncachedSite, cache: Cache) -> Int[Array, " B"]:
    """Raise: there is nothing to roll back to.

    Raises:
        Unsupported: Always.
    """
    raise Unsupported("rollback: the uncached layout keeps nothing. Feed the shorter text instead.")


def gather_site(site: UncachedSite, rows_B: Int[Array, " C"], *, batch: int) -> UncachedSite:
    """Raise: there is nothing to gather.

    Raises:
        Unsupported: Always.
    """
    raise Unsupported(
        "gather: the uncached layout keeps nothing. Feed the rows in their new order."
    )


def narrow_site(site: UncachedSite, *, slots: int) -> UncachedSite:
    """Return the site: there is nothing to narrow."""
    return site


def widen_site(site: UncachedSite, old: UncachedSite) -> UncachedSite:
    """Return the site, see `narrow_site`."""
    return site


def scrub_site(
    site: UncachedSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> UncachedSite:
    """Return the site: there is nothing to scrub."""
    return site


def poison_site(
    site: UncachedSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> UncachedSite:
    """Return the site: there is nothing to poison."""
    return site
