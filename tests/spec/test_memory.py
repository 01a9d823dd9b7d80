"""Memory and scores in exact whole numbers: known ones, brute force, and live caches (KV-80)."""

import importlib
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxkv.spec import families, memory
from jaxkv.spec.config import Attention, Layer, Mlp, ModelConfig, Norm, Rope
from jaxkv.spec.errors import RequestError
from jaxkv.spec.memory_examples import Example, beyond, examples, score_counts

TABLE = [
    ("32 layers, 4096 tokens, 8 KV heads, head 128, 2 bytes, batch 1", 536_870_912, ""),
    ("80 layers, 4096 tokens, 8 KV heads, head 128, 2 bytes, batch 1", 1_342_177_280, ""),
    ("GPT-2 XL (48 layers, 25 heads, head 64), 1024 tokens, 2 bytes", 314_572_800, ""),
    (
        "GPT-2 XL (48 layers, 25 heads, head 64), 4096 tokens, 2 bytes",
        1_258_291_200,
        "beyond the model's 1024 positions: storage only",
    ),
    (
        "DeepSeek-V3 latent: 61 layers, 4096 tokens, (512 + 64), 2 bytes",
        287_834_112,
        "1,152 a token and layer",
    ),
    (
        "DeepSeek-V3 expanded, a token and layer, 128 heads, keys 192, values 128, 2 bytes",
        81_920,
        "the latent saves 98.59375 % against this",
    ),
    (
        "DeepSeek-V3 with 128-wide keys and values only, a token and layer",
        65_536,
        "the latent saves 98.2421875 % against this",
    ),
    ("weights: 7e9 parameters, 2 bytes", 14_000_000_000, ""),
    (
        "weights: 70e9 parameters, 2 bytes",
        140_000_000_000,
        "over one card of 80,000,000,000 bytes, before any cache",
    ),
]


def model(*windows: int | None) -> ModelConfig:
    """Return a config whose head width, 16, is not width / heads, 10."""
    mlp = Mlp(52, "silu", gated=True, bias=False)
    return ModelConfig(
        family="llama",
        vocab_size=97,
        width=40,
        max_positions=64,
        layers=tuple(
            Layer(Attention(4, 2, 16, window, Rope(100.0, 16), False, False), mlp)
            for window in windows
        ),
        norm=Norm("rms", 1e-5),
        learned_positions=False,
        tied_head=True,
        head_bias=False,
    )


@pytest.mark.parametrize(("row", "known"), list(zip(examples(), TABLE, strict=True)), ids=str)
def test_examples_are_the_known_numbers(row: Example, known: tuple[str, int, str]):
    assert (row.case, row.size_bytes, row.note) == known


@pytest.mark.parametrize(
    ("n", "counts"),
    [(500, (125_250, 41_791_750, 20_958_500)), (2048, (2_098_176, 2_865_409_024, 1_433_753_600))],
)
def test_score_counts_are_the_known_numbers(n: int, counts: tuple[int, ...]):
    assert tuple(score_counts(n).values()) == counts


@given(n=st.integers(0, 40), prompt=st.integers(0, 40), window=st.none() | st.integers(1, 50))
def test_cached_scores_are_the_keys_that_each_fed_token_sees(
    n: int, prompt: int, window: int | None
):
    seen = [t if window is None else min(t, window) for t in range(prompt + 1, prompt + n + 1)]

    assert memory.cached_scores(n, prompt=prompt, window=window) == sum(seen)


