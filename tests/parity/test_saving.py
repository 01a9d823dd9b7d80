"""A model saved from either twin: transformers loads it, and its logits are those it had."""

import importlib
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from crosscheck import assert_agree, semantic
from jaxkv.spec import families
from jaxkv.spec.errors import ConfigError, SourceError, WeightError
from jaxkv.spec.huggingface import read_huggingface
from jaxkv.spec.huggingface_save import write_huggingface
from jaxkv.spec.random_weights import random_arrays
from tests.parity.peers import FOLLOWING, IDS, MODELS, PLAIN, peer, released
from tests.tiny import DEEP, TWINS

# Weights pass through one twin here; that the twins' arrays are equal is shown in tests/weights.
PAIRS = [(name, twin) for name in MODELS | FOLLOWING | PLAIN for twin in TWINS]
FEW = [(name, twin) for name, twin in PAIRS if DEEP or twin == "torchkv" or name == "qwen3_moe"]


def logits_of(model):
    with torch.no_grad():
        return model(input_ids=torch.from_numpy(IDS), use_cache=False).logits.numpy()


@pytest.mark.parametrize(("name", "twin"), FEW)
def test_a_saved_model_is_loaded_by_transformers(name, twin, tmp_path):
    from transformers import AutoModelForCausalLM

    peer(name).save_pretrained(tmp_path / "theirs")
    checkpoint = read_huggingface(tmp_path / "theirs")
    weights = importlib.import_module(f"{twin}.weights")
    model = weights.from_arrays(checkpoint.config, checkpoint.weights, dtype="float64")

    write_huggingface(tmp_path / "ours", checkpoint.config, weights.to_arrays(model), end_ids=(5,))

    has_experts = name.startswith(("mixtral", "qwen3_moe", "deepseek"))
    routed = {"experts_implementation": "eager"} if has_experts else {}
    loaded = AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", attn_implementation="eager", dtype=torch.float64, **routed
    ).eval()
    # gemma's scale of the embedding is a float32 in the one and a float64 in the other.
    tolerance = semantic(rtol=2e-6)
    assert_agree(logits_of(loaded), logits_of(released(name)), tolerance, name="logits")
    ours = read_huggingface(tmp_path / "ours")
    assert (ours.config, ours.end_ids) == (checkpoint.config, (5,))


@pytest.mark.parametrize("name", ["gpt_neox", "mixtral"])
def test_shards_and_an_index_hold_the_same_model(name, tmp_path):
    peer(name).save_pretrained(tmp_path / "theirs")
    one = read_huggingface(tmp_path / "theirs")

    write_huggingface(tmp_path / "ours", one.config, dict(one.weights), shard_bytes=20_000)

    several = read_huggingface(tmp_path / "ours")
    assert len(list((tmp_path / "ours").glob("model-*-of-*.safetensors"))) > 3
    for key, array in one.weights.items():
        np.testing.assert_array_equal(several.weights[key], array, strict=True)


def test_dtypes_stay_as_they_are(tmp_path):
    config = replace(families.preset("reference"), family="gpt2", tied_head=True, head_bias=False)
    arrays = random_arrays(config, seed=0)
    half = {name: array.astype(np.float16) for name, array in arrays.items()}

    write_huggingface(tmp_path / "ours", config, half)

    for name, array in read_huggingface(tmp_path / "ours").weights.items():
        np.testing.assert_array_equal(array, half[name], strict=True)
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["dtype"] == "float16"


def test_what_cannot_be_written_is_refused_before_any_file(tmp_path):
    reference = families.preset("reference")
    gpt2 = replace(reference, family="gpt2", tied_head=True, head_bias=False)
    mixed = replace(gpt2, norm=replace(gpt2.norm, kind="rms"))
    arrays = random_arrays(gpt2, seed=0)
    path, full = tmp_path / "ours", tmp_path / "full"
    full.mkdir()
    (full / "a").touch()

    with pytest.raises(ConfigError, match="huggingface_model_type: family is 'reference'"):
        write_huggingface(path, reference, random_arrays(reference, seed=0))
    with pytest.raises(ConfigError, match=r"config\.json of 'gpt2' cannot say the config's norm"):
        write_huggingface(path, mixed, random_arrays(mixed, seed=0))
    with pytest.raises(WeightError, match=r"check_weights: weight 'norm\.bias' is missing"):
        write_huggingface(path, gpt2, {k: v for k, v in arrays.items() if k != "norm.bias"})
    with pytest.raises(SourceError, match="holds files, expected a new or empty directory"):
        write_huggingface(full, gpt2, arrays)
    assert not path.exists()
