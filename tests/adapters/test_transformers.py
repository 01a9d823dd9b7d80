"""Tiny models of transformers behind the protocol."""

from functools import cache

import numpy as np
import pytest

from crosscheck.adapters.hf_tiny import tiny_subject
from crosscheck.decoder import decode
from crosscheck.errors import CrosscheckError, Refused, SubjectError
from crosscheck.subjects.sources import load_subject
from tests.adapters.programs import TOKENS, apart, fed, texts

pytestmark = pytest.mark.filterwarnings("ignore")
FAMILIES = ("llama", "gpt2", "mistral", "gemma3_text", "mixtral", "opt", "roberta")
SIZES = ([TOKENS], [1] * TOKENS, [3, 1, 4, 2, 4])
# float32 inside (angles, norms, softmax): no fault that was ever seen is below 1e-3.
NEAR = 1e-5


@cache
def subject(text):
    return load_subject(f"hf-tiny:{text}")


def padded(ids, mask, fill):
    """Return row 1 behind its padding."""
    pads = int((~mask[1]).sum())
    moved = ids.copy()
    moved[1] = np.concatenate([np.full(pads, fill), ids[1, : ids.shape[1] - pads]])
    return moved


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_cached_steps_equal_one_forward(family, sizes):
    ids = texts(subject(family))

    logits, state = fed(subject(family), ids, sizes)

    assert apart(logits, subject(family).full(ids)) < NEAR
    assert subject(family).length(state).tolist() == [TOKENS, TOKENS]


@pytest.mark.parametrize("text", ["llama?cache=static", "mistral?cache=static", "llama?attn=eager"])
@pytest.mark.parametrize("sizes", SIZES[1:], ids=str)
def test_other_caches_and_attentions_give_the_same_function(text, sizes):
    other = subject(text)
    ids = texts(other)

    logits, _ = fed(other, ids, sizes)

    assert apart(logits, subject(text.partition("?")[0]).full(ids)) < NEAR


def test_a_model_that_swallows_a_cache_without_a_word_has_none():
    info = subject("openai-gpt?cache=dynamic").info

    assert "cache" not in info.capabilities
    assert info.absent["cache"].endswith("fills none that it is given")


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral", "opt"])
def test_padding_on_the_left_changes_no_real_token(family):
    ids = texts(subject(family))
    mask = np.ones(ids.shape, bool)
    mask[1, :4] = False
    moved = padded(ids, mask, fill=ids[0, 0])

    expected = subject(family).full(ids)[1, : TOKENS - 4]
    uncached = subject(family).full(moved, mask=mask)[1, 4:]
    cached, state = fed(subject(family), moved, [8, 1, 5], mask=mask)

    assert apart(uncached, expected) < NEAR
    assert apart(cached[1, 4:], expected) < NEAR
    assert subject(family).length(state).tolist() == [TOKENS, TOKENS - 4]


def test_rows_of_unlike_lengths_go_on_as_if_alone():
    ids = texts(subject("llama"))
    state = subject("llama").init(2, None)

    _, state = subject("llama").step(state, ids[:, :5], count=np.array([5, 2]))
    later = np.stack([ids[0, 5:9], ids[1, 2:6]])
    logits, state = subject("llama").step(state, later)

    whole = subject("llama").full(ids)
    assert apart(logits, np.stack([whole[0, 5:9], whole[1, 2:6]])) < NEAR
    assert subject("llama").length(state).tolist() == [9, 6]


def test_windows_declare_no_gaps_inside_a_row():
    assert "count" in subject("llama").info.capabilities
    assert "count" not in subject("mistral").info.capabilities
    assert subject("mistral").info.absent["count"].startswith("padding between real tokens")


