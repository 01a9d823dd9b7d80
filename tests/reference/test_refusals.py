"""What is refused, with both numbers and the next step; the same words from both twins."""

import importlib
from dataclasses import replace
from inspect import unwrap

import numpy as np
import pytest

from jaxkv.spec.errors import CapacityError, ConfigError, JaxkvError, RequestError, ShapeError
from jaxkv.spec.tiny import llama
from tests.tiny import CONFIGS, TWINS, Cell, make_model, make_subject

pytestmark = pytest.mark.parametrize("twin", TWINS)
REFERENCE = CONFIGS["reference"]


def subject_of(twin, model="reference", layout="contiguous"):
    return make_subject(Cell(twin, model, layout))


PROMPTS = {
    "flat": ([1, 2, 3], "plan: prompts[0] has 0 axes, expected 1: prompts are [batch, time]."),
    "no rows": ([], "plan: prompts is empty, expected [batch, time] with at least 1 row."),
    "empty row": (
        [[1], []],
        "plan: prompts[1] is empty, expected at least 1 token. Give it a start token.",
    ),
    "outside": (
        [[1, 2], [3, 19]],
        "plan: prompts[1][1] is 19, expected 0 to 18 (the model's vocabulary). "
        "Was the text encoded with this model's tokenizer?",
    ),
    "negative": (
        [[-1]],
        "plan: prompts[0][0] is -1, expected 0 to 18 (the model's vocabulary). "
        "Was the text encoded with this model's tokenizer?",
    ),
    "fractions": (
        [[1.5]],
        "plan: prompts[0] has dtype float64, expected whole numbers (token ids).",
    ),
}


@pytest.mark.parametrize("case", PROMPTS)
def test_prompts_that_are_no_batch_of_ids_are_refused(twin, case):
    prompts, message = PROMPTS[case]

    with pytest.raises((ShapeError, RequestError)) as error:
        subject_of(twin).generate(prompts, 3)

    assert str(error.value) == message


@pytest.mark.parametrize("shape", [(3,), (2, 0), (0, 3), (2, 3, 1)], ids=str)
def test_a_forward_of_ids_that_are_not_batch_by_time_is_refused(twin, shape):
    # Unwrapped: the suite's own shape checks would refuse it first, in other words.
    forward, params_of = unwrap(_of(twin, "model").forward), _of(twin, "model").params_of
    ids = _ints(twin, np.zeros(shape))

    with pytest.raises(ShapeError) as error:
        forward(
            params_of(make_model(twin, "reference")),
            ids,
            None,
            _ints(twin, np.ones(shape[:1])),
            config=REFERENCE,
        )

    assert str(error.value) == (
        f"forward: ids_BT has shape {shape}, expected [batch, time] with at least 1 token."
    )


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (-1, "plan: max_new_tokens is -1, expected a whole number of at least 0."),
        (1.5, "plan: max_new_tokens is 1.5, expected a whole number of at least 0."),
        (True, "plan: max_new_tokens is True, expected a whole number of at least 0."),
    ],
    ids=str,
)
def test_a_count_that_is_no_whole_number_is_refused(twin, budget, message):
    with pytest.raises(JaxkvError) as error:
        _of(twin, "planning").plan(REFERENCE, [[1, 2]], max_new_tokens=budget)

    assert str(error.value) == message


def test_a_list_of_budgets_of_another_length_is_refused(twin):
    """KV-74: never a silent zip."""
    with pytest.raises(ShapeError) as error:
        subject_of(twin).generate([[1], [2], [3]], [1, 2])

    assert str(error.value) == (
        "plan: max_new_tokens has 2 numbers for 3 prompts. Give one, or one a prompt."
    )


def test_prompt_and_count_over_capacity_say_by_how_much(twin):
    with pytest.raises(CapacityError) as error:
        subject_of(twin).generate([[1] * 90], 80)

    assert str(error.value) == (
        "plan: prompt 90 + max_new_tokens 80 - 1 = 169 slots (the last token is never fed back), "
        "capacity 160. Raise capacity or lower max_new_tokens by 9."
    )


def test_a_prompt_over_capacity_says_by_how_much_to_shorten_it(twin):
    with pytest.raises(CapacityError) as error:
        subject_of(twin).generate([[1] * 90], 3, capacity=64)

    assert str(error.value) == (
        "plan: prompt 90 + max_new_tokens 3 - 1 = 92 slots (the last token is never fed back), "
        "capacity 64. Raise capacity or shorten prompt and max_new_tokens by 28 in all."
    )


