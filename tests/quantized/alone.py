"""One attention alone on a compressed layout, fed in ragged chunks; and what it owes, in numpy.

Letters: B rows, T tokens, N query heads, K key/value heads, H head width.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from jaxkv.spec.tiny import llama
from tests.quantized import formulas
from tests.quantized.twins import to_numpy
from tests.tiny import Cell, module

ROWS, HEADS, KV_HEADS, WIDTH = 3, 4, 2, 12


@dataclass(frozen=True)
class Form:
    """Options of the layout as `init` takes them."""

    bits: Any
    group_size: int = 4
    residual_length: int = 8
    order: str = "chunk_invariant"

    def __str__(self):
        return f"{self.bits}-{self.order}"

    @property
    def options(self) -> dict[str, Any]:
        if self.bits in (8, "fp8"):
            return {"bits": self.bits}
        return dict(vars(self))


INVARIANT = (Form(2), Form(4), Form(4, 6, 6), Form(8), Form("fp8"))
KIVI = (Form(2, order="kivi"), Form(4, 6, 12, order="kivi"))


def config(rope=None):
    """Return a config of one attention without rotary positions."""
    made = llama(None)
    layer = made.layers[0]
    attention = replace(
        layer.attention, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=WIDTH, rope=rope
    )
    layers = (replace(layer, attention=attention),)
    return replace(made, layers=layers, max_positions=16384)


def draw(seed, tokens, *, rows=ROWS):
    """Return queries, keys and values with peaked scores."""
    rng = np.random.default_rng(seed)
    shapes = ((rows, tokens, n, WIDTH) for n in (HEADS, KV_HEADS, KV_HEADS))
    return tuple(rng.normal(size=shape) * 1.5 for shape in shapes)


@cache
def step_of(twin, rule, rope, fresh, clean, bias=None):
    """Return begin, attend and commit as one function, compiled where the twin compiles."""
    cell = Cell(twin, "llama", "contiguous")
    caches, block = module(cell, "caches"), module(cell, "block")

    def step(cache, count_B, q, k, v):
        cache, plan = caches.begin(cache, count_B, T=q.shape[1], fresh=fresh, clean=clean)
        rotate = None
        if rope is not None:
            end_B = plan.length_B + plan.count_B
            rotate = block.rotation(rope, plan.position_BT, end_B, dtype=q.dtype)
        how = {"rule": rule, "rotate": rotate, "bias": bias}
        out, site = caches.attend(cache.sites[0], plan, q, k, v, **how)
        return out, caches.commit(cache, plan, (site,))

    if twin == "torchkv":
        return step
    import jax

    return jax.jit(step)


class Alone:
    """One attention on a layout, fed with numpy arrays."""

    def __init__(
        self,
        twin,
        layout,
        *,
        capacity=44,
        slack=0,
        dtype="float64",
        rule=None,
        rope=None,
        bias=None,
        **options,
    ):
        self.twin, self.rope, self.bias = twin, rope, bias
        self.caches = module(Cell(twin, "llama", layout), "caches")
        self.rule = rule or self.caches.Rule(scale=WIDTH**-0.5)
        self.cache = self.caches.init(
            config(rope),
            batch=ROWS,
            capacity=capacity,
            dtype=dtype,
            slack=slack,
            layout=layout,
            **options,
        )

    def feed(self, qkv, counts_B, *, width=None, fresh=False, clean=False):
        """Return the outputs of the next counts_B[b] tokens of each row, [B, T, N, H]."""
        counts_B = np.broadcast_to(np.asarray(counts_B), ROWS)
        width = width or int(counts_B.max())
        held_B = np.asarray(self.cache.length_B)
        parts = [np.full((ROWS, width, *x.shape[2:]), np.nan, x.dtype) for x in qkv]
        for b, (held, count) in enumerate(zip(held_B, counts_B, strict=True)):
            for part, x in zip(parts, qkv, strict=True):
                part[b, :count] = x[b, held : held + count]
        # Padding may be anything finite, as a model's own numbers are.
        parts = [np.nan_to_num(part, nan=7.0) for part in parts]
        step = step_of(self.twin, self.rule, self.rope, fresh, clean, self.bias)
        count_B = self.array(counts_B.astype(np.int32))
        out, self.cache = step(self.cache, count_B, *(self.array(x) for x in parts))
        return np.asarray(out)

    def array(self, x):
        if self.twin == "torchkv":
            import torch

            return torch.from_numpy(np.ascontiguousarray(x))
        import jax.numpy as jnp

        return jnp.asarray(x)


def attend_in_chunks(alone, qkv, counts, *, width=None):
    """Return each row's outputs of ragged chunks, row by row, one after the other."""
    rows = [[] for _ in range(ROWS)]
    for counts_B in counts:
        counts_B = np.broadcast_to(np.asarray(counts_B), ROWS)
        out = alone.feed(qkv, counts_B, width=width)
        for b, count in enumerate(counts_B):
            rows[b].append(out[b, :count])
    return [np.concatenate(row) for row in rows]


