"""GGUF files of the tiny models, written by the gguf package under the names that it maps.

What llama.cpp's converter does to the numbers is done here by its own words: rows of q and k
permuted for arch llama alone, 1 added to gemma's norm weights, gpt2's matrices turned (out, in).
"""

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.parity.peers import peer

_ARCHITECTURES = {"gpt2": gguf.MODEL_ARCH.GPT2, "llama": gguf.MODEL_ARCH.LLAMA}
_ARCHITECTURES |= {"qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}
_ARCHITECTURES |= {"gemma3": gguf.MODEL_ARCH.GEMMA3, "phi3": gguf.MODEL_ARCH.PHI3}


def write(path: Path, name: str, arch: str, **more: Any) -> Path:
    """Write the model called `name` as a file of the architecture, and return its path.

    Args:
        path: Where to.
        name: Of a model of `peers`.
        arch: In GGUF's words.
        more: Metadata of this architecture, underscores for dots between words; None leaves out.
    """
    model = peer(name)
    writer = gguf.GGUFWriter(path, arch)
    for key, value in (_metadata(model.config, arch) | more).items():
        if isinstance(value, float):
            writer.add_float32(f"{arch}.{key}", value)
        elif isinstance(value, str):
            writer.add_string(f"{arch}.{key}", value)
        elif value is not None:
            writer.add_uint32(f"{arch}.{key}", value)
    names = gguf.get_tensor_name_map(_ARCHITECTURES[arch], model.config.num_hidden_layers)
    for key, weight in model.state_dict().items():
        if key == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        given = names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert given is not None, key
        array = _converted(key, weight.numpy(), model.config, arch)
        single = array.astype(np.float32)
        np.testing.assert_array_equal(single, array)  # the peers' numbers are exact in float32
        writer.add_tensor(given, single)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


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
    head_dim = getattr(config, "head_dim", None) or width // heads
    ropes = config.rope_parameters
    return common | {
        "feed_forward_length": config.intermediate_size,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
        "rope.freq_base": float(ropes.get("full_attention", ropes)["rope_theta"]),
    }
