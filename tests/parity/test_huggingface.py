"""Directories that transformers saves, read here by both twins: the same logits in float64.

Covers KV-49 and KV-50 (scaled rotary positions) and KV-59 (GPT-2's transposed, packed weights).
"""

import importlib
import json
from argparse import Namespace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from crosscheck import assert_agree, decode, semantic
from jaxkv.spec import command
from jaxkv.spec.huggingface import read_huggingface
from jaxkv.weights import from_arrays
from tests.tiny import TWINS, Cell, new_subject

IDS = np.random.default_rng(0).integers(0, 97, (2, 23))
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 8.0,
    "low_freq_factor": 0.1,
    "high_freq_factor": 1.0,
    "original_max_position_embeddings": 8,
}
MODELS = ("gpt2", "gpt2-square", "llama", "llama-llama3", "llama-bias")


def _gpt2(width: int, heads: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": width, "n_head": heads, "n_layer": 3, "n_positions": 64}
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=97,
            bos_token_id=0,
            eos_token_id=5,
            attn_implementation="eager",
            **sizes,
        )
    )


def _llama(rope: dict[str, Any], *, bias: bool = False) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=97,
            hidden_size=48,
            intermediate_size=52,
            num_hidden_layers=3,
            num_attention_heads=6,
            num_key_value_heads=3,
            head_dim=18,
            rms_norm_eps=1e-5,
            max_position_embeddings=512,
            tie_word_embeddings=False,
            attention_bias=bias,
            mlp_bias=bias,
            rope_parameters=rope,
            attn_implementation="eager",
        )
    )


@cache
def peer(name: str) -> Any:
    """A seeded random model with peaked attention, biases and norm gains away from trivial."""
    model = {
        "gpt2": lambda: _gpt2(40, 4),
        "gpt2-square": lambda: _gpt2(8, 2),
        "llama": lambda: _llama({"rope_type": "default", "rope_theta": 100.0}),
        "llama-llama3": lambda: _llama(LLAMA3),
        "llama-bias": lambda: _llama({"rope_type": "default", "rope_theta": 100.0}, bias=True),
    }[name]()
    model = model.to(torch.float64).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            is_conv1d = ".c_" in key
            if weight.dim() == 2:
                fan_in = weight.shape[0 if is_conv1d else 1]
                weight.copy_(noise * (1.3 / fan_in**0.5))
            else:
                weight.copy_((0 if key.endswith("bias") else 1) + 0.3 * noise)
    return model


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a function: name, largest shard -> the directory, written once."""

    @cache
    def save(name: str, shard: str = "1GB") -> Path:
        path = tmp_path_factory.mktemp(name)
        peer(name).save_pretrained(path, max_shard_size=shard)
        return path

    return save


@pytest.fixture
def lifted(monkeypatch):
    """Lift transformers' own float32 casts: norm, rotary tables, softmax."""
    from transformers.models.llama import modeling_llama as llama

    def norm(self, x):
        return (
            self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        )

    def tables(self, x, position_ids):
        speed = 100.0 ** (-torch.arange(9, dtype=torch.float64) / 9)
        if self.config.rope_parameters["rope_type"] == "llama3":
            # Original length 8: turns between 0.1 and 1 are blended, below them 8 times slower.
            share = ((8 * speed / (2 * torch.pi) - 0.1) / 0.9).clamp(0, 1)
            speed = speed * share + speed / 8 * (1 - share)
        angle = position_ids[..., None].double() * speed
        return torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()

    softmax = torch.nn.functional.softmax
    monkeypatch.setattr(llama.LlamaRMSNorm, "forward", norm)
    monkeypatch.setattr(llama.LlamaRotaryEmbedding, "forward", tables)
    monkeypatch.setattr(
        torch.nn.functional, "softmax", lambda x, dim, dtype=None: softmax(x, dim=dim)
    )


def peer_logits(name: str) -> np.ndarray:
    with torch.no_grad():
        return peer(name)(input_ids=torch.from_numpy(IDS), use_cache=False).logits.numpy()


def subject_of(path: Path, twin: str) -> Any:
    checkpoint = read_huggingface(path)
    make = importlib.import_module(f"{twin}.weights").from_arrays
    model = make(
        checkpoint.config,
        checkpoint.weights,
        dtype="float64",
        interleaved_qk=checkpoint.interleaved_qk,
    )
    return new_subject(model, Cell(twin, "llama", "contiguous"))


def logits_of(subject: Any, *, cached: bool) -> np.ndarray:
    if not cached:
        return subject.full(IDS)
    first, state = subject.step(subject.init(2, 64), IDS[:, :8])
    second, state = subject.step(state, IDS[:, 8:9])
    third, _ = subject.step(state, IDS[:, 9:])
    return np.concatenate([first, second, third], axis=1)


