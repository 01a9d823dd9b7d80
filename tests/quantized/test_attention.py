"""What a quantized attention owes, query by query, against a re-enactment in numpy."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxkv.spec.errors import RequestError, RollbackError, Unsupported
from jaxkv.spec.identity import Identity
from tests.quantized.alone import (
    INVARIANT,
    KIVI,
    ROWS,
    Alone,
    attend_in_chunks,
    config,
    draw,
    owed,
    parts_of,
    slope,
    step_of,
)
from tests.tiny import TWINS, Cell, module, shared_by

T = 38
EACH = [(twin, form) for twin in TWINS for form in INVARIANT]
PARTITIONS = ([38], [1] * 38, [8, 8, 8, 8, 6], [7, 9, 1, 15, 6], [1, 37], [37, 1], [24, 14])


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("form", INVARIANT, ids=str)
@pytest.mark.parametrize("sizes", PARTITIONS, ids=lambda sizes: f"{sizes[0]}x{len(sizes)}")
def test_each_query_reads_what_is_stored_once_its_own_token_is(twin, form, sizes):
    qkv = draw(0, T)

    rows = attend_in_chunks(Alone(twin, "quantized", **form.options), qkv, sizes)

    np.testing.assert_allclose(np.stack(rows), owed(qkv, form), rtol=0, atol=1e-14)


@shared_by(EACH)
@example(counts=[[5, 0, 9], [9, 9, 9], [0, 24, 2], [24, 5, 18]], seed=0)
@given(
    counts=st.lists(st.lists(st.integers(0, 12), min_size=3, max_size=3), min_size=1, max_size=8),
    seed=st.integers(0, 2**16),
)
def test_no_ragged_partition_changes_an_output(cell, counts, seed):
    """KV-43: the same tokens are exact whether they came at once, in chunks or one by one."""
    twin, form = cell
    qkv, left = draw(seed, T), np.full(ROWS, T)
    kept = []
    for counts_B in counts:
        counts_B = np.minimum(counts_B, left)
        left = left - counts_B
        kept.append(counts_B)

    alone = Alone(twin, "quantized", **form.options)
    # Few widths, so that little is compiled.
    rows = attend_in_chunks(alone, qkv, [*kept, left], width=40)

    np.testing.assert_allclose(np.stack(rows), owed(qkv, form), rtol=0, atol=1e-14)


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("form", KIVI, ids=str)
@pytest.mark.parametrize("sizes", PARTITIONS, ids=lambda sizes: f"{sizes[0]}x{len(sizes)}")
def test_in_the_published_order_a_step_reads_what_was_stored_before_it(twin, form, sizes):
    qkv, starts = draw(1, T), np.repeat(np.cumsum([0, *sizes[:-1]]), sizes)

    rows = attend_in_chunks(Alone(twin, "quantized", **form.options), qkv, sizes)

    np.testing.assert_allclose(np.stack(rows), owed(qkv, form, starts), rtol=0, atol=1e-14)


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("form", KIVI, ids=str)
def test_in_the_published_order_the_cut_of_a_prompt_changes_its_outputs(twin, form):
    """A property of the scheme, not rounding: it gives up chunk invariance and says so."""
    qkv = draw(2, T)

    at_once, in_parts = (
        np.stack(attend_in_chunks(Alone(twin, "quantized", **form.options), qkv, sizes))
        for sizes in ([T], [19, 19])
    )

    np.testing.assert_allclose(at_once[:, :19], in_parts[:, :19], rtol=0, atol=1e-14)
    assert np.abs(at_once - in_parts).max() > 1e-3


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("form", [*INVARIANT, *KIVI], ids=str)
def test_the_promises_fresh_and_clean_change_nothing(twin, form):
    qkv = draw(3, T)
    plain, promised = (Alone(twin, "quantized", **form.options) for _ in range(2))

    left = np.concatenate([plain.feed(qkv, 21), plain.feed(qkv, 17)], axis=1)
    right = [promised.feed(qkv, 21, fresh=True, clean=True), promised.feed(qkv, 17, clean=True)]

    np.testing.assert_allclose(left, np.concatenate(right, axis=1), rtol=0, atol=1e-14)


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("form", INVARIANT, ids=str)
def test_what_stands_in_unused_places_never_matters(twin, form):
    """NaN in every scale, zero point and slot that no later query reads, after each step."""
    qkv, alone = draw(4, T), Alone(twin, "quantized", slack=3, **form.options)
    outs = []
    for size in (5, 8, 1, 12, 1, 11):
        alone.cache = alone.caches.poison(alone.cache)
        outs.append(alone.feed(qkv, size))

    np.testing.assert_allclose(np.concatenate(outs, 1), owed(qkv, form), rtol=0, atol=1e-14)


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("form", INVARIANT, ids=str)
@pytest.mark.parametrize("back", [1, 2, 3])
def test_rollback_within_the_slack_is_exact(twin, form, back):
    """KV-46: tokens that become unquantized again were never anything else; blocks end at 8, 16."""
    wrong, right = draw(5, T), draw(6, T)
    alone = Alone(twin, "quantized", slack=3, **form.options)
    qkv = tuple(
        np.concatenate([a[:, :16], b[:, 16:]], 1) for a, b in zip(right, wrong, strict=True)
    )
    alone.feed(qkv, 16 + back)

    alone.cache = alone.caches.rollback(alone.cache, alone.array(np.full(ROWS, 16, np.int32)))
    alone.cache = alone.caches.poison(alone.cache)
    out = np.concatenate([alone.feed(right, size) for size in (1, 8, 13)], axis=1)

    np.testing.assert_allclose(out, owed(right, form)[:, 16:], rtol=0, atol=1e-14)


@pytest.mark.parametrize("twin", TWINS)
def test_rollback_past_the_slack_is_refused(twin):
    """KV-46: only codes are left there, and nothing is quantized twice."""
    alone = Alone(twin, "quantized", slack=3, **INVARIANT[0].options)
    alone.feed(draw(7, T), 20)

    with pytest.raises(RollbackError) as error:
        alone.caches.rollback(alone.cache, alone.array(np.full(ROWS, 16, np.int32)))

    assert "has evicted what lies below 17" in str(error.value)


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("form", INVARIANT, ids=str)
def test_rows_travel_with_codes_scales_and_residual(twin, form, tmp_path):
    """KV-46: a reorder moves all parts of a row, to the bit; fork and disk keep all of them."""
    alone = Alone(twin, "quantized", slack=3, **form.options)
    qkv = draw(8, T)
    for size in (10, 7):
        alone.feed(qkv, size)
    caches, before = alone.caches, parts_of(alone.cache)
    empty = Alone(twin, "quantized", slack=3, **form.options).cache

    swapped = caches.gather(caches.fork(alone.cache), alone.array(np.array([2, 0, 0], np.int32)))
    whose = {"identity": Identity(config(), "none", "float64", "quantized")}
    caches.save(alone.cache, tmp_path / "cache", **whose, tokens=[[0] * 17] * ROWS)
    loaded = caches.load(tmp_path / "cache", empty, **whose)

    for name, x in before.items():
        np.testing.assert_array_equal(parts_of(swapped)[name], x[[2, 0, 0]], err_msg=name)
        np.testing.assert_array_equal(parts_of(loaded)[name], x, err_msg=name)


@pytest.mark.parametrize("form", [*INVARIANT, *KIVI], ids=str)
def test_the_twins_store_the_same_bits(form):
    """Codes, scales, zero points and residual of the same keys and values."""
    qkv = draw(9, T)
    stored = []
    for twin in TWINS:
        alone = Alone(twin, "quantized", **form.options)
        attend_in_chunks(alone, qkv, [[11, 3, 20], [9, 1, 12], [1, 30, 1]])
        stored.append(parts_of(alone.cache))

    for (name, left), right in zip(stored[0].items(), stored[1].values(), strict=True):
        np.testing.assert_array_equal(left, right, err_msg=name)


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("sizes", [[20], [8, *[1] * 12], [1] * 20], ids=["once", "then", "ones"])
def test_the_last_tokens_are_exact_and_the_others_are_codes(twin, sizes):
    """KV-43: the same set for all three ways: keys below 16, values below 20 - 8 are codes."""
    form, qkv = INVARIANT[1], draw(10, T)
    alone = Alone(twin, "quantized", **form.options)
    for size in sizes:
        alone.feed(qkv, size)

    keys, values, *_ = (np.asarray(x) for x in alone.caches.read(alone.cache, 0))

    exact = [(x[:, :20] == y[:, :20]).all((0, 2, 3)) for x, y in ((keys, qkv[1]), (values, qkv[2]))]
    assert np.flatnonzero(exact[0]).tolist() == [16, 17, 18, 19]
    assert np.flatnonzero(exact[1]).tolist() == list(range(12, 20))


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("form", INVARIANT, ids=str)
def test_what_is_asked_for_is_what_is_stored(twin, form):
    """KV-45: a flag that is accepted and dropped would show in dtype and bytes."""
    alone = Alone(twin, "quantized", dtype="float32", **form.options)

    codes = parts_of(alone.cache, as_stored=True)["k_code"]

    wanted = "int8" if form.bits == 8 else "uint8"
    assert str(codes.dtype).removeprefix("torch.") == wanted
    bits = 8 if form.bits in (8, "fp8") else form.bits
    block = 1 if form.bits in (8, "fp8") else form.residual_length
    slots = -(-44 // block) * block
    assert codes.nbytes == ROWS * 2 * 12 * slots * bits // 8


BAD = {
    "bits": ({"bits": 3}, "init: bits is 3, expected one of 2, 4, 8, fp8. Use 8."),
    "bits of a word": (
        {"bits": "int4"},
        "init: bits is 'int4', expected one of 2, 4, 8, fp8. Use 8.",
    ),
    "no whole bytes": (
        {"bits": 2, "group_size": 6, "residual_length": 6},
        "init: group_size is 6, expected a multiple of 4, the codes of 2 bits in a byte. Use 8.",
    ),
    "channels": (
        {"bits": 4, "group_size": 8, "residual_length": 8},
        "init: group_size is 8, expected a divisor of the head width 12. Use group_size=12.",
    ),
    "tokens": (
        {"bits": 4, "group_size": 6, "residual_length": 8},
        "init: residual_length is 8, expected a multiple of group_size 6: whole groups leave it. "
        "Use 12.",
    ),
    "no residual": (
        {"bits": 4, "group_size": 6, "residual_length": 0},
        "init: residual_length is 0, expected a whole number of at least 1. Use 32, or bits=8, "
        "which keeps no residual.",
    ),
    "order": (
        {"bits": 4, "group_size": 6, "residual_length": 6, "order": "fifo"},
        "init: order is 'fifo', expected one of chunk_invariant, kivi. Use 'chunk_invariant'.",
    ),
    "groups of int8": (
        {"bits": 8, "group_size": 6},
        "init: group_size is 6, but bits is 8, whose tokens are quantized one by one as they come. "
        "Leave it out, or use bits=4.",
    ),
    "unknown": (
        {"page_size": 4},
        "init: layout 'quantized' has no option 'page_size'. Leave it out.",
    ),
}


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize(("options", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_offered_is_refused_with_both_numbers(twin, options, message):
    with pytest.raises(RequestError) as error:
        Alone(twin, "quantized", **options)

    assert str(error.value) == message


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("rule", [{"window": 4}, {"causal": False}], ids=["window", "future"])
@pytest.mark.parametrize(
    ("layout", "options"),
    [
        ("quantized", INVARIANT[0].options),
        ("quantized", INVARIANT[3].options),
        ("sinks_absolute", {"sinks": 2, "window": 6}),
    ],
    ids=["codes", "per token", "sinks"],
)
def test_layouts_for_whole_causal_texts_refuse_other_attentions(twin, layout, options, rule):
    caches = Alone(twin, layout, **options).caches
    alone = Alone(twin, layout, rule=caches.Rule(scale=1.0, **rule), **options)

    with pytest.raises(Unsupported) as error:
        alone.feed(draw(0, T), 3)

    assert "a layer with a window keeps a ring beside this layout" in str(error.value)


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("form", [INVARIANT[1], INVARIANT[3]], ids=str)
@pytest.mark.parametrize("tile", [8, 16])
def test_tiles_of_any_width_give_the_same(twin, form, tile, monkeypatch):
    """The last one begins before its turn where the slots are no whole number of tiles."""
    name = "caches.per_token" if form.bits == 8 else "caches.quantized"
    monkeypatch.setattr(module(Cell(twin, "llama", "quantized"), name), "TILE", tile)
    step_of.cache_clear()
    qkv = draw(11, T)

    rows = attend_in_chunks(Alone(twin, "quantized", **form.options), qkv, [7, 12, 1, 18])
    step_of.cache_clear()

    np.testing.assert_allclose(np.stack(rows), owed(qkv, form), rtol=0, atol=1e-14)


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("form", [INVARIANT[1], INVARIANT[3]], ids=str)
def test_a_soft_cap_and_a_bias_are_applied_to_the_whole_score(twin, form):
    """KV-65: not to a code's product before its scale; a bias reaches codes and residual alike."""
    qkv = draw(12, T)
    caches = Alone(twin, "quantized", **form.options).caches
    rule = caches.Rule(scale=12**-0.5, soft_cap=1.5)
    both = Alone(twin, "quantized", rule=rule, bias=slope, **form.options)

    rows = attend_in_chunks(both, qkv, [20, 1, 17])

    expected = owed(qkv, form, cap=1.5, bias=slope)
    np.testing.assert_allclose(np.stack(rows), expected, rtol=0, atol=1e-14)
    assert np.abs(expected - owed(qkv, form, cap=1.5)).max() > 1e-2
