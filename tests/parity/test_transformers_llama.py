"""A tiny llama in float64 against transformers' own model, its state dict handed over in memory."""

import numpy as np
import pytest
import torch

from crosscheck import assert_agree, semantic
from jaxkv.spec.config import Attention, Layer, Mlp, ModelConfig, Norm, Rope
from tests.tiny import TWINS, Cell, new_subject

IDS = np.random.default_rng(0).integers(0, 97, (2, 23))


@pytest.fixture(scope="module")
def peer():
    """A seeded random model with peaked attention and norm gains away from 1."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
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
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config).to(torch.float64).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            if weight.dim() == 2:
                weight.copy_(noise * 1.4 / weight.shape[1] ** 0.5)
            else:
                weight.copy_(1 + 0.3 * noise)
    return model


@pytest.fixture
def lifted(monkeypatch):
    """Lift transformers' own float32 casts: norm, rotary tables, softmax."""
    from transformers.models.llama import modeling_llama as llama

    def norm(self, x):
        return (
            self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        )

    def tables(self, x, position_ids):
        pairs = torch.arange(9, dtype=torch.float64)
        angle = position_ids[..., None].double() * 100.0 ** (-pairs / 9)
        return torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()

    softmax = torch.nn.functional.softmax
    monkeypatch.setattr(llama.LlamaRMSNorm, "forward", norm)
    monkeypatch.setattr(llama.LlamaRotaryEmbedding, "forward", tables)
    monkeypatch.setattr(
        torch.nn.functional, "softmax", lambda x, dim, dtype=None: softmax(x, dim=dim)
    )


@pytest.mark.parametrize("layout", ["contiguous", "uncached"])
@pytest.mark.parametrize("twin", TWINS)
def test_tiny_llama_equals_transformers_with_its_float32_casts_lifted(twin, layout, peer, lifted):
    subject = _subject(peer, twin)

    logits = _logits(subject, layout)

    assert_agree(
        logits, _peer_logits(peer), semantic(), name="logits", names=(twin, "transformers")
    )


@pytest.mark.parametrize("twin", TWINS)
def test_tiny_llama_equals_transformers_as_released(twin, peer):
    subject = _subject(peer, twin)

    logits = _logits(subject, "contiguous")

    # transformers computes norms, angles and softmax in float32 whatever the model's dtype.
    tolerance = semantic(rtol=2e-6)
    assert_agree(logits, _peer_logits(peer), tolerance, name="logits", names=(twin, "transformers"))


def _subject(peer, twin):
    import importlib

    attention = Attention(6, 3, 18, None, Rope(100.0, 18), qkv_bias=False, out_bias=False)
    config = ModelConfig(
        family="llama",
        vocab_size=97,
        width=48,
        max_positions=512,
        layers=(Layer(attention, Mlp(52, "silu", gated=True, bias=False)),) * 3,
        norm=Norm("rms", 1e-5),
        learned_positions=False,
        tied_head=False,
        head_bias=False,
    )
    arrays = {_canonical(name): x.detach().numpy() for name, x in peer.state_dict().items()}
    model = importlib.import_module(f"{twin}.weights").from_arrays(config, arrays, dtype="float64")
    return new_subject(model, Cell(twin, "llama", "contiguous"))


def _canonical(name: str) -> str:
    for theirs, ours in (
        ("model.embed_tokens", "embed"),
        ("model.layers", "layers"),
        ("model.norm", "norm"),
        ("lm_head", "head"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "mlp_norm"),
        ("self_attn.", "attn."),
        ("_proj", ""),
    ):
        name = name.replace(theirs, ours)
    return name


def _logits(subject, layout):
    if layout == "uncached":
        return subject.full(IDS)
    first, state = subject.step(subject.init(2, 64), IDS[:, :8])
    second, state = subject.step(state, IDS[:, 8:9])
    third, _ = subject.step(state, IDS[:, 9:])
    return np.concatenate([first, second, third], axis=1)


def _peer_logits(peer):
    with torch.no_grad():
        return peer(input_ids=torch.from_numpy(IDS), use_cache=False).logits.numpy()
