"""What a cache of latents keeps, and that every verb holds for it."""

import importlib
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from crosscheck import assert_agree, close, semantic
from jaxkv.spec import memory
from jaxkv.spec.config import Attention, Latent, Layer, Mlp, ModelConfig, Norm, Rope
from jaxkv.spec.config_json import ConfigJson
from jaxkv.spec.errors import ShapeError, Unsupported
from jaxkv.spec.families import huggingface_family
from jaxkv.spec.identity import Identity
from jaxkv.spec.tiny_families import tiny_family
from tests.latent.models import IDS, LAYOUTS, ragged, subject
from tests.tiny import TWINS, Cell, module

twins = pytest.mark.parametrize("twin", TWINS)
layouts = pytest.mark.parametrize("layout", LAYOUTS)
TINY = tiny_family("deepseek_v3")
EXACT = close(rtol=1e-10, atol=1e-10)
V3 = {
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "max_position_embeddings": 163840,
    "num_nextn_predict_layers": 1,
}


def test_v3_keeps_1152_bytes_a_token_and_layer_at_two_bytes():
    config = huggingface_family("deepseek_v3").config_from_huggingface(ConfigJson(V3))

    size_bytes = memory.model_cache_bytes(config, batch=1, tokens=4096, itemsize=2)

    assert size_bytes == 61 * 4096 * 1152 == 287_834_112
    expanded = memory.expanded_cache_bytes(config, batch=1, tokens=1, itemsize=2)
    assert expanded == 61 * 128 * (192 + 128) * 2 == 61 * 81_920
    assert config.draft_layers == 1


@pytest.mark.parametrize(
    "paged", [{}, {"page_size": 4}, {"page_size": 4, "pool_pages": 5}], ids=str
)
@twins
def test_latent_16_and_rotary_4_keep_20_numbers_a_token_and_layer(twin, paged):
    """KV-55: not the 4 * (12 + 8) of keys and values made of them; KV-80: counted to the byte."""
    latent = Latent(16, 8, 8, 1e-6)
    attention = Attention(4, 1, 20, None, Rope(100.0, 4), False, False, latent=latent)
    layer = Layer(attention, Mlp(12, "silu", gated=True, bias=False))
    config = ModelConfig("llama", 9, 24, 32, (layer,) * 2, Norm("rms", 1e-5), False, True, False)
    caches = module(Cell(twin, "", ""), "caches")

    layout = "paged" if paged else "contiguous"
    cache = caches.init(config, batch=3, capacity=10, dtype="float32", layout=layout, **paged)

    kept = memory.model_cache_bytes(config, batch=3, tokens=10, itemsize=4, layout=layout, **paged)
    # Three pages of 4 for each row's 10, or five, and the trash page.
    slots = 4 * (paged.get("pool_pages", 3 * 3) + 1) if paged else 3 * 10
    assert kept == 2 * slots * 20 * 4
    table = memory.page_table_bytes(batch=3, tokens=10, **paged) if paged else 0
    assert caches.nbytes(cache) == kept + memory.bookkeeping_bytes(3) + table


@layouts
@twins
def test_rolled_back_rows_answer_as_if_they_had_never_held_more(twin, layout):
    cell, kept = subject(twin, layout), np.array([9, 4, 0, 12])
    _, state = ragged(cell)

    state = cell.rollback(state, kept)
    logits, _ = cell.step(state, IDS[:, 12:20])

    texts = np.zeros((4, 24), int)
    for row, held in enumerate(kept):
        texts[row, : held + 8] = [*IDS[row, :held], *IDS[row, 12:20]]
    whole = cell.full(texts, count=kept + 8)
    expected = np.stack([whole[row, held : held + 8] for row, held in enumerate(kept)])
    assert_agree(logits, expected, EXACT, name="logits")


