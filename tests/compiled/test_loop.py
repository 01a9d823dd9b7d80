"""What the compiled loop does to the cache: read from the program, not from a clock."""

import importlib
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxkv import caches
from jaxkv.loop import Terms, run
from jaxkv.model import params_of
from jaxkv.programs import PROGRAMS
from jaxkv.sampling import Sampler
from tests.compiled.hlo import loop_operations
from tests.tiny import CONFIGS, make_model
from tests.xla_flags import FUSED

SLOTS = 128
LLAMA = CONFIGS["llama"]


def program(
    batch,
    *,
    rectangular=True,
    fresh=True,
    sampler=None,
    logprobs=False,
    slots=SLOTS,
    layout="contiguous",
):
    """Return the compiled generation of the tiny llama in float32 with a donated cache."""
    model = make_model("jaxkv", "llama", "float32")
    cache = caches.init(LLAMA, batch=batch, capacity=slots, dtype="float32", layout=layout)
    vector = jnp.full(batch, 5, jnp.int32)
    terms = Terms(vector, jnp.zeros_like(vector), jnp.full(4, -1, jnp.int32), sampler)
    arrays = (jnp.zeros((batch, 16), jnp.int32), vector, terms, cache)
    lowered = PROGRAMS.jitted(run, donate=("cache",)).lower(
        params_of(model),
        *arrays,
        config=LLAMA,
        reach=slots,
        fresh=fresh,
        rectangular=rectangular,
        clean=True,
        logprobs=logprobs,
    )
    # The suite goes without fused kernels, and the program is another one.
    compiled = lowered.compile(compiler_options=FUSED)
    return SimpleNamespace(compiled=compiled, cache=cache, lowered=lowered)


def _size(shape):
    return int(np.prod([int(n) for n in re.findall(r"\d+", shape.partition("[")[2])], initial=1))


@pytest.mark.parametrize("batch", [1, 5])
def test_a_rectangular_step_is_one_slice_update_per_buffer_and_layer_in_place(batch):
    built = program(batch)

    operations = loop_operations(built.compiled.as_text())

    lines = batch * 3
    for shape in (f"f32[{lines},18,{SLOTS}]", f"f32[{lines},{SLOTS},18]"):
        assert operations["dynamic-update-slice", shape] == 3  # one a layer
        for kind in ("copy", "scatter", "select", "concatenate", "broadcast", "transpose"):
            assert operations[kind, shape] == 0, kind
    assert not any(kind == "scatter" and "18" in shape for kind, shape in operations)


def test_sines_are_computed_once_for_prompt_and_step_not_for_each_head_of_each_layer():
    text = program(5).compiled.as_text()

    assert len(re.findall(r" sine\(", text)) == 2  # of three layers, queries and keys each


@pytest.mark.parametrize("batch", [1, 5])
def test_the_donated_buffers_are_the_results_buffers(batch):
    built = program(batch)

    analysis = built.compiled.memory_analysis()

    buffers = sum(leaf.nbytes for site in built.cache.sites for leaf in jax.tree.leaves(site))
    assert analysis.alias_size_in_bytes >= buffers
    assert analysis.temp_size_in_bytes < buffers


@pytest.mark.parametrize("batch", [5])
def test_a_ragged_step_scatters_in_place(batch):
    operations = loop_operations(program(batch, rectangular=False).compiled.as_text())

    for shape in (f"f32[{batch * 3},18,{SLOTS}]", f"f32[{batch * 3},{SLOTS},18]"):
        assert operations["copy", shape] == 0
        assert operations["select", shape] == 0


def test_a_step_with_sinks_neither_copies_nor_turns_its_keys():
    """Queries are turned for the slots that keys stand in; one product passes over all keys."""
    operations = loop_operations(program(5, layout="sinks").compiled.as_text())

    whole = 5 * 3 * 18 * SLOTS
    on_all = {kind for kind, shape in operations if _size(shape) == whole}
    assert on_all & {"scatter", "dot", "custom-call"}
    assert on_all.isdisjoint({"copy", "multiply", "select", "concatenate", "transpose"})


