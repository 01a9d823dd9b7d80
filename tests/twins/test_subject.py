"""What the twins' subjects offer beside steps: surgery, variants, casts, captures, names."""

import importlib

import numpy as np
import pytest

from crosscheck import Disagreement, assert_agree
from crosscheck.subjects.protocol import CAPABILITIES, describe
from jaxkv.spec.errors import RequestError, ShapeError, SourceError, Unsupported
from tests.tiny import DEEP, TWINS, Cell, feed, make_model, new_subject
from tests.twins.subjects import (
    BOTH,
    EXACT,
    FIRST,
    LAYOUTS,
    LLAMA,
    MODELS,
    B,
    T,
    rest_of,
    subject_of,
    texts,
)

FORMS = ("gqa_as_mha", "layout_paged", "layout_window", "window=64", "eager")
# Op by op, JAX compiles every operation by itself.
FORMED = [
    (cell, form)
    for cell in LLAMA
    for form in FORMS
    if DEEP or (cell.twin, form) != ("jaxkv", "eager")
]


@pytest.mark.parametrize("cell", [*LLAMA, *LAYOUTS], ids=str)
def test_keys_and_values_written_back_change_nothing_and_others_their_row(cell):
    """Both rows are copies of one, so that in the paged layout they share their pages."""
    subject, ids = subject_of(cell), texts(cell, 11)[[1, 1]]
    _, state = feed(subject, subject.init(B, 12), ids, [8])
    state = subject.gather(state, np.array([1, 1]))
    seen = subject.kv(state, 1)
    keys = seen.keys_BSKH.copy()
    keys[1] *= 1.5

    same = subject.with_kv(subject.fork(state), 1, seen)
    other = subject.with_kv(subject.fork(state), 1, type(seen)(keys, *rest_of(seen)))

    right, _ = subject.step(state, ids[:, 8:])
    wrong, _ = subject.step(other, ids[:, 8:])
    assert_agree(subject.step(same, ids[:, 8:])[0], right, EXACT, name="logits")
    assert_agree(wrong[:1], right[:1], EXACT, name="logits")
    with pytest.raises(Disagreement):
        assert_agree(wrong[1:], right[1:], EXACT, name="logits")


@pytest.mark.parametrize("cell", LLAMA, ids=str)
def test_other_positions_or_shapes_are_refused_beside_keys_and_values(cell):
    subject, ids = subject_of(cell), texts(cell)
    _, state = subject.step(subject.init(B, 12), ids)
    seen = subject.kv(state, 0)
    parts = [seen.keys_BSKH, *rest_of(seen)]

    with pytest.raises(RequestError, match=r"position_BS is not what kv\(0\) gives"):
        subject.with_kv(state, 0, type(seen)(*parts[:2], seen.position_BS + 1, parts[3]))
    with pytest.raises(ShapeError, match=r"values_BSKH has shape \(2, 7, 3, 18\)"):
        subject.with_kv(state, 0, type(seen)(parts[0], parts[1][:, :7], *parts[2:]))


@pytest.mark.parametrize("cell", [*LLAMA, *LAYOUTS], ids=str)
def test_a_grown_state_answers_as_before_and_takes_more(cell):
    subject, ids = subject_of(cell), texts(cell, 12)
    _, state = feed(subject, subject.init(B, 12), ids, [8])

    logits, _ = subject.step(subject.grow(state, 16), ids[:, 8:])

    assert_agree(logits, subject.full(ids)[:, 8:], EXACT, name="logits")
    with pytest.raises(RequestError, match=r"capacity is 8, expected at least 12"):
        subject.grow(subject.init(B, 12), 8)


@pytest.mark.parametrize("twin", TWINS)
def test_pages_in_another_order_change_nothing_but_the_table(twin):
    cell = Cell(twin, "llama", "paged")
    subject, ids = subject_of(cell), texts(cell, 12)
    _, state = feed(subject, subject.init(B, 12), ids, [8])

    moved = subject.permute_pages(subject.fork(state), 3)

    left, right = (np.array(each.shared.table_BC.tolist()) for each in (state, moved))
    assert left.tolist() != right.tolist()
    keys = [subject.kv(each, 1).keys_BSKH[:, :8] for each in (moved, state)]
    assert np.array_equal(*keys)
    logits, _ = subject.step(moved, ids[:, 8:])
    assert_agree(logits, subject.full(ids)[:, 8:], EXACT, name="logits")


