"""ModelConfig: complete when constructed, every contradiction refused, plain data and back."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jaxkv.spec import families
from jaxkv.spec.config import Attention, Layer, Llama3Scaling, Mlp, ModelConfig, Norm, Rope
from jaxkv.spec.errors import ConfigError
from jaxkv.spec.weight_shapes import weight_shapes

ATTENTION = Attention(
    num_heads=6,
    num_kv_heads=3,
    head_dim=18,
    window=13,
    rope=Rope(theta=500.0, rotary_dim=8, scaling=Llama3Scaling(8.0, 1.0, 4.0, 64)),
    qkv_bias=True,
    out_bias=False,
    soft_cap=30.0,
)
MLP = Mlp(width=52, activation="silu", gated=True, bias=False)
CONFIG = ModelConfig(
    family="llama",
    vocab_size=97,
    width=40,
    max_positions=211,
    layers=(Layer(ATTENTION, MLP), Layer(replace(ATTENTION, window=None, rope=None), MLP)),
    norm=Norm(kind="rms", eps=1e-5),
    learned_positions=False,
    tied_head=False,
    head_bias=True,
)

REFUSALS = [
    (lambda: Rope(0.0, 8), "Rope: theta is 0.0, expected above 0."),
    (lambda: Rope(1.0, 7), "Rope: rotary_dim 7 must be even, channels turn in pairs."),
    (
        lambda: Llama3Scaling(0.5, 1.0, 4.0, 64),
        "Llama3Scaling: factor is 0.5, expected at least 1.",
    ),
    (
        lambda: Llama3Scaling(8.0, 4.0, 1.0, 64),
        "Llama3Scaling: low_freq_factor is 4.0, expected above 0 and below high_freq_factor 1.0.",
    ),
    (lambda: Rope(1.0, 0), "Rope: rotary_dim is 0, expected a whole number of at least 1."),
    (
        lambda: replace(ATTENTION, num_heads=7),
        "Attention: num_heads 7 must be a multiple of num_kv_heads 3.",
    ),
    (
        lambda: replace(ATTENTION, num_heads=True),
        "Attention: num_heads is True, expected a whole number of at least 1.",
    ),
    (
        lambda: replace(ATTENTION, head_dim=6),
        "Attention: rope.rotary_dim 8 exceeds head_dim 6.",
    ),
    (
        lambda: replace(ATTENTION, window=0),
        "Attention: window is 0, expected a whole number of at least 1.",
    ),
    (
        lambda: replace(ATTENTION, soft_cap=-1.0),
        "Attention: soft_cap is -1.0, expected above 0, or None for off.",
    ),
    (lambda: replace(MLP, width=0), "Mlp: width is 0, expected a whole number of at least 1."),
    (
        lambda: replace(MLP, activation="mish"),
        "Mlp: activation is 'mish', expected one of ('silu', 'gelu', 'gelu_tanh', 'relu').",
    ),
    (
        lambda: Norm(kind="batch", eps=1.0),  # pyright: ignore[reportArgumentType] the point
        "Norm: kind is 'batch', expected 'rms' or 'layer'.",
    ),
    (lambda: Norm(kind="rms", eps=float("nan")), "Norm: eps is nan, expected above 0."),
    (
        lambda: replace(CONFIG, vocab_size=1.5),
        "ModelConfig: vocab_size is 1.5, expected a whole number of at least 1.",
    ),
    (
        lambda: replace(CONFIG, width=0),
        "ModelConfig: width is 0, expected a whole number of at least 1.",
    ),
    (
        lambda: replace(CONFIG, max_positions=-1),
        "ModelConfig: max_positions is -1, expected a whole number of at least 1.",
    ),
    (
        lambda: replace(CONFIG, layers=()),
        "ModelConfig: layers is empty, expected at least 1 layer.",
    ),
    (
        lambda: replace(CONFIG, dropout_rate=1.0),
        "ModelConfig: dropout_rate is 1.0, expected at least 0 and below 1.",
    ),
    (
        lambda: ModelConfig.from_dict(CONFIG.to_dict() | {"vocab_sise": 97}),
        "ModelConfig: unknown key 'vocab_sise'. Did you mean 'vocab_size'?",
    ),
    (
        lambda: Norm.from_dict({"kind": "rms", "eps": 1.0, "zzz": 0}),
        "Norm: unknown key 'zzz'. Known: eps, kind, plus_one.",
    ),
    (lambda: Norm.from_dict({"kind": "rms"}), "Norm: key 'eps' is missing. Add it."),
]


@pytest.mark.parametrize(("make", "message"), REFUSALS, ids=[message for _, message in REFUSALS])
def test_contradiction_is_refused_with_its_numbers(make: Callable[[], Any], message: str):
    with pytest.raises(ConfigError) as error:
        make()

    assert str(error.value) == message


@pytest.mark.parametrize("config", [CONFIG, families.preset("reference")], ids=["mixed", "preset"])
def test_plain_data_rebuilds_the_config_even_through_json(config: ModelConfig):
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_unknown_key_of_a_part_offers_the_nearest():
    data = CONFIG.to_dict()
    data["layers"][1]["attention"]["windw"] = 3

    with pytest.raises(ConfigError, match=r"unknown key 'windw'\. Did you mean 'window'\?"):
        ModelConfig.from_dict(data)


def test_two_query_heads_share_a_kv_head():
    assert ATTENTION.groups == 2


def test_weight_shapes_follow_every_switch_of_the_config():
    shapes = weight_shapes(CONFIG)

    assert list(shapes) == [
        "embed.weight",
        *(
            f"layers.{i}.{name}"
            for i in range(2)
            for name in (
                "attn_norm.weight",
                *(f"attn.{part}.{kind}" for part in "qkv" for kind in ("weight", "bias")),
                "attn.o.weight",
                "mlp_norm.weight",
                *(f"mlp.{part}.weight" for part in ("gate", "up", "down")),
            )
        ),
        "norm.weight",
        "head.weight",
        "head.bias",
    ]
    assert shapes["layers.1.attn.k.weight"] == (54, 40)
    assert shapes["layers.0.attn.o.weight"] == (40, 108)
    assert shapes["layers.0.mlp.down.weight"] == (40, 52)


def test_tied_head_has_no_entry():
    assert "head.weight" not in weight_shapes(replace(CONFIG, tied_head=True, head_bias=False))
