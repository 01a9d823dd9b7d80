"""What the reference decoder refuses, each with its own message: an oracle that guesses is none."""

import numpy as np
import pytest

from crosscheck import DecoderError, decode
from crosscheck.decoder import greedy


def refusal(*args, **kwargs):
    with pytest.raises(DecoderError) as caught:
        decode(*args, **kwargs)
    return str(caught.value)


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([3, 8], "decode: ids_BT is int64 (2,), expected integers [B, T], at least one."),
        ([[]], "decode: ids_BT is float64 (1, 0), expected integers [B, T], at least one."),
        ([[0.5]], "decode: ids_BT is float64 (1, 1), expected integers [B, T], at least one."),
        ([[-1, 3]], "decode: ids_BT holds ids -1 to 3, expected 0 to 10 (config.vocab_size)."),
        ([[3, 11]], "decode: ids_BT holds ids 3 to 11, expected 0 to 10 (config.vocab_size)."),
        ([[0] * 17], "decode: ids_BT has 17 positions, the config 16 (config.max_positions)."),
    ],
)
def test_ids_out_of_range_are_refused(tiny_decoder, ids, text):
    config, arrays, _ = tiny_decoder

    assert refusal(config, arrays, ids) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        ([7, 7], "decode: count_B is int64 (2,), expected integers (3,)."),
        ([7, 7, 8], "decode: count_B holds 7 to 8, expected 0 to 7."),
        ([-1, 7, 7], "decode: count_B holds -1 to 7, expected 0 to 7."),
    ],
)
def test_counts_out_of_range_are_refused(tiny_decoder, count, text):
    config, arrays, ids_BT = tiny_decoder

    assert refusal(config, arrays, ids_BT, count_B=count) == text


def test_a_missing_weight_is_refused(tiny_decoder):
    config, arrays, ids_BT = tiny_decoder
    del arrays["layers.1.attn.q.bias"]

    text = f"decode: weight 'layers.1.attn.q.bias' missing; {len(arrays)} others are there."
    assert refusal(config, arrays, ids_BT) == text


def test_a_weight_without_a_use_is_refused(tiny_decoder):
    config, arrays, ids_BT = tiny_decoder
    arrays["layers.0.attn.q_norm.weight"] = np.ones(8)

    assert refusal(config, arrays, ids_BT) == (
        "decode: weights never used: layers.0.attn.q_norm.weight. "
        "Does the config describe another model?"
    )


def test_a_transposed_matrix_is_refused(tiny_decoder):
    config, arrays, ids_BT = tiny_decoder
    arrays["head.weight"] = arrays["head.weight"].T

    text = "decode: weight 'head.weight' has shape (20, 11), expected (11, 20)."
    assert refusal(config, arrays, ids_BT) == text


def test_mixed_dtypes_are_refused(tiny_decoder):
    config, arrays, ids_BT = tiny_decoder
    arrays["head.weight"] = arrays["head.weight"].astype(np.float16)

    assert refusal(config, arrays, ids_BT) == (
        "decode: arrays are float16, float64, expected all float64 or all float32. "
        "Upcast them first."
    )


def test_an_option_that_would_be_left_out_is_refused(make_config, make_arrays):
    config = make_config()
    arrays = make_arrays(config)
    config["layers"][0]["attention"]["sink"] = 4

    assert refusal(config, arrays, [[3]]) == (
        "decode: config.layers[0].attention has 'sink', which this decoder does not compute."
    )


def test_an_option_that_is_off_is_not_refused(make_config, make_arrays):
    config = make_config()
    arrays = make_arrays(config)
    config["layers"][0]["attention"]["sink"] = None

    assert decode(config, arrays, [[3]]).shape == (1, 1, 11)


def test_an_activation_that_it_does_not_know_is_refused(make_config, make_arrays):
    config = make_config()
    arrays = make_arrays(config)
    config["layers"][0]["mlp"]["activation"] = "mish"

    assert refusal(config, arrays, [[3]]) == (
        "decode: config.layers[0].mlp.activation is 'mish', expected one of 'silu', 'gelu', "
        "'gelu_tanh', 'relu'."
    )


def test_a_missing_option_is_refused(make_config, make_arrays):
    config = make_config()
    arrays = make_arrays(config)
    del config["norm"]["eps"]

    assert refusal(config, arrays, [[3]]) == "decode: config.norm lacks 'eps'."


def test_a_negative_number_of_new_ids_is_refused(tiny_decoder):
    config, arrays, _ = tiny_decoder

    with pytest.raises(DecoderError, match=r"greedy: n is -1, expected at least 0\."):
        greedy(config, arrays, [3], -1)
