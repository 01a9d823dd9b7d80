"""What the files of the deepseek families may hold: further layers by name, nothing unknown."""

from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxkv.spec import families
from jaxkv.spec.errors import ConfigError, WeightError
from jaxkv.spec.huggingface import read_huggingface
from jaxkv.spec.huggingface_save import write_huggingface
from jaxkv.spec.random_weights import random_arrays
from jaxkv.spec.tiny_families import tiny_family
from tests.spec.test_family_configs import read

LATER = "model.layers.2"


def directory(path, names, *, drafts=1):
    """Write a tiny model, further tensors of these names beside it, and return the path."""
    config = replace(tiny_family("deepseek_v3"), draft_layers=drafts)
    write_huggingface(path, config, random_arrays(config, 0))
    there = load_file(path / "model.safetensors")
    save_file(there | {name: np.ones(1) for name in names}, path / "model.safetensors")
    return path


def test_tensors_that_predict_further_tokens_are_known_and_left_out(tmp_path):
    config = replace(tiny_family("deepseek_v3"), draft_layers=1)
    names = families.family("deepseek_v3").draft_tensors_from_huggingface(config)

    assert {f"{LATER}.{part}.weight" for part in ("eh_proj", "enorm", "hnorm", "embed_tokens")} < {
        *names
    }
    assert f"{LATER}.mlp.experts.7.down_proj.weight" in names
    assert all(name.startswith(LATER) for name in names)
    kept = read_huggingface(directory(tmp_path / "m", names))
    assert kept.config.draft_layers == 1
    assert sorted(kept.weights) == sorted(random_arrays(kept.config, 0))


@pytest.mark.parametrize(
    ("drafts", "name"), [(1, f"{LATER}.eh_pro.weight"), (0, f"{LATER}.eh_proj.weight")]
)
def test_a_tensor_of_no_declared_name_is_refused(drafts, name, tmp_path):
    with pytest.raises(WeightError, match=r"weight 'model\.layers\.2\.eh_proj?\.weight' is extra"):
        read_huggingface(directory(tmp_path / "m", [name], drafts=drafts))


@pytest.mark.parametrize(
    ("model_type", "changes", "fact"),
    [
        ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob is True, expected False"),
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method is 'noaux_tc', expected one of"),
        ("deepseek_v3", {"topk_method": "greedy"}, "topk_method is 'greedy', expected 'noaux_tc'"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func is 'softmax', expected"),
        ("deepseek_v3", {"quantization_config": {"fmt": "e4m3"}}, "quantization_config is"),
        ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq is 2, expected 1"),
        ("deepseek_v3", {"num_key_value_heads": 3}, "num_key_value_heads is 3, expected 6"),
        ("deepseek_v3", {"topk_group": 5}, "top_groups is 5, expected at most num_groups 4"),
        ("deepseek_v3", {"num_experts_per_tok": 5}, "top_k is 5, expected at most 4, what 2 group"),
        ("deepseek_v3", {"first_k_dense_replace": -1}, "first_k_dense_replace is -1, expected a"),
        ("deepseek_v3", {"index_topk": 64}, "index_topk is 64, expected no such key"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-",
)
def test_what_is_not_computed_is_refused_by_name(model_type, changes, fact):
    with pytest.raises(ConfigError) as error:
        read(model_type, **changes)

    assert fact in str(error.value)
