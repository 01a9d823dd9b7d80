"""What a quantized cache stores, byte by byte, and how little of it is dequantized at once."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from jaxkv.spec.errors import ShapeError
from tests.quantized import formulas
from tests.quantized.alone import (
    INVARIANT,
    KIVI,
    KV_HEADS,
    ROWS,
    WIDTH,
    Alone,
    attend_in_chunks,
    draw,
    parts_of,
    step_of,
)
from tests.tiny import TWINS, Cell, module

T = 38
BYTES = ("k_code", "k_scale", "v_code", "v_scale")
each = pytest.mark.parametrize("twin", TWINS)


@each
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("form", [*INVARIANT, *KIVI], ids=str)
def test_stored_bytes_are_those_of_the_formulas(twin, dtype, form):
    """Each part by its name, packed as KIVI packs it, whatever the chunks were."""
    qkv = tuple(x.astype(dtype) for x in draw(9, T))
    alone = Alone(twin, "quantized", dtype=dtype, **form.options)
    attend_in_chunks(alone, qkv, [[11, 3, 20], [9, 1, 12], [1, 30, 1]])
    lengths_B = np.asarray(alone.cache.length_B)

    stored = parts_of(alone.cache)

    for b, length in enumerate(lengths_B):
        k_KTH, v_KTH = (x[b, :length].swapaxes(0, 1) for x in qkv[1:])
        for name, want in expected(k_KTH, v_KTH, form).items():
            have = stored[name][b][tuple(slice(n) for n in want.shape)]
            np.testing.assert_array_equal(have, want, err_msg=f"{name}, row {b}")


def expected(k_KTH, v_KTH, form):
    """Return what must be stored of one row's keys and values, by name."""
    if form.bits in (8, "fp8"):
        sides = (_per_token(x, form.bits) for x in (k_KTH, v_KTH))
        return dict(zip(BYTES, (part for side in sides for part in side), strict=True))
    whole = k_KTH.shape[1] // form.residual_length * form.residual_length
    keys = _groups(k_KTH[:, :whole].swapaxes(1, 2), form)
    values = _groups(v_KTH, form)
    sides = (("k", keys), ("v", values))
    return {f"{side}_{name}": x for side, parts in sides for name, x in parts.items()}


def _groups(x, form):
    count, size = x.shape[-1], form.group_size
    by_group = x.reshape(*x.shape[:-1], count // size, size)
    code, scale, zero = formulas.kivi(by_group, form.bits)
    each_word = 32 // form.bits
    flat = code.reshape(x.shape)
    flat = np.pad(flat, [(0, 0)] * (x.ndim - 1) + [(0, -count % each_word)])
    packed = formulas.pack_words(flat, form.bits).astype("<u4").view(np.uint8)
    return {"code": packed[..., : count * form.bits // 8], "scale": scale, "zero": zero}


def _per_token(x, bits):
    ratio, scale = formulas.per_token(x, 127 if bits == 8 else 448)
    if bits == 8:
        return np.rint(ratio).astype(np.int8), scale
    grid = formulas.fp8_grid(ratio.astype(np.float32))
    return grid.astype(ml_dtypes.float8_e4m3fn).view(np.uint8), scale


@each
def test_a_ring_too_small_for_residual_and_slack_is_refused_with_both_numbers(twin):
    alone = Alone(twin, "quantized", slack=3, **INVARIANT[1].options)
    site = alone.cache.sites[0]
    short = {name: x[..., :-2] for name, x in vars(site).items() if name.startswith("k_ring")}
    short |= {name: x[..., :-2, :] for name, x in vars(site).items() if name.startswith("v_ring")}
    cache = replace(alone.cache, sites=(replace(site, **short),))

    with pytest.raises(ShapeError) as error:
        alone.caches.begin(cache, alone.array(np.ones(ROWS, np.int32)), T=1)

    assert str(error.value) == (
        "begin: sites[0] has a ring of 9 tokens, its residual length and slack need 11. "
        "Make the cache with `init`."
    )


@each
@pytest.mark.parametrize("form", [INVARIANT[0], KIVI[0], INVARIANT[3], INVARIANT[4]], ids=str)
@pytest.mark.parametrize("tokens", [1, 5])
def test_no_step_dequantizes_the_cache_whole(twin, form, tokens, monkeypatch):
    """At 3,000 used tokens of 4,096 no more than a tile of codes is made numbers at once."""
    made = []

    def spied(function):
        def spy(*given, **named):
            out = function(*given, **named)
            made.append(int(np.prod(out.shape)))
            return out

        return spy

    kind = "per_token" if form.bits in (8, "fp8") else "quantized"
    readers = ("_numbers",) if kind == "per_token" else ("unpack", "planes")
    where = module(Cell(twin, "llama", "quantized"), f"caches.{kind}")
    tile, room = where.TILE, 4096
    source = where if kind == "per_token" else where.coded.codes
    for name in readers:
        monkeypatch.setattr(source, name, spied(getattr(source, name)))
    step_of.cache_clear()
    alone = Alone(twin, "quantized", capacity=room, **form.options)
    held_B = alone.array(np.full(ROWS, 3000, np.int32))
    alone.cache = replace(alone.cache, length_B=held_B, peak_B=held_B)

    _fed(alone, tokens)
    step_of.cache_clear()

    a_token = ROWS * KV_HEADS * WIDTH
    assert made
    assert max(made) <= a_token * tile < a_token * room // 4


@pytest.mark.parametrize("form", [INVARIANT[0], KIVI[0], INVARIANT[3], INVARIANT[4]], ids=str)
def test_a_compiled_step_needs_no_more_memory_for_a_larger_cache(form):
    """What the compiler holds beside arguments and results, at 4,096 and at 8,192 slots."""
    small, large = (
        Alone("jaxkv", "quantized", capacity=room, **form.options) for room in (4096, 8192)
    )

    needed = [_workspace_bytes(alone) for alone in (small, large)]

    assert needed[0] > 0
    assert needed[1] - needed[0] < 4096 * ROWS * KV_HEADS * WIDTH


def _fed(alone, tokens):
    """Feed a step of drawn tokens to rows that hold some thousands."""
    step = step_of(alone.twin, alone.rule, alone.rope, False, False)
    q, k, v = (alone.array(x) for x in draw(11, tokens))
    return step(alone.cache, alone.array(np.full(ROWS, tokens, np.int32)), q, k, v)


def _workspace_bytes(alone):
    step = step_of(alone.twin, alone.rule, alone.rope, False, False)
    q, k, v = (alone.array(x) for x in draw(11, 1))
    given = alone.cache, alone.array(np.ones(ROWS, np.int32)), q, k, v
    return step.lower(*given).compile().memory_analysis().temp_size_in_bytes
