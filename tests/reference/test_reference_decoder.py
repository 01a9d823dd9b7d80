"""The founding text's reference decoder: what it is, and what must hold on ids of shape (2, 17)."""

import numpy as np
import pytest

from crosscheck import assert_agree, close
from jaxkv.spec.families import preset
from jaxkv.spec.weight_shapes import weight_shapes
from tests.tiny import TWINS, Cell, feed, make_subject, weights

EXACT = close(rtol=1e-10, atol=1e-10)
IDS = np.random.default_rng(17).integers(0, 19, (2, 17))


@pytest.fixture(params=TWINS)
def subject(request):
    return make_subject(Cell(request.param, "reference", "contiguous"))


def test_the_preset_has_the_sizes_of_the_founding_text():
    config = preset("reference")
    attention, mlp = config.layers[0].attention, config.layers[0].mlp

    assert (config.vocab_size, config.width, config.num_layers, config.max_positions) == (
        19,
        24,
        2,
        160,
    )
    assert (attention.num_heads, attention.num_kv_heads, attention.head_dim) == (3, 3, 8)
    assert attention.qkv_bias
    assert attention.out_bias
    assert (mlp.width, mlp.activation, mlp.gated, mlp.bias) == (96, "gelu", False, True)
    assert (config.norm.kind, config.norm.eps) == ("layer", 1e-5)
    assert config.learned_positions
    assert not config.tied_head
    assert config.head_bias
    assert config.dropout_rate == 0.0
    assert weight_shapes(config)["head.bias"] == (19,)


def test_its_embeddings_are_drawn_from_the_standard_normal():
    embed = np.concatenate(
        [weights("reference")[f"{name}.weight"] for name in ("embed", "position")]
    )

    assert abs(embed.mean()) < 0.05
    assert abs(embed.std() - 1) < 0.05


def test_the_four_chunks_equal_the_full_forward(subject):
    logits, _ = feed(subject, subject.init(2, 160), IDS, [5, 3, 1, 8])

    assert_agree(logits, subject.full(IDS), EXACT, name="logits", names=("chunks", "full"))


def test_five_cached_tokens_give_caches_of_2_by_3_by_5_by_8(subject):
    _, state = subject.step(subject.init(2, 160), IDS[:, :5])

    for layer in range(2):
        kv = subject.kv(state, layer)
        assert kv.valid_BS.sum(1).tolist() == [5, 5]
        keys, values = kv.keys_BSKH[:, :5].swapaxes(1, 2), kv.values_BSKH[:, :5].swapaxes(1, 2)
        assert keys.shape == values.shape == (2, 3, 5, 8)
        assert np.abs(keys).min() > 0


def test_the_first_token_is_stored_where_it_belongs(subject):
    """KV-26: slot 0 holds the first token's own key, not zeros."""
    arrays = weights("reference")
    x = arrays["embed.weight"][IDS[:, 0]] + arrays["position.weight"][0]
    x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    x = x * arrays["layers.0.attn_norm.weight"] + arrays["layers.0.attn_norm.bias"]
    key = x @ arrays["layers.0.attn.k.weight"].T + arrays["layers.0.attn.k.bias"]

    _, state = subject.step(subject.init(2, 160), IDS[:, :1])

    stored = subject.kv(state, 0).keys_BSKH[:, 0].reshape(2, 24)
    np.testing.assert_allclose(stored, key, rtol=0, atol=1e-12)


def test_a_learned_position_belongs_to_the_token_not_to_the_call(subject):
    """KV-02: prefill 5, then 3 one by one, then 2 at once."""
    logits, _ = feed(subject, subject.init(2, 160), IDS, [5, 1, 1, 1, 2])

    assert_agree(logits, subject.full(IDS[:, :10]), EXACT, name="logits")


def test_twelve_greedy_tokens_are_equal_with_and_without_the_cache(subject):
    cached = subject.generate(IDS.tolist(), 12)
    uncached = subject.generate(IDS.tolist(), 12, cached=False)

    assert cached.new_tokens == uncached.new_tokens
    assert [len(row) for row in cached.new_tokens] == [12, 12]


def test_zero_tokens_return_the_prompt(subject):
    assert subject.generate(IDS.tolist(), 0).tokens == IDS.tolist()


def test_a_crop_with_restarted_positions_is_another_function(subject):
    """Cropping the context and counting from 0 again is not the same model with less memory."""
    full = subject.full(IDS)

    crop = subject.full(IDS[:, 1:])

    assert np.abs(full[:, 1:] - crop).max() > 1e-3
