"""GGUF files of the tiny models, written by the gguf package under the names that it maps.

What llama.cpp's converter does to the numbers is done here by its own words: rows of q and k
permuted for arch llama alone, 1 added to gemma's norm weights, gpt2's matrices turned (out, in);
llama3's blend and longrope's factors as tensors, the other scalings as metadata.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.parity.peers import peer

_ARCHITECTURES = {"gpt2": gguf.MODEL_ARCH.GPT2, "llama": gguf.MODEL_ARCH.LLAMA}
_ARCHITECTURES |= {"qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}
_ARCHITECTURES |= {"deepseek2": gguf.MODEL_ARCH.DEEPSEEK2}
_ARCHITECTURES |= {"gemma3": gguf.MODEL_ARCH.GEMMA3, "phi3": gguf.MODEL_ARCH.PHI3}


def write(
    path: Path,
    name: str,
    arch: str,
    *,
    factors: dict[str, np.ndarray] | None = None,
    split: bool = True,
    **more: Any,
) -> Path:
    """Write the model called `name` as a file of the architecture, and return its path.

    Args:
        path: Where to.
        name: Of a model of `peers`.
        arch: In GGUF's words.
        factors: On rotary speeds, by the middle of the tensor's name; those of the model if None.
        split: Whether latents' product up is two tensors, one to keys and one to values.
        more: Metadata of this architecture, underscores for dots between words; None leaves out.
    """
    model = peer(name)
    writer = gguf.GGUFWriter(path, arch)
    scaling = _full_rope(model.config)
    known = _metadata(model.config, arch) | _scaling_metadata(model.config, scaling)
    for key, value in (known | more).items():
        if isinstance(value, bool):
            writer.add_bool(f"{arch}.{key}", value)
        elif isinstance(value, float):
            writer.add_float32(f"{arch}.{key}", value)
        elif isinstance(value, str):
            writer.add_string(f"{arch}.{key}", value)
        elif value is not None:
            writer.add_uint32(f"{arch}.{key}", value)
    names = gguf.get_tensor_name_map(_ARCHITECTURES[arch], model.config.num_hidden_layers)
    state = {key: weight.numpy() for key, weight in model.state_dict().items()}
    if arch == "deepseek2":
        state = dict(deepseek_tensors(state, model.config, split=split))
    for key, weight in state.items():
        if key == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        given = names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert given is not None, key
        array = _converted(key, weight, model.config, arch)
        single = array.astype(np.float32)
        np.testing.assert_array_equal(single, array)  # the peers' numbers are exact in float32
        writer.add_tensor(given, single)
    factors = _factors(model.config, scaling) if factors is None else factors
    for key, each in factors.items():
        writer.add_tensor(f"rope_{key}.weight", each.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def deepseek_tensors(
    state: dict[str, np.ndarray], config: Any, *, split: bool
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors by the names that the gguf package maps: experts fused, kv_b split."""
    for key, array in state.items():
        start, _, last = key.rpartition(".")
        if key.endswith("experts.gate_up_proj"):
            gates, ups = np.split(array, 2, axis=1)
            yield f"{start}.gate_proj.weight", np.ascontiguousarray(gates)
            yield f"{start}.up_proj.weight", np.ascontiguousarray(ups)
        elif key.endswith("experts.down_proj"):
            yield f"{key}.weight", array
        elif last == "e_score_correction_bias":
            yield f"{start}.e_score_correction.bias", array
        elif split and key.endswith("kv_b_proj.weight"):
            by_head = array.reshape(config.num_attention_heads, -1, array.shape[-1])
            keys, values = np.split(by_head, [config.qk_nope_head_dim], axis=1)
            yield key.replace("kv_b_proj", "k_b_proj"), np.ascontiguousarray(keys.swapaxes(1, 2))
            yield key.replace("kv_b_proj", "v_b_proj"), np.ascontiguousarray(values)
        else:
            yield key, array


def _converted(key: str, array: np.ndarray, config: Any, arch: str) -> np.ndarray:
    if arch == "llama" and key.endswith(("q_proj.weight", "k_proj.weight")):
        is_q = "q_proj" in key
        heads = config.num_attention_heads if is_q else config.num_key_value_heads
        halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
        return halves.swapaxes(1, 2).reshape(array.shape)
    if arch == "gemma3" and key.endswith("norm.weight"):
        return 1 + array
    if arch == "gpt2" and ".c_" in key and array.ndim == 2:
        return np.ascontiguousarray(array.T)
    return array


