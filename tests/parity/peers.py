"""Tiny random models of transformers, one a family and one a scaling, for both twins to be held to.

Attention is peaked, no gain or bias is trivial, sizes are pairwise distinct, and texts are longer
than every window and than the length that a scaling starts from.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

IDS = np.random.default_rng(0).integers(0, 97, (2, 23))
WINDOW, ORIGINAL = 5, 16
_PLAIN: dict[str, Any] = {"rope_type": "default", "rope_theta": 100.0}
_SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 52,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "max_position_embeddings": 64,
    "rms_norm_eps": 2**-10,
    "attn_implementation": "eager",
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 5,
}
# Head width 8 of width 48 and 6 heads; 18 where the family states it apart.
_APART = _SIZES | {"head_dim": 18}
_SLIDES = ["sliding_attention", "full_attention"]
_FACTORS = {"short_factor": [1.0, 1.1, 1.3, 1.7], "long_factor": [1.5, 2.5, 3.5, 6.0]}


class InFloat64(TorchFunctionMode):
    """Turns each float32 that is asked for into float64: lifts the library's own casts."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Run func with its float32 arguments replaced."""
        if func is torch.Tensor.float:
            # A cast makes a copy of a view; where nothing is left to cast, one is made here.
            return args[0].double().contiguous()
        named = {key: _widened(value) for key, value in (kwargs or {}).items()}
        return func(*map(_widened, args), **named)


