"""How often a program is traced, counted where it happens; budgets and prompts cost none."""

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from jaxkv import block, programs, request, stack
from jaxkv.generation import generate
from jaxkv.planning import plan
from jaxkv.spec.errors import CapacityError
from jaxkv.spec.random_weights import random_arrays
from jaxkv.spec.tiny_families import tiny_family
from jaxkv.streaming import stream
from jaxkv.weights import from_arrays
from tests.tiny import CONFIGS, DEEP, make_model


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(programs, "PROGRAMS", programs.Programs())
    return make_model("jaxkv", "llama", "float32")


def test_another_budget_or_prompt_of_the_same_bucket_costs_no_compilation(model):
    """KV-19, KV-20: one program for all of them."""
    first = generate(model, [[1, 2, 3]], max_new_tokens=8)
    others = [
        generate(model, [np.arange(length).tolist()], max_new_tokens=budget)
        for length in (1, 5, 16)
        for budget in (1, 2, 32)
    ]

    assert first.compilations == 1
    assert [other.compilations for other in others] == [0] * 9


def test_layers_of_one_kind_are_traced_once_in_prefill_and_once_in_the_step(monkeypatch):
    monkeypatch.setattr(programs, "PROGRAMS", programs.Programs())
    model, traced = make_model("jaxkv", "gpt2", "float32"), []

    def counted(p, x_BTD, *rest, **options):
        traced.append(x_BTD.shape[1])
        return block.block(p, x_BTD, *rest, **options)

    monkeypatch.setattr(stack, "block", counted)

    generate(model, [[1, 2, 3]], max_new_tokens=2)

    assert (model.config.num_layers, len(set(model.config.layers))) == (2, 1)
    assert traced == [16, 1]


# Of each layout, and of what else a cache may hold, one.
KINDS = {
    "window": ("llama", {"layout": "window", "slack": 2}),
    "paged": ("llama", {"layout": "paged", "page_size": 4}),
    "quantized": (
        "llama",
        {
            "layout": "quantized",
            "layout_options": {"bits": 4, "group_size": 6, "residual_length": 6},
        },
    ),
    "sinks": ("llama", {"layout": "sinks", "layout_options": {"sinks": 2, "window": 6}}),
    "latents": ("deepseek_v3", {}),
    "encoder": ("t5", {}),
}
if DEEP:
    KINDS["latents in pages"] = ("deepseek_v3", {"layout": "paged", "page_size": 4})


@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_loop_is_one_program_whatever_the_cache_holds(monkeypatch, kind):
    """KV-19, KV-20: and other lengths and budgets run the same one."""
    monkeypatch.setattr(programs, "PROGRAMS", programs.Programs())
    family, options = KINDS[kind]
    config = CONFIGS[family] if family in CONFIGS else tiny_family(family)
    model = from_arrays(config, random_arrays(config, seed=7), dtype="float32")

    counts = []
    for length, budget in ((3, 8), (14, 2), (7, 32)):
        source = {} if config.encoder is None else {"encoder": [[5] * length]}
        done = generate(model, [[1] * length], max_new_tokens=budget, **options, **source)
        assert len(done.new_tokens[0]) == budget
        counts.append(done.compilations)

    assert counts == [1, 0, 0]
    assert programs.PROGRAMS.traces == 1


def test_a_requests_cache_is_made_by_a_program_that_the_next_one_uses(model, monkeypatch):
    made, init = [], request.caches.init
    monkeypatch.setattr(
        request.caches, "init", lambda *args, **how: made.append(how) or init(*args, **how)
    )

    for _ in range(3):
        generate(model, [[1, 2, 3]], max_new_tokens=2, capacity=77)

    assert [how["capacity"] for how in made] == [77]


def test_a_new_bucket_costs_one_compilation(model):
    """The count moves when there is something to count."""
    counts = [
        generate(model, [[1] * length], max_new_tokens=3).compilations for length in (3, 17, 9, 20)
    ]

    assert counts == [1, 1, 0, 0]


def test_prompts_of_3_to_20_tokens_trace_two_programs(model):
    """KV-20: bounded by the buckets, not by the lengths."""
    total = sum(generate(model, [[1] * n], max_new_tokens=4).compilations for n in range(3, 21))

    assert total == 2


def test_a_row_that_never_ends_and_one_that_does_share_a_program(model):
    free = generate(model, [[5, 6, 7]], max_new_tokens=6)

    ended = generate(model, [[5, 6, 7]], max_new_tokens=6, end_ids=[free.new_tokens[0][1]])

    assert ended.new_tokens[0] == free.new_tokens[0][:2]
    assert ended.compilations == 0


def test_a_longer_second_request_on_one_capacity_costs_no_compilation(model):
    """KV-19: 8 tokens, then 32, then 8 with another prompt, capacity 64 each time."""
    results = [
        generate(model, [prompt], max_new_tokens=budget, capacity=64, keep_cache=True)
        for prompt, budget in (([1, 2, 3], 8), ([4, 5], 32), ([6] * 9, 8))
    ]

    assert [result.compilations for result in results] == [1, 0, 0]
    assert [result.cache.capacity for result in results] == [64] * 3
    with pytest.raises(CapacityError, match=r"= 66 slots .* capacity 64"):
        generate(model, [[1] * 27], max_new_tokens=40, capacity=64)


