"""Codes of 8 bits: int8 or fp8, with one scale a token and head, and nothing in full precision.

A token is quantized as it comes, by itself, and every query reads what is stored, its own token
too: no partition of a text changes a result, and every length can be rolled back to. The scales are
applied to scores and weights, so that codes enter the products as they are.

Letters: B rows, T new tokens, N query heads, K key/value heads, M grouped queries, H
head width, C slots = capacity, S slots of a tile.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor as Array

from jaxkv.spec.compression import PerToken
from torchkv import ops
from torchkv.caches import carried, coded, codes, slots
from torchkv.caches.state import Bias, Cache, Expand, Rotate, Step
from torchkv.caches.view import View

# Tokens of a layer that are read at once, at most: calls cost most of a short tile.
TILE = 4096
# The bytes of float8_e4m3fn, which has no arithmetic of its own, are kept as whole numbers.
_DTYPES = {"int8": torch.int8, "fp8": torch.uint8}


@dataclass(frozen=True)
class PerTokenSite:
    """One attention's codes and scales; those at and beyond a row's length are never read."""

    k_code_BKCH: Shaped[Array, "B K C H"]
    k_scale_BKC: Float[Array, "B K C"]
    v_code_BKCH: Shaped[Array, "B K C H"]
    v_scale_BKC: Float[Array, "B K C"]
    form: PerToken


def empty(
    form: PerToken, *, batch: int, kv_heads: int, width: int, capacity: int, dtype: torch.dtype
) -> PerTokenSite:
    """Return a site without tokens.

    Cost: allocates 2 * batch * K * capacity * H bytes, and two scales a token and head.
    """
    kind, lines = _DTYPES[form.kind], (batch, kv_heads, capacity)
    return PerTokenSite(
        torch.zeros((*lines, width), dtype=kind),
        torch.ones(lines, dtype=dtype),
        torch.zeros((*lines, width), dtype=kind),
        torch.ones(lines, dtype=dtype),
        form,
    )


def check(
    site: PerTokenSite,
    k_BTKH: Float[Array, "B T K _"] | None,
    v_BTKH: Float[Array, "B T K _"] | None,
    *,
    rule: ops.Rule,
) -> None:
    """Refuse what this site was not made for.

    Raises:
        Unsupported: Keys or values are missing, or the attention has a window or sees the future.
        ShapeError: Batch, K, H or dtype differ.
    """
    lines = (*site.k_scale_BKC.shape, site.k_code_BKCH.shape[3])
    slots.check_new(site.k_scale_BKC[..., None].expand(lines), k_BTKH, v_BTKH)
    slots.check_sees_all(rule)


def attend(
    site: PerTokenSite,
    step: Step,
    q_BTNH: Float[Array, "B T N H"],
    k_BTKH: Float[Array, "B T K H"],
    v_BTKH: Float[Array, "B T K H"],
    *,
    rule: ops.Rule,
    rotate: Rotate | None = None,
    bias: Bias | None = None,
    expand: Expand | None = None,
) -> tuple[Float[Array, "B T N H"], PerTokenSite]:
    """Return the attention output of T new tokens, and the site, written in place.

    Args:
        site: One attention's codes, written in place.
        step: From `begin`.
        q_BTNH: Queries, not rotated.
        k_BTKH: Keys, not rotated. In the dtype of the scales.
        v_BTKH: Values.
        rule: Without a window.
        rotate: Applied to queries and keys with their positions; None for learned positions.
        bias: Addend of the scores from query and key positions.
        expand: For latent attention; not offered here.

    Raises:
        Unsupported: The rule has a window.
        ShapeError: Batch, K, H or dtype differ from the site; see
            `caches.attend`.

    Cost: reads the codes of the used tiles, as bytes.
    """
    q_BTNH, k_BTKH = slots.turned(q_BTNH, k_BTKH, step, rotate)
    _write(site, step, k_BTKH, v_BTKH)
    tokens, each = q_BTNH.shape[1], ops.QUERY_BLOCK
    if step.start is not None and tokens == 1:
        return _attend_all(site, step, q_BTNH, rule, bias), site
    spans = [slice(at, min(at + each, tokens)) for at in range(0, tokens, each)]
    parts = [_attend(site, step, q_BTNH[:, span], span, rule, bias) for span in spans]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1), site


def fault(site: PerTokenSite, cache: Cache) -> str | None:
    """Return what of the site does not fit its cache, or None: slots, and values beside keys."""
    keys, values = site.k_code_BKCH.shape, site.v_code_BKCH.shape
    if keys[2] < cache.capacity:
        return f"has {keys[2]} slots, the cache has capacity {cache.capacity}"
    return None if keys == values else f"has values {tuple(values)} beside keys {tuple(keys)}"


def read(
    site: PerTokenSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K H"], Int[Array, "B S"], Bool[Array, "B S"]]:
    """Return dequantized keys and values, the position of each slot, and which hold a token.

    A probe for tests and crosscheck, which dequantizes the cache whole.
    """
    k_BKSH, v_BKSH = (
        _numbers(code, site.form).to(scale.dtype) * scale.unsqueeze(-1)
        for code, scale in (
            (site.k_code_BKCH, site.k_scale_BKC),
            (site.v_code_BKCH, site.v_scale_BKC),
        )
    )
    key_S = torch.arange(k_BKSH.shape[2], dtype=torch.int32, device=length_B.device)
    key_BS = key_S.expand(len(length_B), -1)
    return *slots.by_row(k_BKSH, v_BKSH), key_BS, key_BS < length_B.unsqueeze(1)


def floor(site: PerTokenSite, cache: Cache) -> Int[Array, " B"]:
    """Return the shortest length that each row can be rolled back to: always 0."""
    return torch.zeros_like(cache.length_B)


def gather_site(site: PerTokenSite, rows_B: Int[Array, " C"], *, batch: int) -> PerTokenSite:
    """Return a copy of the named rows, in their order: codes and scales."""
    return _mapped(site, lambda x: slots.gather_rows(x, rows_B))


def narrow_site(site: PerTokenSite, *, slots: int) -> PerTokenSite:
    """Return the site: a step reads its used tiles, however many there are."""
    return site


def widen_site(site: PerTokenSite, old: PerTokenSite) -> PerTokenSite:
    """Return the site in the old one's memory, unless it is there already."""
    for name, x in vars(site).items():
        if isinstance(x, Array) and x.data_ptr() != getattr(old, name).data_ptr():
            getattr(old, name).copy_(x)
    return old