def test_the_last_token_needs_no_slot(twin):
    result = subject_of(twin).generate([[1] * 60], 5, capacity=64)

    assert len(result.new_tokens[0]) == 5


def test_a_count_of_zero_returns_before_the_capacity_is_asked(twin):
    result = subject_of(twin).generate([[1] * 90], 0, capacity=64)

    assert result.tokens == [[1] * 90]


def test_a_capacity_beyond_the_models_positions_is_refused(twin):
    with pytest.raises(CapacityError) as error:
        subject_of(twin).init(2, 161)

    assert str(error.value) == (
        "init: capacity 161 exceeds the model's 160 positions. Lower it by 1."
    )


def test_a_cache_with_another_number_of_layers_is_refused(twin):
    left, right = subject_of(twin), subject_of(twin, "llama")

    with pytest.raises(ShapeError) as error:
        left.step(right.init(2, 20), np.ones((2, 1), int))

    assert str(error.value) == (
        "forward: the cache has 3 sites, the model 2 attentions. Was the cache made for another "
        "model?"
    )


def test_a_cache_of_another_batch_is_refused(twin):
    subject = subject_of(twin)

    with pytest.raises(ShapeError) as error:
        subject.step(subject.init(3, 20), np.ones((2, 1), int))

    assert str(error.value) == (
        "forward: ids_BT has 2 rows, the cache 3. Make the cache with that batch."
    )


def test_a_cache_of_another_dtype_is_refused(twin):
    caches, subject = _of(twin, "caches"), subject_of(twin)
    cache = caches.init(REFERENCE, batch=2, capacity=20, dtype="float32")

    with pytest.raises(ShapeError) as error:
        subject.step(cache, np.ones((2, 1), int))

    assert str(error.value) == (
        "attend: k_BTKH is float64, the cache float32. Make the cache with dtype=float64."
    )


def test_a_cache_of_another_head_width_is_refused(twin):
    caches, subject = _of(twin, "caches"), subject_of(twin)
    layer = REFERENCE.layers[0]
    wider = replace(
        REFERENCE, layers=(replace(layer, attention=replace(layer.attention, head_dim=9)),) * 2
    )
    cache = caches.init(wider, batch=2, capacity=20, dtype="float64")

    with pytest.raises(ShapeError) as error:
        subject.step(cache, np.ones((2, 1), int))

    assert str(error.value) == (
        "attend: k_BTKH has H=8, the cache has H=9. Was the cache made for another model?"
    )


def test_a_model_in_training_mode_is_refused(twin):
    model = importlib.import_module(f"{twin}.weights").from_arrays(
        REFERENCE, importlib.import_module("tests.tiny").weights("reference"), dtype="float64"
    )
    generate = _of(twin, "generation").generate
    if twin == "torchkv":
        model.train()
    else:
        model.training = True

    with pytest.raises(RequestError) as error:
        generate(model, [[1, 2]], max_new_tokens=2)

    assert str(error.value) == (
        "generate: the model has training=True, whose dropout no cache survives. "
        "Set training=False."
    )


def test_training_without_a_key_is_refused(twin):
    forward, params_of = _of(twin, "model").forward, _of(twin, "model").params_of
    ids, count = _ints(twin, np.ones((1, 2))), _ints(twin, np.array([2]))

    with pytest.raises(RequestError, match="training=True needs a random key for dropout"):
        forward(
            params_of(make_model(twin, "reference")),
            ids,
            None,
            count,
            config=REFERENCE,
            training=True,
        )


def test_an_end_token_outside_the_vocabulary_is_refused(twin):
    with pytest.raises(RequestError) as error:
        subject_of(twin).generate([[1]], 2, end_ids=[19])

    assert str(error.value) == "generate: end_ids holds 19, expected 0 to 18."


def test_a_mask_with_a_gap_is_refused(twin):
    mask = np.array([[True, False, True]])

    with pytest.raises(RequestError) as error:
        subject_of(twin).generate(np.ones((1, 3), int), 2, mask_BT=mask)

    assert str(error.value) == (
        "plan: mask_BT[0] has a gap after token 0: 2 real ids in a span of 3. "
        "Padding must stand at the ends."
    )