def slope(query_BT, key_BS):
    """Return ALiBi-like addends [B, N, T, S] of positions, exact in float32; a slope a head."""
    away_BTS = query_BT[:, :, None] - key_BS[:, None, :]
    if isinstance(away_BTS, np.ndarray):
        xp = np
    elif hasattr(away_BTS, "detach"):
        import torch as xp
    else:
        import jax.numpy as xp
    return xp.stack([-0.0625 * (n + 1) * away_BTS for n in range(HEADS)], 1)


def owed(qkv, form, starts=None, *, cap=None, bias=None):
    """Return the outputs [B, T, N, H] that the layout owes, query by query.

    starts: of each query the length before its step, for the order "kivi"; None for the other.
    bias: as `attend` takes it, of numpy's positions.
    """
    q, k, v = qkv
    coded_k, coded_v = coded(k, v, form)
    out = np.zeros(q.shape)
    for b, t in np.ndindex(q.shape[:2]):
        held = t + 1 if starts is None else int(starts[t])
        key_edge, value_edge = edges(form, held)
        keys = np.concatenate([coded_k[b, :key_edge], k[b, key_edge : t + 1]])
        values = np.concatenate([coded_v[b, :value_edge], v[b, value_edge : t + 1]])
        for n in range(q.shape[2]):
            head = n // (q.shape[2] // k.shape[2])
            score = keys[:, head] @ q[b, t, n] * WIDTH**-0.5
            score = score if cap is None else cap * np.tanh(score / cap)
            if bias is not None:
                score = score + bias(np.array([[t]]), np.arange(t + 1)[None])[0, n, 0]
            weight = np.exp(score - score.max())
            out[b, t, n] = weight @ values[:, head] / weight.sum()
    return out


def edges(form, held):
    """Return below which positions keys and values are codes once so many tokens are held."""
    if form.bits in (8, "fp8"):
        return held, held
    block = form.residual_length
    return held // block * block, max(held - block, 0)


def coded(k, v, form):
    """Return all keys and values as their codes say; keys only of whole blocks."""
    if form.bits in (8, "fp8"):
        return tuple(_per_token(x, form.bits) for x in (k, v))
    size, tokens = form.group_size, k.shape[1]
    whole = tokens // form.residual_length * form.residual_length
    k_BKHT = k[:, :whole].transpose(0, 2, 3, 1)
    back = _back(k_BKHT.reshape(*k_BKHT.shape[:3], whole // size, size), form.bits)
    coded_k = np.full(k.shape, np.nan)
    coded_k[:, :whole] = back.reshape(k_BKHT.shape).transpose(0, 3, 1, 2)
    grouped = v.reshape(*v.shape[:3], v.shape[3] // size, size)
    return coded_k, _back(grouped, form.bits).reshape(v.shape)


def _back(x, bits):
    code, scale, zero = formulas.kivi(x, bits)
    return code * scale[..., None] + zero[..., None]


def _per_token(x, bits):
    ratio, scale = formulas.per_token(x, 127 if bits == 8 else 448)
    code = np.rint(ratio) if bits == 8 else formulas.fp8_grid(ratio.astype(np.float32))
    return code * scale[..., None]


def parts_of(cache, *, as_stored=False):
    """Return the arrays of the only site by their names without axes, [B, K, ...] in both twins."""
    found = {}
    for name, x in vars(cache.sites[0]).items():
        if not hasattr(x, "shape"):
            continue
        key = name.rpartition("_")[0]
        if as_stored:
            found[key] = x
            continue
        x = to_numpy(x)
        x = x.reshape(-1, KV_HEADS, *x.shape[1:]) if name.split("_")[-1][0] == "X" else x
        found[key] = x.swapaxes(2, 3) if name.endswith("_XHC") else x
    return found
