"""A tiny llama in a GGUF file, written by the gguf package, and the real checkpoint."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from jaxkv.spec.checkpoint import Checkpoint

WriteGguf = Callable[..., Path]

# Pairwise distinct sizes; D differs from N * H, and is a multiple of 32 so that it can be
# quantized.
METADATA: dict[str, Any] = {
    "llama.block_count": 2,
    "llama.context_length": 211,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 52,
    "llama.attention.head_count": 6,
    "llama.attention.head_count_kv": 3,
    "llama.attention.key_length": 18,
    "llama.attention.value_length": 18,
    "llama.attention.layer_norm_rms_epsilon": 0.25,
    "llama.rope.dimension_count": 18,
    "llama.rope.freq_base": 500.0,
    "llama.vocab_size": 97,
    "tokenizer.ggml.eos_token_id": 5,
}
SHAPES: dict[str, tuple[int, ...]] = {
    "token_embd.weight": (97, 64),
    "output_norm.weight": (64,),
    "output.weight": (97, 64),
}
for _i in range(2):
    SHAPES |= {
        f"blk.{_i}.attn_norm.weight": (64,),
        f"blk.{_i}.attn_q.weight": (108, 64),
        f"blk.{_i}.attn_k.weight": (54, 64),
        f"blk.{_i}.attn_v.weight": (54, 64),
        f"blk.{_i}.attn_output.weight": (64, 108),
        f"blk.{_i}.ffn_norm.weight": (64,),
        f"blk.{_i}.ffn_gate.weight": (52, 64),
        f"blk.{_i}.ffn_up.weight": (52, 64),
        f"blk.{_i}.ffn_down.weight": (64, 52),
    }


@pytest.fixture(scope="session")
def tiny_tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {name: rng.standard_normal(s).astype(np.float32) for name, s in SHAPES.items()}


@pytest.fixture(scope="session")
def write_gguf(
    tiny_tensors: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory
) -> WriteGguf:
    """Write the tiny llama with some metadata and tensors changed; a None leaves one out."""

    def write(
        metadata: Mapping[str, Any] | None = None,
        tensors: Mapping[str, Any] | None = None,
        *,
        arch: str = "llama",
    ) -> Path:
        path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
        writer = gguf.GGUFWriter(path, arch)
        for key, value in (METADATA | dict(metadata or {})).items():
            _add(writer, key, value)
        for name, tensor in (tiny_tensors | dict(tensors or {})).items():
            if isinstance(tensor, tuple):
                writer.add_tensor(name, tensor[0], raw_dtype=tensor[1])
            elif tensor is not None:
                writer.add_tensor(name, tensor)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case None:
            pass
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


@pytest.fixture(scope="session")
def tiny_gguf(write_gguf: WriteGguf) -> Path:
    return write_gguf()


@pytest.fixture(scope="session")
def smollm2_checkpoint(smollm2: Checkpoint) -> Checkpoint:
    """The real checkpoint, absent or not as the suite's own fixture decides."""
    return smollm2


# The same sizes in a Hugging Face directory; a head_dim that is not width / heads.
CONFIG_JSON: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "eos_token_id": 5,
    "head_dim": 18,
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 52,
    "max_position_embeddings": 211,
    "model_type": "llama",
    "num_attention_heads": 6,
    "num_hidden_layers": 2,
    "num_key_value_heads": 3,
    "rms_norm_eps": 0.25,
    "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"},
    "tie_word_embeddings": False,
    "vocab_size": 97,
}
_FROM_GGUF = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@pytest.fixture(scope="session")
def hf_tensors(tiny_tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tiny llama's tensors under the names of transformers."""

    def rename(name: str) -> str:
        *layer, part, _ = name.split(".")
        return ".".join([*(["model.layers", layer[1]] if layer else []), _FROM_GGUF[part]])

    return {f"{rename(name)}.weight": tensor for name, tensor in tiny_tensors.items()}


@pytest.fixture
def hf_directory(hf_tensors: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory):
    """Write the tiny llama with keys of config.json and tensors changed; a None leaves one out.

    `shards` splits the tensors among as many files, with an index.
    """
    from safetensors.numpy import save_file

    def write(
        config: Mapping[str, Any] | None = None,
        tensors: Mapping[str, Any] | None = None,
        *,
        files: Mapping[str, Any] | None = None,
        shards: int = 0,
    ) -> Path:
        path = tmp_path_factory.mktemp("hf") / "tiny-llama"
        path.mkdir()
        data = {k: v for k, v in (CONFIG_JSON | dict(config or {})).items() if v is not None}
        texts = {"config.json": data} | dict(files or {})
        for name, text in texts.items():
            (path / name).write_text(text if isinstance(text, str) else json.dumps(text))
        kept = {k: v for k, v in (hf_tensors | dict(tensors or {})).items() if v is not None}
        if not shards:
            save_file(kept, path / "model.safetensors")
            return path
        weight_map = {}
        for i in range(shards):
            file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
            part = dict(list(kept.items())[i::shards])
            save_file(part, path / file)
            weight_map |= dict.fromkeys(part, file)
        index = {"metadata": {}, "weight_map": weight_map}
        (path / "model.safetensors.index.json").write_text(json.dumps(index))
        return path

    return write