@pytest.mark.parametrize(("batch", "slots"), [(1, 512), (5, 512), (5, 128)])
@pytest.mark.parametrize("rectangular", [True, False])
def test_a_step_on_pages_never_copies_or_gathers_a_pool(batch, slots, rectangular):
    """One tile or a loop over tiles, and the loop that copies shared pages: all in place."""
    built = program(batch, rectangular=rectangular, slots=slots, layout="paged")

    text = built.compiled.as_text()
    operations = loop_operations(text)

    lines = 3 * (batch * slots // 16 + 1)
    for shape in (f"f32[{lines},18,16]", f"f32[{lines},16,18]"):
        assert operations["scatter", shape] == 3  # one a layer
        for kind in ("copy", "select", "concatenate", "broadcast", "transpose", "gather"):
            assert operations[kind, shape] == 0, kind
    assert "conditional(" not in text
    buffers = sum(leaf.nbytes for site in built.cache.sites for leaf in jax.tree.leaves(site))
    analysis = built.compiled.memory_analysis()
    assert analysis.alias_size_in_bytes >= buffers
    assert analysis.temp_size_in_bytes < buffers


def test_the_same_check_fails_on_a_rank_4_cache_at_batch_1():
    """The layout that XLA copies in every step: the check sees it."""
    shape = (1, 3, SLOTS, 18)

    def step(state):
        at, k, v, x = state
        new = jnp.broadcast_to(x, (1, 3, 1, 18))
        k = jax.lax.dynamic_update_slice(k, new, (0, 0, at, 0))
        v = jax.lax.dynamic_update_slice(v, new, (0, 0, at, 0))
        score = jnp.einsum("BKGH,BKSH->BKGS", jnp.broadcast_to(x, (1, 3, 2, 18)), k)
        seen = jnp.arange(SLOTS) <= at
        weight = jax.nn.softmax(jnp.where(seen, score, -1e30), axis=-1)
        return at + 1, k, v, jnp.einsum("BKGS,BKSH->BKGH", weight, v).sum()

    def loop(k, v):
        return jax.lax.while_loop(lambda s: s[0] < 9, step, (0, k, v, jnp.float32(1)))

    zeros = jax.ShapeDtypeStruct(shape, jnp.float32)
    text = jax.jit(loop, donate_argnums=(0, 1)).lower(zeros, zeros).compile().as_text()
    operations = loop_operations(text)

    copies = sum(count for (kind, _), count in operations.items() if kind in ("copy", "transpose"))
    assert copies > 0


def test_a_drawing_loop_leaves_the_cache_in_place_too():
    """The branch around the sort takes logits, not the cache: no copy of a buffer in the loop."""
    one = jnp.ones(2, jnp.float32)
    sampler = Sampler(one, jnp.full(2, 5, jnp.int32), one / 2, one / 9, jnp.ones(2, jnp.uint32))

    operations = loop_operations(program(2, sampler=sampler, logprobs=True).compiled.as_text())

    for shape in (f"f32[6,18,{SLOTS}]", f"f32[6,{SLOTS},18]"):
        assert operations["dynamic-update-slice", shape] == 3
        assert operations["copy", shape] == operations["select", shape] == 0


def test_a_greedy_program_holds_neither_a_sort_nor_a_random_number():
    text = program(2).lowered.as_text()

    assert "stablehlo.sort" not in text
    assert "shift_right_logical" not in text


def test_a_float32_model_computes_nothing_in_float64_under_x64():
    one = jnp.ones(2, jnp.float32)
    sampler = Sampler(one, jnp.full(2, 5, jnp.int32), one, one, jnp.ones(2, jnp.uint32))
    built = program(2, sampler=sampler, logprobs=True)

    text = built.lowered.as_text()

    assert jax.config.read("jax_enable_x64")
    assert "f32" in text
    assert "f64" not in text


@pytest.mark.parametrize("layout", ["contiguous", "window"])
@pytest.mark.parametrize("batch", [1, 4])
def test_nbytes_equals_the_allocated_arrays_to_the_byte(layout, batch):
    cache = caches.init(LLAMA, batch=batch, capacity=44, dtype="float32", slack=3, layout=layout)

    slots = 44 * 3 if layout == "contiguous" else (5 + 3) + 44 + (8 + 3)

    assert caches.nbytes(cache) == 2 * batch * 3 * 18 * slots * 4 + 3 * batch * 4
    assert caches.nbytes(cache) == sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(cache))


@pytest.mark.parametrize("twin", ["jaxkv", "torchkv"])
def test_nbytes_of_pages_counts_pools_table_counts_and_marks(twin):
    verbs = importlib.import_module(f"{twin}.caches")
    sizes = {"batch": 4, "capacity": 44, "dtype": "float32", "layout": "paged", "page_size": 5}

    whole, small = verbs.init(LLAMA, **sizes), verbs.init(LLAMA, **sizes, pool_pages=9)

    for cache, pages in ((whole, 4 * 9 + 1), (small, 9 + 1)):
        pools, marks = 2 * 3 * pages * 3 * 5 * 18 * 4, 3 * 4 * 4
        assert verbs.nbytes(cache) == pools + 4 * 9 * 4 + pages * 4 + 4 * 4 + 4 + marks


@pytest.mark.parametrize("layout", ["window", "paged"])
def test_no_buffer_occurs_twice_in_a_cache(layout):
    cache = caches.init(LLAMA, batch=2, capacity=44, dtype="float32", layout=layout)

    pointers = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(cache)]

    assert len(set(pointers)) == len(pointers)