def test_a_step_of_a_cache_without_storage_is_refused(twin):
    caches = _of(twin, "caches")
    cache = caches.init(REFERENCE, batch=1, capacity=20, dtype="float64", layout="uncached")
    cache, step = caches.begin(cache, _ints(twin, np.array([1])), T=1)
    x = _floats(twin, np.zeros((1, 1, 3, 8)))

    with pytest.raises(JaxkvError, match="keeps nothing, so a step must be fresh"):
        caches.attend(cache.sites[0], step, x, x, x, rule=caches.Rule(scale=1.0))


@pytest.mark.parametrize("layout", ["ring", "Contiguous"])
def test_an_unknown_layout_is_refused(twin, layout):
    caches = _of(twin, "caches")

    known = "contiguous, paged, window, quantized, sinks, sinks_absolute, uncached"
    with pytest.raises(RequestError, match=f"expected one of {known}"):
        caches.init(REFERENCE, batch=1, capacity=20, dtype="float64", layout=layout)


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_below_1_is_refused(twin, window):
    with pytest.raises(ConfigError) as error:
        llama(window)

    assert str(error.value) == (
        f"Attention: window is {window}, expected a whole number of at least 1."
    )


def test_a_fresh_step_on_a_filled_cache_is_refused(twin):
    caches, subject = _of(twin, "caches"), subject_of(twin)
    _, state = subject.step(subject.init(2, 20), np.ones((2, 3), int))

    _, step = caches.begin(state, _ints(twin, np.array([2, 0])), T=2, fresh=True)

    assert step.count_B.tolist() == [0, 0]
    assert step.excess_B.tolist() == [2, 1]


def _of(twin, name):
    return importlib.import_module(f"{twin}.{name}")


def _ints(twin, array):
    if twin == "torchkv":
        import torch

        return torch.tensor(array, dtype=torch.int32)
    import jax.numpy as jnp

    return jnp.asarray(array, jnp.int32)


def _floats(twin, array):
    if twin == "torchkv":
        import torch

        return torch.tensor(array)
    import jax.numpy as jnp

    return jnp.asarray(array)


def test_a_text_longer_than_the_positions_is_refused_without_a_cache_too(twin):
    with pytest.raises(CapacityError) as error:
        subject_of(twin).full(np.ones((1, 161), int))

    assert str(error.value) == ("full: 161 tokens exceed the model's 160 positions. Feed 1 fewer.")


def test_a_forward_without_a_cache_past_the_positions_gives_nan_not_an_answer(twin):
    """What jit cannot raise must not look like a result."""
    forward, params_of = _of(twin, "model").forward, _of(twin, "model").params_of
    ids, count = _ints(twin, np.ones((2, 161))), _ints(twin, np.array([161, 160]))

    logits, _ = forward(
        params_of(make_model(twin, "reference")), ids, None, count, config=REFERENCE
    )

    found = np.isnan(np.asarray(logits))
    assert found[0].all()
    assert not found[1].any()


def test_training_with_a_cache_is_refused(twin):
    caches, model = _of(twin, "caches"), _of(twin, "model")
    cache = caches.init(REFERENCE, batch=1, capacity=20, dtype="float64")
    ids, count = _ints(twin, np.ones((1, 2))), _ints(twin, np.array([2]))

    with pytest.raises(RequestError) as error:
        model.forward(
            model.params_of(make_model(twin, "reference")),
            ids,
            cache,
            count,
            config=REFERENCE,
            training=True,
            key=_key(twin),
        )

    assert str(error.value) == (
        "forward: training=True with a cache, whose reuse dropout ends. Pass cache=None, or "
        "training=False."
    )


@pytest.mark.parametrize("call", ["full", "step"])
def test_an_id_outside_the_vocabulary_is_refused_by_a_subject(twin, call):
    subject, ids = subject_of(twin), np.array([[1, 2], [3, 19]])

    with pytest.raises(RequestError) as error:
        subject.full(ids) if call == "full" else subject.step(subject.init(2, 8), ids)

    assert str(error.value) == (
        f"{call}: ids[1][1] is 19, expected 0 to 18 (the model's vocabulary)."
    )


def _key(twin):
    if twin == "torchkv":
        import torch

        return torch.Generator()
    import jax

    return jax.random.key(0)
