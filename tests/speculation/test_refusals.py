"""What cannot be drafted or taken back is refused with both numbers, before anything runs."""

import importlib
from dataclasses import replace

import pytest

from jaxkv.spec.errors import CapacityError, JaxkvError, RequestError, Unsupported
from jaxkv.spec.random_weights import random_arrays
from jaxkv.spec.tiny import open_subject
from tests.speculation.twins import CONFIG, PROMPTS, SMALL, TWINS, draft, model, speculate
from tests.tiny import Cell, module

twins = pytest.mark.parametrize("twin", TWINS)


def made(twin, config):
    from_arrays = importlib.import_module(f"{twin}.weights").from_arrays
    return from_arrays(config, random_arrays(config, seed=0), dtype="float64")


def refused(twin, **asked) -> tuple[type[JaxkvError], str]:
    with pytest.raises(JaxkvError) as error:
        speculate(twin, **asked)
    return type(error.value), str(error.value)


@twins
@pytest.mark.parametrize("k", [0, -1, 1.5, True], ids=str)
def test_a_number_of_drafts_below_one_is_refused(twin, k):
    kind, told = refused(twin, k=k)

    assert kind is RequestError
    assert told == f"speculate: k is {k!r}, expected a whole number of at least 1."


@twins
def test_drafts_longer_than_the_caches_room_are_refused(twin):
    kind, told = refused(twin, k=70, capacity=64)

    assert kind is CapacityError
    assert told == (
        "speculate: k is 70, so that a step takes 71 tokens, capacity 64. Lower k by 7 or raise "
        "capacity."
    )


@twins
def test_a_draft_of_another_vocabulary_is_refused(twin):
    """KV-30's kind: nothing that cannot be used is silently taken."""
    kind, told = refused(twin, draft=made(twin, replace(SMALL, vocab_size=96)))

    assert kind is RequestError
    assert told == (
        "speculate: the draft's vocabulary has 96 tokens, the model's 97. Take a draft with the "
        "model's own tokenizer."
    )


@twins
def test_a_draft_model_with_fewer_positions_than_the_text_is_refused(twin):
    kind, told = refused(
        twin, draft=made(twin, replace(SMALL, max_positions=18)), max_new_tokens=14
    )

    assert kind is CapacityError
    assert told == (
        "speculate: the text takes 20 slots, the draft model has 18 positions. Shorten prompt and "
        "max_new_tokens by 2 in all, or take another draft."
    )


@twins
def test_a_draft_that_is_none_is_refused(twin):
    other = next(name for name in TWINS if name != twin)

    _, told = refused(twin, draft=draft(other, "itself"))
    _, nothing = refused(twin, draft=[1, 2])

    assert told == (
        f"speculate: draft is a {other}.model.Decoder, expected {twin}.model.Decoder or "
        "PromptLookup. Was it made by the other twin?"
    )
    assert nothing.startswith("speculate: draft is a builtins.list, expected ")


@twins
@pytest.mark.parametrize("layout", ["sinks", "sinks_absolute", "uncached"])
def test_a_layout_that_drops_tokens_is_refused_by_name(twin, layout):
    kind, told = refused(twin, layout=layout)

    assert kind is Unsupported
    assert told == (
        f"speculate: the {layout} layout cannot take back rejected drafts. Use contiguous, paged, "
        "window or quantized."
    )


@twins
def test_the_order_of_the_publication_is_refused_by_name(twin):
    options = {"bits": 4, "group_size": 6, "residual_length": 6, "order": "kivi"}

    kind, told = refused(twin, layout="quantized", layout_options=options)

    assert kind is Unsupported
    assert told == (
        "speculate: quantized in the order 'kivi' gives another result for tokens verified in one "
        "step. Use the order 'chunk_invariant'."
    )


@twins
@pytest.mark.parametrize("layout", ["window", "quantized", "sinks"])
def test_a_cache_handed_in_with_less_slack_than_the_drafts_need_is_refused(twin, layout):
    caches = module(Cell(twin, "llama", layout), "caches")
    options = {
        "quantized": {"bits": 4, "group_size": 6, "residual_length": 6},
        "sinks": {"sinks": 2, "window": 6},
    }.get(layout, {})
    cache = caches.init(
        CONFIG, batch=3, capacity=64, dtype="float64", slack=4, layout=layout, **options
    )

    kind, told = refused(twin, draft="lookup", cache=cache, k=4)

    if layout == "sinks":
        assert kind is Unsupported
        assert told.startswith("speculate: the sinks layout cannot take back rejected drafts.")
        return
    assert kind is RequestError
    assert told == (
        "speculate: the cache has slack 4, expected at least k + 1 = 5 to take back rejected "
        "drafts. Make it with slack=5, or lower k by 1."
    )


@twins
def test_a_draft_model_beside_a_cache_handed_in_is_refused(twin):
    first = importlib.import_module(f"{twin}.generation").generate(
        model(twin), PROMPTS, max_new_tokens=2, capacity=64, keep_cache=True
    )

    kind, told = refused(twin, draft="itself", cache=first.cache)

    assert kind is RequestError
    assert told == (
        "speculate: cache is given, expected None beside a draft model: its own cache lacks what "
        "this one holds. Pass the whole texts, or draft=PromptLookup()."
    )


@twins
def test_an_encoder_is_refused(twin):
    checkpoint, _ = open_subject("t5")
    from_arrays = importlib.import_module(f"{twin}.weights").from_arrays
    t5 = from_arrays(checkpoint.config, checkpoint.weights, dtype="float64")
    call = importlib.import_module(f"{twin}.speculative").speculate

    with pytest.raises(Unsupported) as error:
        call(t5, [[0]], draft=draft(twin, "lookup"), k=2, max_new_tokens=3)

    assert str(error.value) == (
        "speculate: the model has an encoder, beside which drafts are not verified. Use `generate`."
    )