def test_other_sampling_settings_and_seeds_cost_no_compilation(model):
    """One program for all that draw, whichever settings; greedy is another."""
    prompts = [[1, 2, 3], [4, 5]]
    settings = [
        {"temperature": 0.7},
        {"temperature": 2.0, "seeds": 5},
        {"temperature": [0.0, 1.0], "top_k": 7},
        {"temperature": 0.5, "top_p": 0.9, "min_p": 0.1, "seeds": [1, 2]},
    ]

    counts = [
        generate(model, prompts, max_new_tokens=4, **asked).compilations
        for asked in (*settings, {}, {"top_k": 3})
    ]

    assert counts == [1, 0, 0, 0, 1, 0]


def test_streams_share_one_program_for_the_prompt_and_one_for_the_steps(model):
    for prompt, budget, steps in (([1, 2, 3], 8, 5), ([4] * 16, 20, 1), ([5], 3, 64)):
        list(stream(model, [prompt], max_new_tokens=budget, steps=steps))

    assert programs.PROGRAMS.traces == 2


def test_a_long_prompt_in_pieces_costs_one_program_more(model):
    for length in (40, 64, 33):
        list(stream(model, [[1] * length], max_new_tokens=5, steps=2, chunk=16))

    assert programs.PROGRAMS.traces == 3


def test_a_closed_stream_leaves_its_programs_to_the_next_one(model):
    first = stream(model, [[1, 2, 3]], max_new_tokens=8, steps=2)
    next(first)
    next(first)
    first.close()

    list(stream(model, [[3, 4]], max_new_tokens=20, steps=4))

    assert programs.PROGRAMS.traces == 2


@pytest.mark.parametrize(("prompts", "longest"), [(100, 1000)] if DEEP else [(30, 120)], ids=str)
def test_prompts_of_all_lengths_trace_at_most_16_programs(monkeypatch, prompts, longest):
    """KV-20: and no prompt is padded beyond twice its length, or 16 tokens."""
    monkeypatch.setattr(programs, "PROGRAMS", programs.Programs())
    sizes = replace(CONFIGS["reference"], max_positions=1200)
    model = from_arrays(sizes, random_arrays(sizes, seed=0), dtype="float32")
    rng = np.random.default_rng(0)
    lengths = [1, 16, 17, longest, *rng.integers(1, longest + 1, prompts - 4).tolist()]
    budgets = [1, 200, 200, 200, *rng.integers(1, 201, prompts - 4).tolist()]

    for length, budget in zip(lengths, budgets, strict=True):
        width = plan(sizes, [[1] * length], max_new_tokens=budget).ids_BT.shape[1]
        assert width <= max(16, 2 * length)
        done = generate(model, [[1] * length], max_new_tokens=budget)
        assert done.forwarded_positions_B.tolist() == [length + budget - 1]

    assert programs.PROGRAMS.traces <= 16


def test_any_mix_of_lengths_and_budgets_has_at_most_16_pairs_of_sizes():
    """The bound itself: every length and budget, counted in the plans alone."""
    sizes = replace(CONFIGS["reference"], max_positions=8192)

    pairs = set()
    for length in range(1, 1001):
        for budget in (1, *range(2, 201, 9), 200):
            found = plan(sizes, [[1] * length], max_new_tokens=budget)
            pairs.add((found.ids_BT.shape[1], found.reach))

    assert len(pairs) <= 16


@pytest.mark.parametrize("twin", ["jaxkv", "torchkv"])
def test_a_long_text_is_not_read_far_beyond_its_end(twin):
    """A quarter beyond 1,024 slots, an eighth beyond 2,048, with few sizes in all."""
    planned, reaches = import_module(f"{twin}.planning").plan, set()
    sizes = replace(CONFIGS["reference"], max_positions=16384)
    for need in (1, 128, 129, 1024, 1025, 2048, 2049, 2305, 16384, *range(7, 16384, 41)):
        reach = planned(sizes, [[1]], max_new_tokens=need).reach
        assert 0 <= reach - need < max(128, need if need < 1024 else max(256, need / 8))
        assert planned(sizes, [[1]], max_new_tokens=reach).reach == reach
        reaches.add(reach)

    assert sorted(reaches)[:6] == [128, 256, 512, 1024, 1280, 1536]
    assert len(reaches) == 4 + 4 + 3 * 8


def test_a_donated_cache_that_is_used_again_says_so(model):
    """KV-22: JAX names the deleted array; the fork lives on."""
    from jaxkv import caches

    first = generate(model, [[1, 2, 3]], max_new_tokens=2, keep_cache=True, capacity=64)
    spare = caches.fork(first.cache)
    generate(model, [[4]], max_new_tokens=2, cache=first.cache, consume=True)

    with pytest.raises((RuntimeError, ValueError), match="deleted"):
        generate(model, [[4]], max_new_tokens=2, cache=first.cache)
    assert len(generate(model, [[4]], max_new_tokens=2, cache=spare).new_tokens[0]) == 2
