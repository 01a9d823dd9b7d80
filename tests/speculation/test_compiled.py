"""What XLA makes of the rounds: the cache stays where it is, and little is traced."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from jaxkv import caches, programs
from jaxkv.drafts import DraftModel, PromptLookup
from jaxkv.loop import Terms
from jaxkv.model import params_of
from jaxkv.programs import PROGRAMS
from jaxkv.speculation import run
from tests.compiled.hlo import loop_operations
from tests.speculation.twins import CONFIG, SMALL, model, speculate

SLOTS, K = 128, 4


def program(batch, *, looks):
    """Return the compiled speculation of the tiny llama in float32 with a donated cache."""
    whole, small = (model("jaxkv", small=x, dtype="float32") for x in (False, True))
    cache, own = (
        caches.init(config, batch=batch, capacity=SLOTS, dtype="float32")
        for config in (CONFIG, SMALL)
    )
    vector = jnp.full(batch, 5, jnp.int32)
    terms = Terms(vector, jnp.zeros_like(vector), jnp.full(4, -1, jnp.int32), None)
    draft = None if looks else DraftModel(params_of(small), own, SMALL)
    lowered = PROGRAMS.jitted(run, donate=("cache",)).lower(
        params_of(whole),
        jnp.zeros((batch, 16), jnp.int32),
        vector,
        terms,
        cache,
        draft,
        config=CONFIG,
        lookup=PromptLookup() if looks else None,
        k=K,
        reach=SLOTS,
        fresh=True,
        rectangular=True,
        clean=True,
    )
    return SimpleNamespace(compiled=lowered.compile(), cache=cache)


@pytest.mark.parametrize(("batch", "looks"), [(1, True), (3, False)], ids=["lookup", "model"])
def test_no_round_copies_a_cache(batch, looks):
    """Two loops of at most one trip and a rollback by row: all in place."""
    built = program(batch, looks=looks)

    text = built.compiled.as_text()
    operations = loop_operations(text)

    for shape in (f"f32[{batch * 3},18,{SLOTS}]", f"f32[{batch * 3},{SLOTS},18]"):
        for kind in ("copy", "select", "concatenate", "transpose"):
            assert operations[kind, shape] == 0, kind
    buffers = sum(leaf.nbytes for site in built.cache.sites for leaf in jax.tree.leaves(site))
    assert built.compiled.memory_analysis().alias_size_in_bytes >= buffers


def test_other_prompts_budgets_ends_and_drafts_of_one_config_cost_no_compilation(monkeypatch):
    monkeypatch.setattr(programs, "PROGRAMS", programs.Programs())

    counts = [
        speculate("jaxkv", draft=name, **asked).compilations
        for name, asked in (
            ("itself", {}),
            ("near", {"max_new_tokens": 7}),
            ("unrelated", {"end_ids": [3, 5], "max_new_tokens": [1, 20, 0]}),
        )
    ]

    assert counts == [1, 0, 0]