@pytest.mark.parametrize("text", ["llama", "llama?cache=static"])
def test_rolled_back_is_as_if_never_appended(text):
    ids = texts(subject(text))
    _, state = fed(subject(text), ids, [6, 5])

    state = subject(text).rollback(state, np.array([7, 7]))
    logits, _ = subject(text).step(state, ids[:, 7:])

    assert apart(logits, subject(text).full(ids)[:, 7:]) < NEAR


def test_a_window_that_has_filled_refuses_to_roll_back():
    _, state = fed(subject("mistral"), texts(subject("mistral")), [6, 5])

    with pytest.raises(Refused, match=r"rollback: 3 tokens back: RuntimeError: `crop` was called"):
        subject("mistral").rollback(state, 8)
    with pytest.raises(SubjectError, match=r"the state is spent, it was rolled back\. Fork it"):
        subject("mistral").length(subject("mistral").gather(state, [0]))


def test_past_its_room_a_static_cache_refuses():
    static = subject("llama?cache=static")
    ids = texts(static)
    _, state = fed(static, ids, [10], capacity=12)

    with pytest.raises(Refused, match=r"^step: 14 tokens, capacity 12: IndexError"):
        static.step(state, ids[:, 10:])


@pytest.mark.parametrize("text", ["llama", "llama?cache=static", "gpt2?gather=reorder_cache"])
def test_gathered_rows_go_on_in_their_new_places(text):
    ids, rows = texts(subject(text), rows=3), np.array([2, 0, 0])
    _, state = fed(subject(text), ids, [9])

    logits, _ = subject(text).step(subject(text).gather(state, rows), ids[rows, 9:])

    assert apart(logits, subject(text).full(ids)[rows, 9:]) < NEAR


def test_a_fork_lives_on_by_itself():
    ids = texts(subject("llama"))
    _, state = fed(subject("llama"), ids, [9])

    other = subject("llama").fork(state)
    subject("llama").step(other, ids[:, :3])
    logits, _ = subject("llama").step(state, ids[:, 9:])

    assert apart(logits, subject("llama").full(ids)[:, 9:]) < NEAR


@pytest.mark.parametrize(
    ("text", "positions"),
    [
        pytest.param("llama", [*range(9)], id="dynamic"),
        pytest.param("llama?cache=static", [*range(9), *[-1] * 11], id="static"),
        pytest.param("mistral", [5, 6, 7, 8], id="window"),
        pytest.param("mistral?cache=static", [4, 5, 6, 7, 8], id="static-window"),
    ],
)
def test_kv_says_where_its_slots_stand(text, positions):
    _, state = fed(subject(text), texts(subject(text)), [6, 3])

    kv = subject(text).kv(state, 1)

    assert kv.position_BS[0].tolist() == positions
    assert kv.valid_BS[0].tolist() == [p >= 0 for p in positions]
    assert kv.keys_BSKH.shape == (2, len(positions), 2, 8)


def test_keys_that_are_written_are_read_by_the_next_step():
    ids = texts(subject("llama"))
    _, state = fed(subject("llama"), ids, [9])
    forked, kv = subject("llama").fork(state), subject("llama").kv(state, 0)

    same, _ = subject("llama").step(subject("llama").with_kv(state, 0, kv), ids[:, 9:])
    kv.values_BSKH[:] = 0
    other, _ = subject("llama").step(subject("llama").with_kv(forked, 0, kv), ids[:, 9:])

    assert apart(same, subject("llama").full(ids)[:, 9:]) < NEAR
    assert apart(other, same) > 1e-3


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral", "opt", "gemma3_text"])
def test_given_visibility_replaces_the_causal_rule(family):
    # Three tokens fit into the window, so that nothing that may be seen was evicted.
    ids = texts(subject(family), tokens=3)
    visible = np.broadcast_to(np.tri(3, dtype=bool), (2, 3, 3)).copy()
    visible[:, 2, 1] = False

    whole = subject(family).full(ids, visible=visible)
    _, state = subject(family).step(subject(family).init(2, None), ids[:, :2])
    last, _ = subject(family).step(state, ids[:, 2:], visible=visible[:, 2:])

    assert apart(last, whole[:, 2:]) < NEAR
    assert apart(whole, subject(family).full(ids)) > 1e-3