def _metadata(config: Any, arch: str) -> dict[str, Any]:
    width, heads = config.hidden_size, config.num_attention_heads
    common = {
        "vocab_size": config.vocab_size,
        "context_length": config.max_position_embeddings,
        "embedding_length": width,
        "block_count": config.num_hidden_layers,
        "attention.head_count": heads,
    }
    if arch == "gpt2":
        inner = 4 * width if config.n_inner is None else config.n_inner
        eps = {"attention.layer_norm_epsilon": config.layer_norm_epsilon}
        return common | eps | {"feed_forward_length": inner}
    if arch == "deepseek2":
        return common | _deepseek_metadata(config)
    head_dim = _head_dim(config)
    return common | {
        "feed_forward_length": config.intermediate_size,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
        "rope.freq_base": float(_full_rope(config)["rope_theta"]),
    }


def _deepseek_metadata(config: Any) -> dict[str, Any]:
    """Return the keys that say a latent attention: one head as wide as what is kept."""
    rank, turned = config.kv_lora_rank, config.qk_rope_head_dim
    keys = {
        "feed_forward_length": config.intermediate_size,
        "attention.head_count_kv": 1,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.kv_lora_rank": rank,
        "attention.q_lora_rank": config.q_lora_rank,
        "attention.key_length": rank + turned,
        "attention.value_length": rank,
        "attention.key_length_mla": config.qk_nope_head_dim + turned,
        "attention.value_length_mla": config.v_head_dim,
        "rope.dimension_count": turned,
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "leading_dense_block_count": config.first_k_dense_replace,
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_shared_count": config.n_shared_experts,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_weights_scale": float(config.routed_scaling_factor),
        "expert_weights_norm": bool(config.norm_topk_prob),
        "expert_gating_func": int(gguf.ExpertGatingFuncType.SOFTMAX),
    }
    if config.model_type == "deepseek_v3":
        keys |= {
            "expert_gating_func": int(gguf.ExpertGatingFuncType.SIGMOID),
            "expert_group_count": config.n_group,
            "expert_group_used_count": config.topk_group,
        }
    mscale = config.rope_parameters.get("mscale_all_dim")
    if mscale:
        keys["rope.scaling.yarn_log_multiplier"] = 0.1 * mscale
    return keys


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _full_rope(config: Any) -> dict[str, Any]:
    """Return the rotary positions of layers without a window; of gpt2, which has none, nothing."""
    ropes = getattr(config, "rope_parameters", None) or {}
    return ropes.get("full_attention", ropes)


def _scaling_metadata(config: Any, rope: dict[str, Any]) -> dict[str, Any]:
    kind = rope.get("rope_type", "default")
    if kind == "longrope":
        return {
            "rope.scaling.attn_factor": rope["attention_factor"],
            "rope.scaling.original_context_length": config.original_max_position_embeddings,
        }
    if kind not in ("linear", "yarn"):
        return {}
    found = {"rope.scaling.type": kind, "rope.scaling.factor": float(rope["factor"])}
    if kind == "yarn":
        found["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        given = {key: rope.get(key) for key in ("beta_fast", "beta_slow")}
        found |= {f"rope.scaling.yarn_{key}": value for key, value in given.items() if value}
        if rope.get("attention_factor"):
            # What the format has multiplies the factor that follows from the length.
            usual = 1 + 0.1 * math.log(rope["factor"])
            found["rope.scaling.attn_factor"] = rope["attention_factor"] / usual
    return found


def _factors(config: Any, rope: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the tensors of factors on the speeds of rotary pairs, by the name's middle."""
    kind = rope.get("rope_type", "default")
    if kind == "longrope":
        return {f"factors_{key}": np.array(rope[f"{key}_factor"]) for key in ("long", "short")}
    if kind != "llama3":
        return {}
    pairs = (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    ) // 2
    turns = (
        rope["original_max_position_embeddings"]
        * rope["rope_theta"] ** (-np.arange(pairs) / pairs)
        / (2 * np.pi)
    )
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return {"freqs": 1 / (kept + (1 - kept) / rope["factor"])}
