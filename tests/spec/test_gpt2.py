"""The gpt2 family: sizes and tables; parity/test_huggingface.py sees what it computes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxkv.spec.checkpoint import stored_shapes
from jaxkv.spec.errors import ConfigError, WeightError
from jaxkv.spec.families import gpt2
from jaxkv.spec.huggingface import read_huggingface
from jaxkv.spec.weight_shapes import weight_shapes

CONFIG: dict[str, Any] = {
    "model_type": "gpt2",
    "n_embd": 12,
    "n_head": 3,
    "n_layer": 2,
    "n_positions": 11,
    "vocab_size": 17,
    "attn_pdrop": 0.1,
    "summary_type": "cls_index",
}


def save(path: Path, config: Mapping[str, Any], *, prefix: str = "", **more: np.ndarray) -> Path:
    """Write a tiny model as it is published, without the prefix, and return the directory."""
    rng, width, inner = np.random.default_rng(0), 12, config.get("n_inner") or 48
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (17, width), "wpe.weight": (11, width)}
    parts = {
        "attn.c_attn": (width, 3 * width),
        "attn.c_proj": (width, width),
        "mlp.c_fc": (width, inner),
        "mlp.c_proj": (inner, width),
    }
    for norm in ("h.0.ln_1", "h.0.ln_2", "h.1.ln_1", "h.1.ln_2", "ln_f"):
        shapes |= {f"{norm}.weight": (width,), f"{norm}.bias": (width,)}
    for i in (0, 1):
        for name, shape in parts.items():
            shapes |= {f"h.{i}.{name}.weight": shape, f"h.{i}.{name}.bias": shape[1:]}
    tensors = {prefix + name: rng.standard_normal(shape) for name, shape in shapes.items()}
    save_file(tensors | more, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config))
    return path


def tensors_of(path: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return load_file(path / "model.safetensors")


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_packed_outputs_come_apart_as_all_q_then_all_k_then_all_v(tmp_path: Path, prefix: str):
    path = save(tmp_path, CONFIG, prefix=prefix)

    weights, stored = read_huggingface(path).weights, tensors_of(path)

    packed = stored[f"{prefix}h.1.attn.c_attn.weight"]
    bias = stored[f"{prefix}h.1.attn.c_attn.bias"]
    for i, part in enumerate("qkv"):
        span = slice(12 * i, 12 * (i + 1))
        np.testing.assert_array_equal(weights[f"layers.1.attn.{part}.weight"], packed[:, span].T)
        np.testing.assert_array_equal(weights[f"layers.1.attn.{part}.bias"], bias[span])
    square = stored[f"{prefix}h.0.attn.c_proj.weight"]
    np.testing.assert_array_equal(weights["layers.0.attn.o.weight"], square.T)


def test_stored_causal_mask_is_left_out(tmp_path: Path):
    mask = {f"h.{i}.attn.bias": np.tril(np.ones((1, 1, 11, 11), np.float32)) for i in (0, 1)}
    path = save(tmp_path, CONFIG, **mask, **{"h.0.attn.masked_bias": np.float32([-1e4])})

    assert len(read_huggingface(path).weights) == len(weight_shapes(read_huggingface(path).config))


def test_absent_keys_have_the_defaults_of_the_family(tmp_path: Path):
    config = read_huggingface(save(tmp_path, CONFIG)).config
    layer = config.layers[0]

    assert (layer.mlp.width, layer.mlp.activation, layer.mlp.gated) == (48, "gelu_tanh", False)
    assert (config.norm.kind, config.norm.eps) == ("layer", 1e-5)
    assert (config.tied_head, config.learned_positions, config.max_positions) == (True, True, 11)
    assert (layer.attention.num_kv_heads, layer.attention.head_dim) == (3, 4)


def test_inner_width_is_the_stated_one(tmp_path: Path):
    config = read_huggingface(save(tmp_path, CONFIG | {"n_inner": 7})).config

    assert config.layers[1].mlp.width == 7


def test_shapes_of_the_file_are_packed_and_turned(tmp_path: Path):
    config = read_huggingface(save(tmp_path, CONFIG)).config

    shapes = stored_shapes(weight_shapes(config), gpt2.places_from_huggingface(config))

    assert shapes["transformer.h.0.attn.c_attn.weight"] == (12, 36)
    assert shapes["transformer.h.0.attn.c_attn.bias"] == (36,)
    assert shapes["transformer.h.1.mlp.c_fc.weight"] == (12, 48)
    assert "lm_head.weight" not in shapes


def test_matrix_stored_the_other_way_round_is_refused_by_its_own_name(tmp_path: Path):
    path = save(tmp_path, CONFIG, **{"h.0.mlp.c_fc.weight": np.ones((48, 12))})

    with pytest.raises(WeightError) as error:
        read_huggingface(path)

    assert str(error.value) == (
        f"read_huggingface: {path}: weight 'h.0.mlp.c_fc.weight' has shape (48, 12), expected "
        "(12, 48). Is it stored (in, out)?"
    )


REFUSED = [
    (
        {"scale_attn_by_inverse_layer_idx": True},
        "scale_attn_by_inverse_layer_idx is True, expected False (the only supported value). "
        "Take a checkpoint without it.",
    ),
    (
        {"scale_attn_weights": False},
        "scale_attn_weights is False, expected True (the only supported value). "
        "Take a checkpoint without it.",
    ),
    ({"n_head": 5}, "n_embd is 12, expected a multiple of n_head 5. Is the file complete?"),
    ({"n_ctx": 12}, "n_ctx is 12, expected n_positions 11. Is the file complete?"),
    (
        {"activation": "relu"},
        "activation is 'relu', expected no such key (it may change the function). "
        "Did you mean 'activation_function'?",
    ),
    (
        {"n_layer": None},
        "n_layer is missing, expected a whole number of at least 1. Is the file complete?",
    ),
]


@pytest.mark.parametrize(("change", "fact"), REFUSED, ids=[fact[:40] for _, fact in REFUSED])
def test_config_that_changes_the_function_is_refused_by_name(
    tmp_path: Path, change: Mapping[str, Any], fact: str
):
    path = save(tmp_path, CONFIG | dict(change))

    with pytest.raises(ConfigError) as error:
        read_huggingface(path)

    assert str(error.value) == f"read_huggingface: {path}: config.json: {fact}"