def test_positions_of_roberta_start_behind_its_padding_id():
    ids = texts(subject("roberta"))
    counted = np.broadcast_to(np.arange(TOKENS), ids.shape)

    logits = subject("roberta").full(ids, positions=counted)

    assert apart(logits, subject("roberta").full(ids)) < NEAR
    assert subject("roberta").info.first_id == 2


def test_captures_have_canonical_names_in_the_forwards_order():
    ids = texts(subject("llama"))
    taps = subject("llama").capture(ids)
    _, state = fed(subject("llama"), ids, [9])
    step, _ = subject("llama").capture_step(state, ids[:, 9:], ["layers.2.mlp"])

    each = [f"layers.{i}.{part}" for i in range(4) for part in ("attn", "mlp", "resid")]
    assert list(taps) == ["embed", *each, "norm", "logits"]
    assert list(step) == ["layers.2.mlp"]
    assert apart(step["layers.2.mlp"], taps["layers.2.mlp"][:, 9:]) < NEAR


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "gpt2"])
def test_the_independent_decoder_agrees(family):
    ids = texts(subject(family))
    config, arrays = subject(family).decoder_inputs()

    expected = decode(config, arrays, ids)

    assert apart(subject(family).full(ids), expected) < NEAR
    assert apart(subject(family).lifted().full(ids), expected) < 1e-7


def test_float32_inside_a_float64_model_is_named():
    assert subject("llama").narrow_casts(texts(subject("llama")))[:2] == (
        *("model.rotary_emb", "model.layers.0.input_layernorm"),
    )
    assert subject("gpt2").narrow_casts(texts(subject("gpt2"))) == ()


def test_a_cast_upward_is_exact():
    low = tiny_subject("llama", dtype="float32")

    high = low.cast("float64")

    assert high.info.dtype == "float64"
    for name, weight in low.weights().items():
        assert (high.weights()[name] == weight).all()


@pytest.mark.parametrize("name", ["gqa_as_mha", "eager"])
def test_a_variant_is_the_same_function(name):
    ids = texts(subject("llama"))

    assert apart(subject("llama").variant(name).full(ids), subject("llama").full(ids)) < NEAR


def test_a_wider_window_is_another_function_with_the_same_weights():
    ids = texts(subject("mistral"))
    wide = subject("mistral").variant("window=12")

    assert wide.info.windows == (12,) * 4
    assert apart(wide.full(ids)[:, :5], subject("mistral").full(ids)[:, :5]) < NEAR
    assert apart(wide.full(ids), subject("mistral").full(ids)) > 1e-3


def test_amplified_weights_are_said_and_seeded():
    one, same, other = (tiny_subject("gpt2", seed=s).full(np.ones((1, 3), int)) for s in (0, 0, 1))

    assert (one == same).all()
    assert apart(other, one) > 1e-2
    assert subject("gpt2").info.notes[0].startswith("random weights, amplified: ")


def test_each_token_is_forwarded_once():
    llama = tiny_subject("llama")
    before = llama.forwarded_positions

    fed(llama, texts(llama), [6, 8])

    assert llama.forwarded_positions - before == 2 * TOKENS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache": "ring"}, "cache is 'ring', expected dynamic, static, sliding, quantized"),
        ({"layers": 0}, "hf-tiny: llama: layers is 0, expected .* at least 1"),
        ({"vocab": 3}, "hf-tiny: llama: option is 'vocab', expected .* such as vocab_size"),
        ({"hidden_size": 33}, "hf-tiny: llama: "),
    ],
    ids=["cache", "depth", "field", "sizes"],
)
def test_what_can_not_be_made_is_one_sentence(options, message):
    with pytest.raises(CrosscheckError, match=message):
        tiny_subject("llama", **options)