@pytest.mark.parametrize("cell", LLAMA, ids=str)
def test_pages_are_refused_where_there_are_none(cell):
    subject = subject_of(cell)

    assert "contiguous layout has no pages" in subject.info.absent["paged"]
    with pytest.raises(Unsupported, match="this layout has no pages"):
        subject.permute_pages(subject.init(B, 12), 0)


@pytest.mark.parametrize(("cell", "form"), FORMED, ids=str)
def test_a_variant_is_the_same_function(cell, form):
    subject, ids = subject_of(cell), texts(cell)
    other = subject.variant(form)

    logits, state = feed(other, other.init(B, 8), ids, [FIRST, T - FIRST])

    assert_agree(logits, subject.full(ids), EXACT, name="logits")
    heads = 6 if form == "gqa_as_mha" else 3
    assert other.kv(state, 0).keys_BSKH.shape[2] == other.info.kv_heads == heads


@pytest.mark.parametrize("cell", BOTH, ids=str)
def test_another_window_is_another_function_on_the_same_weights(cell):
    subject, ids = subject_of(cell), texts(cell)

    narrow = subject.variant("window=2")

    assert narrow.info.weights_hash == subject.info.weights_hash
    assert set(narrow.info.windows) <= {2, None}
    with pytest.raises(Disagreement):
        assert_agree(narrow.full(ids), subject.full(ids), EXACT, name="logits")


@pytest.mark.parametrize("cell", LLAMA, ids=str)
@pytest.mark.parametrize("form", ["mla_naive", "page_size=4", "window=none", "jit=3"])
def test_an_unknown_variant_is_refused(cell, form):
    with pytest.raises(RequestError, match=f"name is '{form}', expected one of eager, gqa_as_mha"):
        subject_of(cell).variant(form)