@contextmanager
def in_float64() -> Iterator[None]:
    """Compute in float64 whatever the library asks for; a number of its own is float64 too."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with InFloat64():
            yield
    finally:
        torch.set_default_dtype(before)


def _widened(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


def _llama(*, tied: bool = False, **rope: Any) -> Any:
    rope = {"rope_theta": 100.0} | rope
    return "Llama", _SIZES | {"rope_parameters": rope, "tie_word_embeddings": tied}


def _gemma(kind: str, **more: Any) -> Any:
    gemma = {"query_pre_attn_scalar": 30, "sliding_window": WINDOW, "layer_types": _SLIDES}
    return kind, _APART | gemma | more


def _qwen(kind: str, sizes: dict[str, Any], **more: Any) -> Any:
    windows = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
    return kind, sizes | {"rope_parameters": _PLAIN} | windows | more


_ROUTED = {"num_experts_per_tok": 2, "experts_implementation": "eager"}
_EXPERTS = {"num_experts": 5, "moe_intermediate_size": 20, **_ROUTED}
_TWO_BASES = {
    "sliding_attention": _PLAIN,
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
}
_NEOX: dict[str, Any] = {
    **{
        key: value
        for key, value in _SIZES.items()
        if key not in ("rms_norm_eps", "num_key_value_heads")
    },
    "num_attention_heads": 4,
    "rope_parameters": _PLAIN | {"partial_rotary_factor": 0.5},
}
_GGUF_GEMMA: dict[str, Any] = {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    "query_pre_attn_scalar": 18,
    "rope_parameters": {
        "sliding_attention": _PLAIN | {"rope_theta": 10_000.0},
        "full_attention": _PLAIN,
    },
}
_GPT2: dict[str, Any] = {
    "vocab_size": 97,
    "n_embd": 40,
    "n_head": 4,
    "n_layer": 2,
    "n_positions": 64,
    "layer_norm_epsilon": 2**-10,
    "bos_token_id": 1,
    "eos_token_id": 5,
    "attn_implementation": "eager",
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
_DEEPSEEK: dict[str, Any] = _SIZES | {
    "num_key_value_heads": 6,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "moe_intermediate_size": 20,
    "n_group": 4,
    "topk_group": 2,
    "kv_lora_rank": 24,
    "q_lora_rank": 15,
    "qk_nope_head_dim": 11,
    "qk_rope_head_dim": 10,
    "v_head_dim": 14,
    "attention_bias": True,
    **(_ROUTED | {"num_experts_per_tok": 3}),
}


def _deepseek(version: int, *, mscale: Any = None, **more: Any) -> Any:
    ends = {"rope_theta": 100.0, "beta_fast": 1.0, "beta_slow": 0.05}
    rope = _PLAIN if mscale is None else _YARN | ends | mscale
    return f"DeepseekV{version}", _DEEPSEEK | {"rope_parameters": rope} | more


# As llama.cpp has it where a file gives no other ends of the blend.
_GGUF_YARN = _YARN | {"rope_theta": 100.0, "factor": 2.0}
_GGUF_LONG = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "attention_factor": 1.25,
    "short_factor": [1.0, 1.125, 1.25, 1.75],
    "long_factor": [1.5, 2.5, 3.5, 6.0],
}
_LONG = {"rope_type": "longrope", "rope_theta": 100.0, **_FACTORS}

_GGUF_GEMMA_YARN = _GGUF_GEMMA | {
    "rope_parameters": _GGUF_GEMMA["rope_parameters"] | {"full_attention": _GGUF_YARN}
}

MODELS: dict[str, Callable[[], tuple[str, dict[str, Any]]]] = {
    "mistral": lambda: ("Mistral", _APART | {"rope_parameters": _PLAIN, "sliding_window": WINDOW}),
    "qwen2": lambda: _qwen("Qwen2", _SIZES),
    "qwen3": lambda: _qwen("Qwen3", _APART),
    "qwen3_moe": lambda: _qwen("Qwen3Moe", _APART, **_EXPERTS, mlp_only_layers=[1]),
    "mixtral": lambda: (
        "Mixtral",
        _SIZES | _ROUTED | {"num_local_experts": 5, "sliding_window": WINDOW},
    ),
    "gemma2": lambda: _gemma(
        "Gemma2",
        rope_parameters=_PLAIN,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=3.0,
    ),
    "gemma3": lambda: _gemma("Gemma3", rope_parameters=_TWO_BASES),
    "phi3": lambda: ("Phi3", _SIZES | {"rope_parameters": _PLAIN, "sliding_window": WINDOW}),
    "gpt_neox": lambda: ("GPTNeoX", _NEOX),
    "gpt_neox-serial": lambda: ("GPTNeoX", _NEOX | {"use_parallel_residual": False}),
    "deepseek_v2": lambda: _deepseek(
        2,
        mscale={"mscale": 0.707, "mscale_all_dim": 0.707},
        q_lora_rank=None,
        topk_method="group_limited_greedy",
        n_shared_experts=2,
        routed_scaling_factor=1.7,
    ),
    "deepseek_v2-greedy": lambda: _deepseek(2, n_shared_experts=2, attention_bias=False),
    # Two factors of yarn that differ, so that neither stands for the other.
    "deepseek_v3": lambda: _deepseek(3, mscale={"mscale": 1.0, "mscale_all_dim": 0.7}),
    "deepseek_v3-halves": lambda: _deepseek(
        3,
        mscale={"mscale_all_dim": 0.7},
        rope_interleave=False,
        norm_topk_prob=False,
        q_lora_rank=None,
        first_k_dense_replace=0,
    ),
    "linear": lambda: _llama(rope_type="linear", factor=4.0),
    # Ends of the blend that lie between pairs, so that rounding them counts.
    "yarn": lambda: _llama(**_YARN, beta_fast=1.0, beta_slow=0.05),
    "yarn-mscale": lambda: _llama(
        **_YARN, mscale=0.7, mscale_all_dim=1.3, beta_fast=4.0, beta_slow=0.5, truncate=False
    ),
    "llama3": lambda: _llama(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=0.1,
        high_freq_factor=1.0,
        original_max_position_embeddings=8,
    ),
}
"""Name -> kind of model and its config, where a text's result is the same on every path."""
PLAIN: dict[str, Callable[[], tuple[str, dict[str, Any]]]] = {
    "llama-plain": lambda: ("Llama", _APART | {"rope_parameters": _PLAIN}),
    "llama-tied": lambda: _llama(tied=True),
    "qwen2-plain": lambda: ("Qwen2", _SIZES | {"rope_parameters": _PLAIN}),
    "qwen3-plain": lambda: ("Qwen3", _APART | {"rope_parameters": _PLAIN}),
    "gemma3-gguf": lambda: _gemma("Gemma3", **_GGUF_GEMMA),
    "phi3-plain": lambda: ("Phi3", _SIZES | {"rope_parameters": _PLAIN}),
    "gpt2-plain": lambda: ("GPT2", _GPT2),
    # A GGUF file has one epsilon for all norms, and a tenth of mscale exact in float32.
    "deepseek_v2-gguf": lambda: _deepseek(
        2, n_shared_experts=2, attention_bias=False, q_lora_rank=None, rms_norm_eps=1e-6
    ),
    "deepseek_v3-gguf": lambda: _deepseek(
        3,
        mscale={"mscale": 1.25, "mscale_all_dim": 1.25, "beta_fast": 32.0, "beta_slow": 1.0},
        attention_bias=False,
        rms_norm_eps=1e-6,
        max_position_embeddings=64,
    ),
    "qwen2-yarn": lambda: ("Qwen2", _SIZES | {"rope_parameters": _GGUF_YARN}),
    "qwen3-yarn": lambda: (
        "Qwen3",
        _APART | {"rope_parameters": _GGUF_YARN | {"attention_factor": 1.25}},
    ),
    "gemma3-yarn": lambda: _gemma("Gemma3", **_GGUF_GEMMA_YARN),
    "phi3-longrope-gguf": lambda: (
        "Phi3",
        _SIZES | {"rope_parameters": _GGUF_LONG, "original_max_position_embeddings": ORIGINAL},
    ),
}
"""The same, of what a GGUF file can say."""
FOLLOWING: dict[str, Callable[[], tuple[str, dict[str, Any]]]] = {
    "dynamic": lambda: (
        "Llama",
        _SIZES
        | {
            "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 100.0},
            "max_position_embeddings": ORIGINAL,
        },
    ),
    "phi3-longrope": lambda: (
        "Phi3",
        _SIZES | {"rope_parameters": _LONG, "original_max_position_embeddings": ORIGINAL},
    ),
}
"""The same, where rotary speeds follow the length, so that a result depends on its steps."""


