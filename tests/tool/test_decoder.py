"""The reference decoder against hand computations, and against what any causal decoder owes."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crosscheck import DecoderError, assert_agree, decode, semantic
from crosscheck.decoder import _attend_one_head, _gelu, _gelu_tanh, _silu, greedy
from crosscheck.decoder_rope import rotate

RULE = {"head_dim": 4, "window": None, "soft_cap": None}


def one_hot_values(t):
    """Return q, k of zeros (uniform attention) and v whose row i marks key i."""
    return np.zeros((t, 4)), np.zeros((t, 4)), np.eye(t)


def test_uniform_attention_averages_all_earlier_tokens():
    o_TT = _attend_one_head(RULE, *one_hot_values(5))

    np.testing.assert_allclose(o_TT, np.tril(np.ones((5, 5))) / np.arange(1, 6)[:, None])


@given(t=st.integers(1, 12), window=st.integers(1, 14))
def test_a_window_sees_its_last_w_keys(t, window):
    o_TT = _attend_one_head(RULE | {"window": window}, *one_hot_values(t))

    seen = [[0 <= i - j < window for j in range(t)] for i in range(t)]
    np.testing.assert_array_equal(o_TT > 0, seen)
    np.testing.assert_array_equal((o_TT > 0).sum(1), np.minimum(np.arange(t) + 1, window))


def test_scores_are_scaled_by_the_root_of_the_head_width():
    q_TH, k_TH = np.array([[0.0] * 4, [2.0, 0, 0, 0]]), np.array([[3.0, 0, 0, 0], [0.0] * 4])

    weight = _attend_one_head(RULE, q_TH, k_TH, np.array([[1.0], [0.0]]))[1, 0]

    assert weight == pytest.approx(math.exp(3) / (math.exp(3) + 1), rel=1e-14)


def test_the_soft_cap_bends_the_scores_and_leaves_the_mask_alone():
    q_TH, k_TH = np.array([[9.0, 0, 0, 0]] * 2), np.array([[9.0, 0, 0, 0], [9.0, 9, 0, 0]])
    k_TH[1] *= -1

    weights_T1 = _attend_one_head(RULE | {"soft_cap": 0.5}, q_TH, k_TH, np.array([[1.0], [0.0]]))

    score = 0.5 * math.tanh(40.5 / 0.5)
    assert weights_T1[0, 0] == 1.0
    assert weights_T1[1, 0] == pytest.approx(1 / (1 + math.exp(-2 * score)), rel=1e-14)


def test_the_soft_cap_is_nearly_linear_below_the_cap():
    q_TH, k_TH = np.array([[0.0] * 4, [2.0, 0, 0, 0]]), np.array([[3.0, 0, 0, 0], [0.0] * 4])

    weights_T1 = _attend_one_head(RULE | {"soft_cap": 5.0}, q_TH, k_TH, np.array([[1.0], [0.0]]))

    score = 5 * math.tanh(3 / 5)
    assert weights_T1[1, 0] == pytest.approx(1 / (1 + math.exp(-score)), rel=1e-14)


def test_large_scores_do_not_overflow():
    q_TH = np.full((3, 4), 1e3)

    assert np.isfinite(_attend_one_head(RULE, q_TH, q_TH, np.eye(3))).all()


@pytest.mark.parametrize("rotary_dim", [8, 6, 2])
def test_rotation_turns_the_complex_pair_i_and_i_plus_r(rotary_dim):
    x_TNH = np.random.default_rng(0).standard_normal((5, 3, 8))
    r = rotary_dim // 2

    y_TNH = rotate({"theta": 50.0, "rotary_dim": rotary_dim, "scaling": None}, x_TNH)

    speed_R = 50.0 ** (-np.arange(r) / r)
    turn_TR = np.exp(1j * np.arange(5)[:, None] * speed_R)
    turned = (x_TNH[..., :r] + 1j * x_TNH[..., r:rotary_dim]) * turn_TR[:, None]
    np.testing.assert_allclose(y_TNH[..., :r], turned.real, atol=1e-14)
    np.testing.assert_allclose(y_TNH[..., r:rotary_dim], turned.imag, atol=1e-14)
    np.testing.assert_array_equal(y_TNH[..., rotary_dim:], x_TNH[..., rotary_dim:])


def test_rotated_scores_depend_on_distance_only():
    rope = {"theta": 10.0, "rotary_dim": 8, "scaling": None}
    q_TNH = np.tile(np.random.default_rng(0).standard_normal((1, 1, 8)), (9, 1, 1))
    k_TNH = np.tile(np.random.default_rng(1).standard_normal((1, 1, 8)), (9, 1, 1))

    scores_TT = rotate(rope, q_TNH)[:, 0] @ rotate(rope, k_TNH)[:, 0].T

    np.testing.assert_allclose(scores_TT[1:, 1:], scores_TT[:-1, :-1], atol=1e-13)


def test_queries_and_keys_are_rotated_and_values_are_not(make_config, make_arrays):
    rotary, plain = make_config(), make_config(attention={"rope": None})
    arrays, taps, plain_taps = make_arrays(rotary), {}, {}

    decode(rotary, arrays, [[3, 8, 1]], taps=taps)
    decode(plain, arrays, [[3, 8, 1]], taps=plain_taps)

    rope = rotary["layers"][0]["attention"]["rope"]
    for part in ("q", "k"):
        turned_TNH = rotate(rope, plain_taps[f"layers.0.{part}"][0])
        np.testing.assert_array_equal(taps[f"layers.0.{part}"][0], turned_TNH)
        assert np.any(taps[f"layers.0.{part}"] != plain_taps[f"layers.0.{part}"])
    np.testing.assert_array_equal(taps["layers.0.v"], plain_taps["layers.0.v"])


def test_gelu_is_the_exact_one():
    mpmath = pytest.importorskip("mpmath")
    x = np.linspace(-12, 12, 97)

    with mpmath.workdps(40):
        expected = [float(mpmath.mpf(v) * mpmath.ncdf(mpmath.mpf(v))) for v in x]

    np.testing.assert_allclose(_gelu(x), expected, rtol=1e-13, atol=0)


def test_gelu_tanh_is_the_written_out_approximation():
    mpmath = pytest.importorskip("mpmath")
    x = np.linspace(-6, 6, 97)

    with mpmath.workdps(40):
        c = mpmath.sqrt(2 / mpmath.pi)
        a = mpmath.mpf("0.044715")
        v = [mpmath.mpf(each) for each in x]
        expected = [float(u / 2 * (1 + mpmath.tanh(c * (u + a * u**3)))) for u in v]

    np.testing.assert_allclose(_gelu_tanh(x), expected, rtol=1e-13, atol=0)


def test_silu_is_x_times_the_logistic_function_and_never_overflows():
    x = np.array([-800.0, -2.0, 0.0, 2.0, 800.0])

    expected = [0.0, -2 / (1 + math.exp(2)), 0.0, 2 / (1 + math.exp(-2)), 800.0]
    np.testing.assert_allclose(_silu(x), expected, rtol=1e-14, atol=1e-300)


def by_hand(config, w, ids_T):
    """Return logits_TV of one layer (rms norm, no positions, silu gate) from einsums and a tril."""
    a, (t,) = config["layers"][0]["attention"], ids_T.shape
    n, k, h = a["num_heads"], a["num_kv_heads"], a["head_dim"]

    def rms(x_TD, name):
        mean_T = np.einsum("td,td->t", x_TD, x_TD) / x_TD.shape[1]
        return np.einsum("td,t,d->td", x_TD, (mean_T + config["norm"]["eps"]) ** -0.5, w[name])

    def project(x_TI, name):
        return np.einsum("ti,oi->to", x_TI, w[f"{name}.weight"]) + w[f"{name}.bias"]

    x_TD = np.stack([w["embed.weight"][i] for i in ids_T])
    n_TD = rms(x_TD, "layers.0.attn_norm.weight")
    q_TNH = project(n_TD, "layers.0.attn.q").reshape(t, n, h)
    k_TNH = project(n_TD, "layers.0.attn.k").reshape(t, k, h).repeat(n // k, axis=1)
    v_TNH = project(n_TD, "layers.0.attn.v").reshape(t, k, h).repeat(n // k, axis=1)
    p_NTS = np.exp(np.einsum("tnh,snh->nts", q_TNH, k_TNH) / math.sqrt(h)) * np.tril(
        np.ones((t, t))
    )
    o_TNH = np.einsum("nts,snh->tnh", p_NTS / p_NTS.sum(-1, keepdims=True), v_TNH)
    x_TD = x_TD + project(o_TNH.reshape(t, n * h), "layers.0.attn.o")
    m_TD = rms(x_TD, "layers.0.mlp_norm.weight")
    gate_TF = project(m_TD, "layers.0.mlp.gate")
    hidden_TF = gate_TF / (1 + np.exp(-gate_TF)) * project(m_TD, "layers.0.mlp.up")
    x_TD = x_TD + project(hidden_TF, "layers.0.mlp.down")
    return project(rms(x_TD, "norm.weight"), "head")


@pytest.mark.parametrize("ids", [[3, 8], [1, 1, 4, 0, 9]], ids=["two-tokens", "five-tokens"])
def test_one_layer_equals_its_einsums(make_config, make_arrays, ids):
    config = make_config(attention={"rope": None})
    arrays = make_arrays(config)

    assert_agree(
        decode(config, arrays, [ids]),
        by_hand(config, arrays, np.array(ids))[None],
        semantic(rtol=1e-13),
        name="logits",
        names=("decode", "by hand"),
    )


def test_learned_positions_are_added_once_at_the_bottom(make_config, make_arrays):
    config = make_config(attention={"rope": None}, learned_positions=True)
    arrays, taps = make_arrays(config), {}

    decode(config, arrays, [[3, 8]], taps=taps)

    expected = arrays["embed.weight"][[3, 8]] + arrays["position.weight"][[0, 1]]
    np.testing.assert_array_equal(taps["embed"][0], expected)


def test_the_layer_norm_has_zero_mean_and_unit_variance_before_its_gain(make_config, make_arrays):
    config = make_config(norm={"kind": "layer", "eps": 1e-12})
    arrays, taps = make_arrays(config), {}
    arrays["norm.weight"][:], arrays["norm.bias"][:] = 1.0, 0.5

    decode(config, arrays, [[3, 8, 2]], taps=taps)

    np.testing.assert_allclose(taps["norm"].mean(-1), 0.5, atol=1e-12)
    np.testing.assert_allclose(taps["norm"].var(-1), 1.0, atol=1e-10)


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_epsilon_stands_under_the_root(make_config, make_arrays, kind):
    config = make_config(norm={"kind": kind, "eps": 4.0})
    arrays, taps = make_arrays(config), {}
    arrays["embed.weight"][3] = np.tile([1.0, -1.0], 10)
    arrays["layers.0.attn_norm.weight"][:] = 1.0
    if kind == "layer":
        arrays["layers.0.attn_norm.bias"][:] = 0.0

    decode(config, arrays, [[3]], taps=taps)

    np.testing.assert_allclose(np.abs(taps["layers.0.attn_norm"]), 5**-0.5, rtol=1e-14)


def test_a_tied_head_is_the_embedding(make_config, make_arrays):
    config = make_config(tied_head=True, head_bias=False)
    arrays, taps = make_arrays(config), {}

    logits_BTV = decode(config, arrays, [[3, 8]], taps=taps)

    np.testing.assert_allclose(
        logits_BTV, np.einsum("btd,vd->btv", taps["norm"], arrays["embed.weight"])
    )


def test_a_feed_forward_without_gate_is_down_of_gelu_of_up(make_config, make_arrays):
    config = make_config(mlp={"activation": "gelu", "gated": False})
    arrays, taps = make_arrays(config), {}
    arrays["layers.0.mlp_norm.weight"][:] = 0.0

    decode(config, arrays, [[3]], taps=taps)

    up_F = arrays["layers.0.mlp.up.bias"]
    hidden_F = np.array([v * (1 + math.erf(v / math.sqrt(2))) / 2 for v in up_F])
    expected = arrays["layers.0.mlp.down.weight"] @ hidden_F + arrays["layers.0.mlp.down.bias"]
    np.testing.assert_allclose(taps["layers.0.mlp"][0, 0], expected, rtol=1e-13)


@pytest.mark.parametrize("n", range(6))
def test_query_head_n_reads_kv_head_n_over_g(make_config, make_arrays, n):
    config = make_config(attention={"out_bias": False})
    arrays = make_arrays(config)
    weight_DNH = arrays["layers.0.attn.o.weight"].reshape(20, 6, 8)
    weight_DNH[:, [m for m in range(6) if m != n]] = 0.0
    read = []

    for k in range(3):
        changed = arrays | {"layers.0.attn.v.bias": arrays["layers.0.attn.v.bias"].copy()}
        changed["layers.0.attn.v.bias"].reshape(3, 8)[k] += 1.0
        read.append(np.any(decode(config, changed, [[3, 8]]) != decode(config, arrays, [[3, 8]])))

    assert read == [k == n // 2 for k in range(3)]


def test_grouped_heads_equal_repeated_ones(make_config, make_arrays):
    config = make_config()
    arrays = make_arrays(config)
    repeated = dict(arrays)
    for name in ("layers.0.attn.k", "layers.0.attn.v"):
        weight_KHD = arrays[f"{name}.weight"].reshape(3, 8, 20)
        repeated[f"{name}.weight"] = weight_KHD.repeat(2, axis=0).reshape(48, 20)
        repeated[f"{name}.bias"] = (
            arrays[f"{name}.bias"].reshape(3, 8).repeat(2, axis=0).reshape(48)
        )

    left = decode(make_config(attention={"num_kv_heads": 6}), repeated, [[3, 8, 1]])

    assert_agree(left, decode(config, arrays, [[3, 8, 1]]), semantic(rtol=1e-13), name="logits")


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_a_row_equals_its_solo_run_and_its_padding_is_zero(make_config, make_arrays, data):
    config = make_config(layers=2)
    arrays, ids_BT = make_arrays(config), np.arange(21).reshape(3, 7) ** 2 % 11
    count_B = data.draw(st.lists(st.integers(0, 7), min_size=3, max_size=3))

    logits_BTV = decode(config, arrays, ids_BT, count_B=count_B)

    for b, count in enumerate(count_B):
        assert not logits_BTV[b, count:].any()
        if count:
            solo = decode(config, arrays, ids_BT[b : b + 1, :count])
            np.testing.assert_array_equal(logits_BTV[b : b + 1, :count], solo)


@settings(deadline=None, max_examples=25)
@given(position=st.integers(1, 6), token=st.integers(0, 10))
def test_a_later_token_moves_no_earlier_logits(make_config, make_arrays, position, token):
    config = make_config(layers=2)
    arrays, ids_BT = make_arrays(config), np.arange(21).reshape(3, 7) ** 2 % 11
    other_BT = ids_BT.copy()
    other_BT[:, position] = token

    left, right = decode(config, arrays, ids_BT), decode(config, arrays, other_BT)

    assert_agree(left[:, :position], right[:, :position], semantic(rtol=1e-13), name="logits")


def test_a_window_as_long_as_the_text_is_no_window(make_config, make_arrays):
    wide, none = make_config(attention={"window": 7}), make_config()
    ids_BT, arrays = [[3, 8, 1, 1, 0, 5, 9]], make_arrays(none)

    np.testing.assert_array_equal(decode(wide, arrays, ids_BT), decode(none, arrays, ids_BT))
    narrow = make_config(attention={"window": 6})
    assert np.any(decode(narrow, arrays, ids_BT)[:, 6] != decode(none, arrays, ids_BT)[:, 6])


def test_layers_may_differ(make_config, make_arrays):
    config = make_config(layers=2)
    sliding = dict(config["layers"][1]) | {
        "attention": config["layers"][1]["attention"] | {"window": 2}
    }
    mixed = config | {"layers": [config["layers"][0], sliding]}
    arrays, ids_BT, taps, mixed_taps = make_arrays(config), [[3, 8, 1, 5]], {}, {}

    decode(config, arrays, ids_BT, taps=taps)
    decode(mixed, arrays, ids_BT, taps=mixed_taps)

    np.testing.assert_array_equal(taps["layers.0.resid"], mixed_taps["layers.0.resid"])
    assert np.any(taps["layers.1.attn"] != mixed_taps["layers.1.attn"])


def test_taps_come_in_the_order_of_the_forward_pass(tiny_decoder):
    config, arrays, ids_BT = tiny_decoder
    taps = {}

    decode(config, arrays, ids_BT, taps=taps)

    block = ("attn_norm", "q", "k", "v", "attn", "mlp_norm", "mlp", "resid")
    layers = [f"layers.{i}.{point}" for i in range(2) for point in block]
    assert list(taps) == ["embed", *layers, "norm", "logits"]
    assert taps["layers.0.q"].shape == (3, 7, 6, 8)
    assert taps["layers.0.k"].shape == taps["layers.0.v"].shape == (3, 7, 3, 8)
    residual = taps["embed"] + taps["layers.0.attn"] + taps["layers.0.mlp"]
    np.testing.assert_allclose(taps["layers.0.resid"], residual, rtol=1e-14)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_everything_is_computed_in_the_dtype_of_the_weights(make_config, make_arrays, dtype):
    config = make_config(learned_positions=True, mlp={"activation": "gelu"})
    arrays = {name: array.astype(dtype) for name, array in make_arrays(config).items()}
    taps = {}

    decode(config, arrays, [[3, 8]], taps=taps)

    assert {tap.dtype for tap in taps.values()} == {np.dtype(dtype)}


def test_neither_weights_nor_ids_are_changed(tiny_decoder):
    config, arrays, ids_BT = tiny_decoder
    before = {name: array.copy() for name, array in arrays.items()}, ids_BT.copy()

    decode(config, arrays, ids_BT)

    assert all(np.array_equal(before[0][name], array) for name, array in arrays.items())
    np.testing.assert_array_equal(before[1], ids_BT)


def test_greedy_ids_are_the_arg_max_of_the_last_position(tiny_decoder):
    config, arrays, ids_BT = tiny_decoder
    prompt = ids_BT[0].tolist()

    new = greedy(config, arrays, prompt, 5)

    logits_BTV = decode(config, arrays, [prompt + new])
    assert new == np.argmax(logits_BTV[0, 6:-1], axis=-1).tolist()


def test_no_new_ids_are_none(tiny_decoder):
    config, arrays, _ = tiny_decoder

    assert greedy(config, arrays, [3], 0) == []


def test_the_last_new_id_is_never_fed_back(tiny_decoder):
    config, arrays, ids_BT = tiny_decoder
    short = config | {"max_positions": 9}

    assert len(greedy(short, arrays, ids_BT[0].tolist(), 3)) == 3
    with pytest.raises(DecoderError, match="10 positions, the config 9"):
        greedy(short, arrays, ids_BT[0].tolist(), 4)