@pytest.mark.parametrize("twin", TWINS)
def test_a_page_size_is_a_variant_of_the_paged_layout(twin):
    subject = subject_of(Cell(twin, "llama", "paged")).variant("page_size=3")

    assert subject.init(B, 9).shared.table_BC.shape == (B, 3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("twin", TWINS)
def test_a_cast_to_a_wider_dtype_is_exact(twin, dtype):
    cell = Cell(twin, "llama", "contiguous")
    low = new_subject(make_model(twin, "llama", dtype), cell)

    wide = low.cast("float64")

    (config, arrays), (again, cast) = low.decoder_inputs(), wide.decoder_inputs()
    assert config == again == cell.config.to_dict()
    assert (low.info.dtype, wide.info.dtype) == (dtype, "float64")
    assert all(np.array_equal(array, cast[name]) for name, array in arrays.items())
    assert {x.dtype.name for x in arrays.values()} == {"float64"}


@pytest.mark.parametrize("cell", LLAMA, ids=str)
def test_a_nudge_moves_the_logits_in_proportion(cell):
    subject, ids = subject_of(cell), texts(cell)

    right, one, two = (
        each.full(ids) for each in (subject, subject.nudged(1e-8, 3), subject.nudged(2e-8, 3))
    )

    assert 1e-9 < np.abs(one - right).max() < 1e-4
    np.testing.assert_allclose(
        two - right, 2 * (one - right), atol=1e-4 * np.abs(one - right).max()
    )


@pytest.mark.parametrize("twin", TWINS)
def test_rows_that_were_named_twice_have_their_full_capacity(twin):
    """The pool is made for two rows; three of them fill it with texts of their own."""
    cell = Cell(twin, "llama", "paged")
    subject, ids = subject_of(cell), texts(cell, 12)[[1, 0, 0]]
    ids[2, 4:] += 1
    ids %= cell.config.vocab_size
    _, state = subject.step(subject.init(B, 12), ids[:2, :4])

    logits, _ = subject.step(subject.gather(state, [0, 1, 1]), ids[:, 4:])

    assert_agree(logits, subject.full(ids)[:, 4:], EXACT, name="logits")


@pytest.mark.parametrize("cell", BOTH, ids=str)
def test_captured_points_come_by_name_and_in_order(cell):
    subject, ids = subject_of(cell), texts(cell)

    seen = subject.capture(ids, ["logits", "layers.1.attn", "embed"])

    assert list(seen) == ["embed", "layers.1.attn", "logits"]
    assert_agree(seen["logits"], subject.full(ids), EXACT, name="logits")
    assert list(subject.capture(ids))[:3] == ["embed", "layers.0.attn_norm", "layers.0.v"]


@pytest.mark.parametrize("cell", LLAMA, ids=str)
def test_an_unknown_point_is_refused_with_those_that_are_known(cell):
    with pytest.raises(
        RequestError,
        match=r"points holds 'layers.0.q', expected some of embed, layers.0 to layers.2 with "
        r"attn_norm, v, attn, mlp_norm, mlp, resid, norm, logits\.",
    ):
        subject_of(cell).capture(texts(cell), ["layers.0.q"])


@pytest.mark.parametrize("cell", BOTH, ids=str)
def test_a_captured_step_shows_what_one_forward_shows(cell):
    """Padding on the left: what is captured stands where the tokens were given."""
    subject, ids = subject_of(cell), texts(cell)
    real = np.arange(T - FIRST) >= np.array([[0], [1]])
    _, state = subject.step(subject.init(B, 2 * T), ids[:, :FIRST])

    seen, after = subject.capture_step(state, ids[:, FIRST:], mask=real)

    owed = subject.capture(np.concatenate([ids[1:, :FIRST], ids[1:, FIRST + 1 :]], 1))
    assert list(seen) == list(owed)
    right = {name: array[:, FIRST:] for name, array in owed.items()}
    assert_agree({name: array[1:, 1:] for name, array in seen.items()}, right, EXACT, name="a step")
    np.testing.assert_array_equal(subject.length(after), [T, T - 1])


@pytest.mark.parametrize("cell", BOTH, ids=str)
def test_a_point_that_is_given_takes_the_place_of_the_steps_own(cell):
    subject, ids = subject_of(cell), texts(cell)
    owed = subject.capture(ids)
    name, other = "layers.0.resid", {"layers.0.attn_norm": -owed["layers.0.attn_norm"]}
    right = {name: owed[name]}

    def seen(given):
        return subject.capture_step(subject.init(B, T), ids, given=given)[0]

    assert np.abs(seen(other)["logits"] - owed["logits"]).max() > 1e-3
    assert_agree(seen(other | right)["logits"], owed["logits"], EXACT, name="logits")
    with pytest.raises(RequestError, match="capture_step: points holds 'head'"):
        seen({"head": owed["norm"]})


@pytest.mark.parametrize("model", MODELS)
def test_one_name_gives_both_twins_the_same_weights(model):
    ours, theirs = (
        importlib.import_module(f"{twin}.subject").factory(model, seed="3", dtype="float64")
        for twin in TWINS
    )
    ids = texts(Cell("jaxkv", model, "contiguous"))

    assert ours.info.weights_hash == theirs.info.weights_hash
    assert_agree(ours.full(ids), theirs.full(ids), EXACT, name="logits")
    assert "random weights of seed 3" in ours.info.notes[0]


@pytest.mark.parametrize("twin", TWINS)
def test_options_are_words_and_another_seed_gives_other_weights(twin):
    factory = importlib.import_module(f"{twin}.subject").factory

    paged, other = factory("llama", layout="paged", page_size="4"), factory("llama", seed="1")

    assert paged.init(B, 9).shared.table_BC.shape == (B, 3)
    assert paged.info.weights_hash != other.info.weights_hash
    with pytest.raises(SourceError, match="'lama', expected one of"):
        factory("lama")


@pytest.mark.parametrize("cell", [*BOTH, *LAYOUTS], ids=str)
def test_every_capability_is_offered_or_its_absence_is_explained(cell):
    info = describe(subject_of(cell))

    assert info.capabilities | info.absent.keys() == CAPABILITIES.keys()
    assert not info.capabilities & info.absent.keys()
    assert all(len(reason.split()) > 3 for reason in info.absent.values())


@pytest.mark.parametrize("cell", LLAMA, ids=str)
def test_forwarded_positions_are_the_real_tokens_fed(cell):
    subject = new_subject(make_model(cell.twin, cell.model), cell)

    subject.full(texts(cell), mask=np.arange(T) < np.array([[5], [3]]))

    assert subject.forwarded_positions == 8