@pytest.mark.parametrize("cached", [False, True], ids=["full", "chunks"])
@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_equals_transformers(name, twin, cached, saved, lifted):
    logits = logits_of(subject_of(saved(name), twin), cached=cached)

    assert_agree(logits, peer_logits(name), semantic(), name="logits", names=(twin, "transformers"))


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("name", ["gpt2", "llama-llama3"])
def test_a_saved_model_equals_transformers_as_released(name, twin, saved):
    logits = logits_of(subject_of(saved(name), twin), cached=True)

    # transformers computes llama's norms, angles and softmax in float32 whatever the dtype.
    tolerance = semantic(rtol=2e-6)
    assert_agree(logits, peer_logits(name), tolerance, name="logits", names=(twin, "transformers"))


@pytest.mark.parametrize("name", ["gpt2", "llama-llama3"])
def test_a_saved_model_equals_the_numpy_decoder(name, saved):
    checkpoint = read_huggingface(saved(name))

    oracle = decode(checkpoint.config.to_dict(), dict(checkpoint.weights), IDS)

    logits = subject_of(saved(name), "jaxkv").full(IDS)
    assert_agree(logits, oracle, semantic(), name="logits", names=("jaxkv", "numpy"))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_shards_hold_the_same_weights_as_one_file(name, saved):
    one, several = (read_huggingface(saved(name, shard)) for shard in ("1GB", "20KB"))

    assert len(list(saved(name, "20KB").glob("*.safetensors"))) > 3
    assert several.config == one.config
    for key, array in one.weights.items():
        np.testing.assert_array_equal(several.weights[key], array, strict=True)


def test_older_spellings_of_scaled_rotary_positions_are_the_same_model(saved, tmp_path):
    config = json.loads((saved("llama-llama3") / "config.json").read_text())
    block = config.pop("rope_parameters")
    theta = block.pop("rope_theta")
    older = config | {"rope_theta": theta, "rope_scaling": block}
    oldest_block = {"type": block["rope_type"]} | {
        key: value for key, value in block.items() if key != "rope_type"
    }
    oldest = older | {"rope_scaling": oldest_block}

    configs = []
    for each in (older, oldest):
        (tmp_path / "config.json").write_text(json.dumps(each))
        link = tmp_path / "model.safetensors"
        link.unlink(missing_ok=True)
        link.symlink_to(saved("llama-llama3") / "model.safetensors")
        configs.append(read_huggingface(tmp_path).config)

    assert configs == [read_huggingface(saved("llama-llama3")).config] * 2
    rope = configs[0].layers[0].attention.rope
    assert rope is not None
    assert rope.scaling is not None


@pytest.mark.parametrize("fault", ["transposed", "heads-first"])
def test_planted_reading_faults_of_gpt2_are_seen(fault, saved):
    """KV-59: a square matrix transposed, or heads split before q, k and v: the logits move."""
    checkpoint = read_huggingface(saved("gpt2-square"))
    arrays = dict(checkpoint.weights)
    if fault == "transposed":
        arrays["layers.0.attn.o.weight"] = arrays["layers.0.attn.o.weight"].T
    else:
        packed = np.concatenate([arrays[f"layers.0.attn.{each}.weight"] for each in "qkv"])
        by_head = packed.reshape(2, 3, 4, 8)
        for i, each in enumerate("qkv"):
            arrays[f"layers.0.attn.{each}.weight"] = by_head[:, i].reshape(8, 8)
    model = from_arrays(checkpoint.config, arrays, dtype="float64")

    logits = new_subject(model, Cell("jaxkv", "llama", "contiguous")).full(IDS)

    with pytest.raises(AssertionError, match="DISAGREE logits"):
        assert_agree(logits, peer_logits("gpt2-square"), semantic(), name="logits")


@pytest.mark.parametrize("twin", TWINS)
def test_a_tied_head_is_the_embedding(twin, saved):
    checkpoint = read_huggingface(saved("gpt2"))
    subject = subject_of(saved("gpt2"), twin)

    arrays = importlib.import_module(f"{twin}.weights").to_arrays(subject.model)

    assert subject.model.head is None
    assert "head.weight" not in arrays
    for name, array in checkpoint.weights.items():
        np.testing.assert_array_equal(arrays[name], array, strict=True)


@pytest.mark.parametrize("twin", TWINS)
def test_bfloat16_weights_are_read_as_stored_and_upcast_exactly(twin, tmp_path):
    import ml_dtypes

    peer("gpt2").to(torch.bfloat16).save_pretrained(tmp_path)
    peer("gpt2").to(torch.float64)
    peer.cache_clear()
    checkpoint = read_huggingface(tmp_path)
    make = importlib.import_module(f"{twin}.weights")

    arrays = make.to_arrays(make.from_arrays(checkpoint.config, checkpoint.weights))

    assert command.dtype_of(Namespace(dtype="stored"), checkpoint) == "bfloat16"
    assert command.dtype_of(Namespace(dtype="float64"), checkpoint) == "float64"
    for name, array in checkpoint.weights.items():
        assert array.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(arrays[name], array.astype(np.float32), strict=True)