def build(name: str) -> Any:
    """Return the seeded model, in the dtype that is torch's default."""
    import transformers

    kind, options = (MODELS | FOLLOWING | PLAIN)[name]()
    text = "Text" if kind == "Gemma3" else ""
    config = getattr(transformers, f"{kind}{text}Config")(**options)
    suffix = "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
    model = getattr(transformers, f"{kind}{suffix}")(config).eval()
    generator = torch.Generator().manual_seed(0)
    adds_one = kind.startswith("Gemma")
    with torch.no_grad():
        choices = [each for each in model.named_buffers() if "e_score_correction" in each[0]]
        for key, weight in [*model.named_parameters(), *choices]:
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            if weight.dim() >= 2:
                fan_in = weight.shape[0 if ".c_" in key else -1]
                value = noise * (1.3 / fan_in**0.5)
            else:
                value = (0 if adds_one or key.endswith("bias") else 1) + 0.3 * noise
            # Multiples of 1/4096: exact in float32, and so is 1 + weight.
            weight.copy_(torch.round(value * 4096) / 4096)
    return model


@cache
def peer(name: str) -> Any:
    """Return the model in float64, its buffers too; run it under `in_float64`."""
    with in_float64():
        return build(name)


@cache
def released(name: str) -> Any:
    """Return the same weights in float64, with the library's own float32 tables and casts."""
    return build(name).double()


@cache
def peer_logits(name: str) -> np.ndarray:
    """Return the logits of both texts, without a cache."""
    with torch.no_grad(), in_float64():
        return peer(name)(input_ids=torch.from_numpy(IDS), use_cache=False).logits.numpy()


def peer_steps(name: str, sizes: list[int]) -> np.ndarray:
    """Return the logits of both texts fed in steps of these sizes, with the library's own cache."""
    with in_float64():
        return _steps(peer(name), sizes)


def released_steps(name: str, sizes: list[int]) -> np.ndarray:
    """Return the same with the library's own float32 casts."""
    return _steps(released(name), sizes)


def _steps(model: Any, sizes: list[int]) -> np.ndarray:
    from transformers import DynamicCache

    logits, at = [], 0
    kept = DynamicCache(config=model.config)
    with torch.no_grad():
        # A short text puts speeds back that an earlier, longer one left behind in the model.
        model(input_ids=torch.from_numpy(IDS[:, :1]), use_cache=False)
        for size in sizes:
            ids = torch.from_numpy(IDS[:, at : at + size])
            logits.append(model(input_ids=ids, cache=kept, use_cache=True).logits.numpy())
            at += size
    return np.concatenate(logits, axis=1)


def fed(subject: Any, sizes: list[int]) -> np.ndarray:
    """Return a subject's logits of both texts fed in steps of these sizes, which fill its cache."""
    state, logits, at = subject.init(2, sum(sizes)), [], 0
    for size in sizes:
        out, state = subject.step(state, IDS[:, at : at + size])
        logits.append(out)
        at += size
    return np.concatenate(logits, axis=1)