@given(n=st.integers(0, 40), prompt=st.integers(0, 40))
def test_uncached_scores_are_the_sum_over_whole_forwards(n: int, prompt: int):
    lengths = range(prompt + 1, prompt + n + 1)

    assert memory.uncached_squares(n, prompt=prompt) == sum(t * t for t in lengths)
    assert memory.uncached_pairs(n, prompt=prompt) == sum(t * (t + 1) // 2 for t in lengths)


@given(prompt=st.integers(1, 40), n=st.integers(1, 40))
def test_generation_feeds_all_but_its_last_token(prompt: int, n: int):
    scores = memory.cached_scores(n - 1, prompt=prompt)

    assert scores == (n - 1) * prompt + n * (n - 1) // 2


def test_unequal_key_and_value_widths_are_summed():
    sizes = {"layers": 3, "tokens": 5, "kv_heads": 2, "itemsize": 4, "batch": 7}

    size_bytes = memory.cache_bytes(**sizes, key_width=6, value_width=10)

    assert size_bytes == 7 * 3 * 5 * 2 * (6 + 10) * 4


@pytest.mark.parametrize("layout", ["contiguous", "window"])
@pytest.mark.parametrize("slack", [0, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("twin", ["jaxkv", "torchkv"])
def test_reported_bytes_are_those_of_the_live_arrays(
    twin: str, layout: str, slack: int, dtype: str
):
    """KV-80: 2 KV heads, head 16 (not width / heads), one local layer with W = 8, capacity 32."""
    config, caches = model(8, None), importlib.import_module(f"{twin}.caches")
    framework: Any = importlib.import_module("jax.numpy" if twin == "jaxkv" else "torch")
    kind = np.dtype(getattr(framework, dtype)) if twin == "jaxkv" else getattr(framework, dtype)

    cache = caches.init(config, batch=3, capacity=32, dtype=kind, layout=layout, slack=slack)

    counted = memory.model_cache_bytes(
        config,
        batch=3,
        tokens=32,
        itemsize=memory.ITEMSIZES[dtype],
        layout=layout,
        slack=slack,
    )
    assert counted + memory.bookkeeping_bytes(3) == caches.nbytes(cache)


@pytest.mark.parametrize("pool_pages", [None, 17])
@pytest.mark.parametrize("page_size", [1, 5, 16])
@pytest.mark.parametrize("twin", ["jaxkv", "torchkv"])
def test_reported_bytes_of_pages_are_those_of_the_live_arrays(
    twin: str, page_size: int, pool_pages: int | None
):
    """KV-80: the trash page, the table and the counts among them; capacity 12, no whole page."""
    config, caches = model(8, None), importlib.import_module(f"{twin}.caches")
    sizes = {"page_size": page_size, "pool_pages": pool_pages}

    cache = caches.init(config, batch=3, capacity=12, dtype="float32", layout="paged", **sizes)

    counted = memory.model_cache_bytes(
        config, batch=3, tokens=12, itemsize=4, layout="paged", **sizes
    )
    table = memory.page_table_bytes(batch=3, tokens=12, **sizes)
    assert counted + table + memory.bookkeeping_bytes(3) == caches.nbytes(cache)


def test_kv_heads_count_and_query_heads_do_not():
    layer = model(None).layers[0]
    more = replace(layer, attention=replace(layer.attention, num_heads=8))
    sizes = {"batch": 1, "tokens": 9, "itemsize": 2}

    few, many = (
        memory.model_cache_bytes(replace(model(None), layers=(each,)), **sizes)
        for each in (layer, more)
    )

    assert few == many == 9 * 2 * (16 + 16) * 2


def test_parameters_are_those_of_the_arrays_and_a_tied_head_counts_once():
    config = families.preset("reference")
    tied = replace(config, tied_head=True, head_bias=False)

    assert memory.num_parameters(config) == 19_267
    assert memory.num_parameters(config) - memory.num_parameters(tied) == 19 * 24 + 19


@given(size=st.integers(0, 10**6), windows=st.sampled_from([(None,), (5, None), (5, 9)]))
def test_equal_length_is_the_first_at_which_the_cache_reaches_the_size(
    size: int, windows: tuple[int | None, ...]
):
    def bytes_at(tokens: int) -> int:
        return memory.model_cache_bytes(
            model(*windows), batch=2, tokens=tokens, itemsize=4, layout="window"
        )

    length = memory.equal_length(size, bytes_at, most=1 << 40)

    if length is None:
        assert None not in windows
        assert bytes_at(10**9) < size
    else:
        assert bytes_at(length) >= size
        assert length == 0 or bytes_at(length - 1) < size


def test_requests_that_fit_are_the_whole_ones_of_what_is_left():
    fit = memory.Fit(
        usable_bytes=1000,
        weights_bytes=500,
        workspace_bytes=60,
        reserve_bytes=41,
        request_bytes=100,
    )

    assert (fit.left_bytes, fit.requests, fit.fault) == (399, 3, None)


def test_weights_over_the_memory_give_no_requests_and_say_so():
    fit = memory.Fit(80 * 10**9, 140 * 10**9, 0, 0, 10)

    assert fit.requests == 0
    assert fit.fault == (
        "the weights alone, 140,000,000,000 bytes, exceed the usable memory, 80,000,000,000"
    )


def test_workspace_and_reserve_can_leave_nothing_too():
    fit = memory.Fit(100, 60, 30, 11, 10)

    assert (fit.requests, fit.fault) == (
        0,
        "weights, workspace and reserve exceed the memory by 1 bytes",
    )


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (memory.saving(1_152, baseline_bytes=81_920), "98.59375 %"),
        (memory.saving(1_152, baseline_bytes=65_536), "98.2421875 %"),
        (memory.saving(1, baseline_bytes=3), "~66.6667 %"),
        (Fraction(1, 2), "50 %"),
        (Fraction(1), "100 %"),
        (Fraction(0), "0 %"),
    ],
)
def test_percent_has_all_digits_when_they_end(share: Fraction, text: str):
    assert memory.percent(share) == text


def test_a_length_that_a_model_cannot_run_is_marked():
    assert beyond(1024, 1024) == ""
    assert beyond(1025, 1024) == "beyond the model's 1024 positions: storage only"


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("40GiB", 40 * 2**30),
        ("40 GB", 40 * 10**9),
        ("1.5kib", 1536),
        ("80e9", 80 * 10**9),
        ("12,345", 12_345),
        ("0", 0),
        ("7B", 7),
        ("2TiB", 2**41),
    ],
)
def test_bytes_are_read_with_their_unit(text: str, size_bytes: int):
    assert memory.parse_bytes("--memory", text) == size_bytes


@pytest.mark.parametrize("text", ["", "-1", "GiB", "4 giga", "nan", "1e999999999", "1/0", "4Gib4"])
def test_text_that_is_no_size_is_refused(text: str):
    with pytest.raises(RequestError) as error:
        memory.parse_bytes("--memory", text)

    assert str(error.value) == (
        f"memory: --memory is {text!r}, expected bytes such as 40GiB, 512MiB or 80e9."
    )


def test_unknown_layout_is_refused():
    with pytest.raises(RequestError) as error:
        memory.model_cache_bytes(model(None), batch=1, tokens=1, itemsize=2, layout="ring")

    assert str(error.value) == (
        "model_cache_bytes: layout is 'ring', expected one of contiguous, paged, window."
    )
