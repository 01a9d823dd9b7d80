"""What a quantized cache stores, byte by byte, and how little of it is dequantized at once."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from jaxkv.spec.errors import ShapeError
from tests.quantized import formulas
from tests.quantized.alone import (
    HEADS,
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
@pytest.mark.parametrize("form", [INVARIANT[0], INVARIANT[2], KIVI[1], INVARIANT[3]], ids=str)
def test_what_is_a_code_is_never_quantized_again(twin, form):
    """KV-46: not by further tokens, a rollback, a reorder or a fork.

    Groups whose codes span neither 0 nor the largest one would come back from a second pass with
    other codes, scales and zero points.
    """
    alone, qkv = Alone(twin, "quantized", slack=3, **form.options), draw(12, T)
    alone.feed(qkv, 16)
    site = alone.cache.sites[0]
    fives = {name: _filled(x, 0x55) for name, x in vars(site).items() if "_code_" in name}
    alone.cache = replace(alone.cache, sites=(replace(site, **fives),))
    planted = parts_of(alone.cache)
    caches, array = alone.caches, alone.array

    alone.feed(qkv, [5, 7, 1])
    alone.cache = caches.rollback(alone.cache, array(np.array([19, 22, 17], np.int32)))
    alone.cache = caches.gather(caches.fork(alone.cache), array(np.array([1, 0, 2], np.int32)))
    for sizes in ([6, 1, 9], [1, 1, 1], [4, 8, 0]):
        alone.feed(qkv, sizes)

    residual = 1 if form.bits == 8 else form.residual_length
    for name, x in parts_of(alone.cache).items():
        if "ring" not in name:
            held = 16 // residual * residual if name.startswith("k") else 16
            before, after = (_first_tokens(y, name, held, form) for y in (planted[name], x))
            np.testing.assert_array_equal(after, before[[1, 0, 2]], err_msg=name)


def _filled(x, byte):
    filled = x + 0 if hasattr(x, "at") else x.clone()
    return filled * 0 + byte


def _first_tokens(x, name, tokens, form):
    """Return what a part keeps of the first tokens; KIVI's keys have them along the last axis."""
    if form.bits == 8 or name.startswith("v"):
        return x[:, :, :tokens]
    return x[..., : tokens * form.bits // 8 if "code" in name else tokens // form.group_size]


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
    """At 12,000 used tokens of 16,384 no more than a tile of codes is made numbers at once."""
    made = []

    def spied(function):
        def spy(*given, **named):
            out = function(*given, **named)
            parts = out if isinstance(out, list) else [out[0] if isinstance(out, tuple) else out]
            made.append(sum(int(np.prod(part.shape)) for part in parts))
            return out

        return spy

    kind = "per_token" if form.bits in (8, "fp8") else "quantized"
    where = module(Cell(twin, "llama", "quantized"), f"caches.{kind}")
    tile, room = where.TILE, 16384
    readers = [(where, "_numbers")]
    if kind == "quantized":
        readers = [(where.coded.codes, "unpack"), (where.coded.codes, "planes")]
        readers += [(where.coded, "_planes")] if twin == "torchkv" else []
    for source, name in readers:
        monkeypatch.setattr(source, name, spied(getattr(source, name)))
    step_of.cache_clear()
    alone = Alone(twin, "quantized", capacity=room, **form.options)
    held_B = alone.array(np.full(ROWS, 12000, np.int32))
    alone.cache = replace(alone.cache, length_B=held_B, peak_B=held_B)

    _fed(alone, tokens)
    step_of.cache_clear()

    a_token = ROWS * KV_HEADS * WIDTH
    assert made
    assert max(made) <= a_token * tile <= a_token * room // 4


@each
@pytest.mark.parametrize("form", [INVARIANT[3], INVARIANT[4]], ids=str)
def test_scales_of_8_bits_multiply_scores_and_weights_and_no_tile_of_numbers(twin, form):
    """So that no dequantized copy is made: codes enter the products as they are."""
    alone = Alone(twin, "quantized", capacity=4096, **form.options)
    held_B = alone.array(np.full(ROWS, 3000, np.int32))
    alone.cache = replace(alone.cache, length_B=held_B, peak_B=held_B)

    sizes = _products(alone)

    # One query of two heads on each key and value head: its scores are a sixth of the numbers.
    tile = module(Cell(twin, "llama", "quantized"), "caches.per_token").TILE
    tile = min(tile, 3001)
    scores = ROWS * HEADS * tile
    assert scores in sizes
    assert max(sizes) < ROWS * KV_HEADS * WIDTH * tile


def _products(alone):
    """Return the sizes of all elementwise products of a step of one token."""
    if alone.twin == "jaxkv":
        import jax

        step = step_of(alone.twin, alone.rule, alone.rope, False, False)
        given = [alone.array(x) for x in draw(11, 1)]
        count_B = alone.array(np.ones(ROWS, np.int32))
        program = jax.make_jaxpr(step)(alone.cache, count_B, *given)
        return [
            eqn.outvars[0].aval.size
            for eqn in _equations(program.jaxpr)
            if eqn.primitive.name == "mul"
        ]
    from torch.utils._python_dispatch import TorchDispatchMode

    sizes = []

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, call, types, args=(), kwargs=None):
            out = call(*args, **(kwargs or {}))
            if call.overloadpacket.__name__ in ("mul", "mul_", "addcmul"):
                sizes.append(out.numel())
            return out

    with Products():
        _fed(alone, 1)
    return sizes


def _equations(jaxpr):
    """Yield all equations, those of inner programs too."""
    import jax

    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jax.tree.leaves(
            list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
        ):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from _equations(inner)


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