def scrub_site(
    site: PerTokenSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> PerTokenSite:
    """Return the site with scale 0 in every slot that holds no token, in place."""
    _blot(site, length_B, 0.0)
    return site


def poison_site(
    site: PerTokenSite, shared: None, length_B: Int[Array, " B"], peak_B: Int[Array, " B"]
) -> PerTokenSite:
    """Return a copy of the site with scale NaN in every slot that holds no token."""
    site = _mapped(site, torch.clone)
    _blot(site, length_B, torch.nan)
    return site


def _write(site: PerTokenSite, step: Step, k_BTKH: Array, v_BTKH: Array) -> None:
    quantize = codes.quantize_int8 if site.form.kind == "int8" else codes.quantize_fp8
    code_YBTKH, scale_YBTK = quantize(torch.stack((k_BTKH, v_BTKH)))
    held = ((site.k_code_BKCH, site.k_scale_BKC), (site.v_code_BKCH, site.v_scale_BKC))
    for (code_BKCH, scale_BKC), code_BTKH, scale_BTK in zip(
        held, code_YBTKH, scale_YBTK, strict=True
    ):
        slots.write_tokens(code_BKCH, code_BTKH.view(code_BKCH.dtype), step)
        slots.write_tokens(scale_BKC, scale_BTK, step)


def _attend_all(
    site: PerTokenSite, step: Step, q_BTNH: Array, rule: ops.Rule, bias: Bias | None
) -> Array:
    """Return the outputs of one query a row, all of which see all tokens, and as many."""
    up, used, form = ops.wide(q_BTNH.dtype), step.used, site.form
    q_BKMH = ops.group_queries(q_BTNH, site.k_scale_BKC.shape[1]).to(up)
    tiles = [slice(at, at + size) for at, size in coded.tiles(q_BKMH, used, most=TILE)]
    k_scale_BK1S, v_scale_BK1S = (
        scale_BKC[:, :, None, :used].to(up) for scale_BKC in (site.k_scale_BKC, site.v_scale_BKC)
    )

    def numbers(code_BKCH: Array, slot_S: slice) -> Array:
        code_BKSH = _numbers(code_BKCH[:, :, slot_S], form)
        return step.room(*code_BKSH.shape, dtype=up).copy_(code_BKSH)

    products = [torch.matmul(q_BKMH, numbers(site.k_code_BKCH, slot_S).mT) for slot_S in tiles]
    view = View(step, q_BKMH, slice(0, 1), q_BTNH.shape[2], rule, bias)
    product_BKMS = (products[0] if len(tiles) == 1 else torch.cat(products, -1)) * k_scale_BK1S
    weight_BKMS = view.scored(product_BKMS, slots.first(step, bias)).softmax(-1) * v_scale_BK1S
    parts = [
        torch.matmul(weight_BKMS[..., slot_S], numbers(site.v_code_BKCH, slot_S))
        for slot_S in tiles
    ]
    return ops.ungroup(sum(parts[1:], parts[0]).to(site.v_scale_BKC.dtype), tokens=1)


def _attend(
    site: PerTokenSite, step: Step, q_BTNH: Array, span: slice, rule: ops.Rule, bias: Bias | None
) -> Array:
    _, tokens, heads, _ = q_BTNH.shape
    up = ops.wide(q_BTNH.dtype)
    q_BKMH = ops.group_queries(q_BTNH, site.k_scale_BKC.shape[1]).to(up)
    view = View(step, q_BKMH, span, heads, rule, bias)
    end_B1 = (step.length_B + step.count_B).unsqueeze(1)
    used = max(min(end, before + span.stop) for before, end in step.spans)
    state = carried.start(q_BKMH)
    for start, size in coded.tiles(q_BKMH, used, most=TILE):
        slot_S = slice(start, start + size)
        k_BKSH, v_BKSH, k_scale_BK1S, v_scale_BK1S = (
            _numbers(site.k_code_BKCH[:, :, slot_S], site.form).to(up),
            _numbers(site.v_code_BKCH[:, :, slot_S], site.form).to(up),
            site.k_scale_BKC[:, :, None, slot_S].to(up),
            site.v_scale_BKC[:, :, None, slot_S].to(up),
        )
        key_S = torch.arange(start, slot_S.stop, dtype=torch.int32, device=end_B1.device)
        key_BS = key_S.expand(end_B1.shape[0], -1)
        valid_BS = key_BS < end_B1
        product_BKMS = torch.matmul(q_BKMH, k_BKSH.mT) * k_scale_BK1S
        visible_BTS = ops.is_visible(view.query_BT, key_BS, valid_BS, rule=rule)
        v_scale_BK1S = v_scale_BK1S.masked_fill(~valid_BS[:, None, None, :], 0.0)
        state = carried.add(
            state,
            view.scored(product_BKMS, key_BS),
            view.spread(visible_BTS),
            lambda w, scale=v_scale_BK1S, v=v_BKSH: torch.matmul(w * scale, v),
        )
    out_BKMH = carried.finish(state).to(site.v_scale_BKC.dtype)
    return ops.ungroup(out_BKMH, tokens=tokens)


def _numbers(code: Array, form: PerToken) -> Array:
    return code if form.kind == "int8" else code.view(torch.float8_e4m3fn)


def _mapped(site: PerTokenSite, change: Any) -> PerTokenSite:
    arrays = {name: change(x) for name, x in vars(site).items() if isinstance(x, Array)}
    return dataclasses.replace(site, **arrays)


def _blot(site: PerTokenSite, length_B: Array, blot: float) -> None:
    slot_C = torch.arange(site.k_scale_BKC.shape[2], device=length_B.device)
    empty_B1C = (slot_C >= length_B.unsqueeze(1)).unsqueeze(1)
    for scale_BKC in (site.k_scale_BKC, site.v_scale_BKC):
        scale_BKC.masked_fill_(empty_B1C, blot)
