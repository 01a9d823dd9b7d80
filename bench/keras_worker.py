"""keras-hub in a process of its own: FOLDER; requests and answers are lines of JSON.

Imports nothing of this package: it runs in an environment that has keras-hub and not this project.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np


def main(folder: Path) -> None:
    """Say the version, then answer `prompts` and `budget` with `new_tokens`, until input ends."""
    # Whatever the libraries print must not stand between the answers.
    answers, sys.stdout = sys.stdout, sys.stderr
    # By name: no checker of this project finds them.
    keras, keras_hub = importlib.import_module("keras"), importlib.import_module("keras_hub")
    keras.config.set_floatx("float32")
    backbone = keras_hub.models.LlamaBackbone(**json.loads((folder / "sizes.json").read_text()))
    load(backbone, folder)
    model = keras_hub.models.LlamaCausalLM(backbone=backbone, preprocessor=None)
    model.compile(sampler="greedy")
    _say(answers, {"version": f"{keras_hub.__version__} on {keras.backend.backend()}"})
    for line in sys.stdin:
        request = json.loads(line)
        _say(answers, {"new_tokens": generate(model, request["prompts"], request["budget"])})


def load(backbone: Any, folder: Path) -> None:
    """Give the backbone the weights in the folder: matrices (in, out), heads apart."""

    def put(variable: Any, name: str) -> None:
        array = np.load(folder / f"{name}.weight.npy")
        turned = array.T if array.ndim == 2 and "embed" not in name else array
        variable.assign(turned.reshape(variable.shape))

    embedding = backbone.get_layer("token_embedding")
    put(embedding.embeddings, "model.embed_tokens")
    if not backbone.tie_word_embeddings:
        put(embedding.reverse_embeddings, "lm_head")
    put(backbone.get_layer("sequence_output_layernorm").scale, "model.norm")
    for i in range(backbone.num_layers):
        layer, name = backbone.get_layer(f"transformer_layer_{i}"), f"model.layers.{i}"
        attention = layer._self_attention_layer
        put(layer._self_attention_layernorm.scale, f"{name}.input_layernorm")
        put(layer._feedforward_layernorm.scale, f"{name}.post_attention_layernorm")
        for part, dense in (
            ("self_attn.q", attention._query_dense),
            ("self_attn.k", attention._key_dense),
            ("self_attn.v", attention._value_dense),
            ("self_attn.o", attention._output_dense),
            ("mlp.gate", layer._feedforward_gate_dense),
            ("mlp.up", layer._feedforward_intermediate_dense),
            ("mlp.down", layer._feedforward_output_dense),
        ):
            put(dense.kernel, f"{name}.{part}_proj")


def generate(model: Any, prompts: list[list[int]], budget: int) -> list[list[int]]:
    """Return the new tokens of prompts of one length."""
    length = len(prompts[0])
    ids = np.zeros((len(prompts), length + budget), np.int32)
    ids[:, :length] = prompts
    mask = np.zeros_like(ids)
    mask[:, :length] = 1
    made = model.generate({"token_ids": ids, "padding_mask": mask}, stop_token_ids=None)
    return np.asarray(made["token_ids"])[:, length:].tolist()


def _say(answers: Any, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