@layouts
@twins
def test_gathered_forked_and_poisoned_rows_answer_the_same(twin, layout):
    cell, rows = subject(twin, layout), [2, 0, 2, 3]
    _, state = ragged(cell)
    expected, _ = cell.step(cell.fork(state), IDS[:, 12:20])

    gathered, _ = cell.step(cell.poison(cell.gather(cell.fork(state), rows)), IDS[rows, 12:20])

    assert_agree(gathered, expected[rows], EXACT, name="logits")
    again, _ = cell.step(state, IDS[:, 12:20])
    assert_agree(again, expected, EXACT, name="logits")


@layouts
@twins
def test_a_saved_cache_of_latents_answers_as_before(twin, layout, tmp_path):
    cell, path = subject(twin, layout), tmp_path / "c.safetensors"
    caches, owner = module(Cell(twin, "", ""), "caches"), Identity(TINY, "3", "float64", layout)
    _, state = ragged(cell)
    texts = [IDS[row, :held].tolist() for row, held in enumerate(cell.length(state))]
    caches.save(state, path, identity=owner, tokens=texts)

    loaded = caches.load(path, cell.init(4, 44), identity=owner, tokens=texts)

    left, _ = cell.step(state, IDS[:, 12:20])
    right, _ = cell.step(loaded, IDS[:, 12:20])
    np.testing.assert_array_equal(left, right)


@layouts
@twins
def test_values_are_a_view_of_the_keys_and_the_twins_keep_the_same(twin, layout):
    cell = subject(twin, layout)
    _, state = ragged(cell)

    kv, other = cell.kv(state, 1), subject("jaxkv", "contiguous")
    stored = other.kv(ragged(other)[1], 1)

    assert kv.keys_BSKH.shape[2:] == (1, 24 + 8)
    np.testing.assert_array_equal(kv.values_BSKH, kv.keys_BSKH[..., :24])
    for row, valid in enumerate(kv.valid_BS):
        mine, theirs = kv.keys_BSKH[row, valid], stored.keys_BSKH[row, stored.valid_BS[row]]
        assert_agree(mine[None], theirs[None], semantic(), name="keys")


@layouts
@twins
def test_generation_gives_the_ids_that_no_cache_gives(twin, layout):
    prompts = [IDS[0, :9].tolist(), IDS[1, :4].tolist()]
    expected = subject("torchkv", "contiguous").generate(prompts, 6, cached=False).new_tokens

    assert subject(twin, layout).generate(prompts, 6).new_tokens == expected


@twins
def test_values_beside_latents_are_refused(twin):
    caches = module(Cell(twin, "", ""), "caches")
    cache = caches.init(tiny_family("deepseek_v3"), batch=1, capacity=4, dtype="float32")
    xp: Any = importlib.import_module({"jaxkv": "jax.numpy", "torchkv": "torch"}[twin])
    cache, step = caches.begin(cache, xp.ones(1, dtype=xp.int32), T=1)
    q, k = xp.ones((1, 1, 6, 32), dtype=xp.float32), xp.ones((1, 1, 1, 32), dtype=xp.float32)

    with pytest.raises(Unsupported, match="values are the first 24 channels of the keys"):
        caches.attend(cache.sites[0], step, q, k, k, rule=caches.Rule(scale=1.0))
    with pytest.raises(ShapeError, match="k_BTKH has H=31, the cache has H=32"):
        caches.attend(cache.sites[0], step, q, k[..., 1:], None, rule=caches.Rule(scale=1.0))


@twins
def test_a_ring_of_latents_is_refused_by_name(twin):
    caches, config = module(Cell(twin, "", ""), "caches"), tiny_family("deepseek_v3")
    slid = replace(config.layers[0].attention, window=5)
    config = replace(config, layers=(replace(config.layers[0], attention=slid),))

    with pytest.raises(Unsupported, match="layout 'window' keeps no latents"):
        caches.init(config, batch=1, capacity=9, dtype="float32", layout="window")


def test_a_config_with_a_latent_goes_through_json_and_back():
    config = tiny_family("deepseek_v2")

    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
