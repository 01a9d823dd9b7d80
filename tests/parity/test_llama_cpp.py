"""The same GGUF files in llama.cpp, once: the ids and probabilities that it gave are those here.

A writer and a reader by one hand share mistakes. `llama_cpp.json` holds, for each file of
`gguf_files.write`, the likeliest next id after each token of a text and its probability, as
llama.cpp's Node binding printed them; the versions stand in it. The files had a vocabulary of
single characters beside the tensors, as llama.cpp opens none without.
A phi3 file with a window is not among them: llama.cpp leaves that window out, and says so. Nor is
one with ends of yarn's blend of its own, which this version of llama.cpp passes over.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from crosscheck import decode
from jaxkv.spec.gguf_file import read_gguf
from jaxkv.spec.identity import weights_hash
from jaxkv.weights import half_split
from tests.parity.gguf_files import write
from tests.parity.test_gguf_models import FILES

THEIRS = json.loads((Path(__file__).parent / "llama_cpp.json").read_text("utf-8"))
# llama.cpp looks the tanh GELU up in a table of half precision.
TOLERANCE = {"gemma3-gguf": 5e-3, "gemma3-yarn": 5e-3, "gpt2-plain": 2e-3}


@pytest.mark.parametrize("name", THEIRS["models"])
def test_ids_and_probabilities_are_those_of_llama_cpp(name, tmp_path):
    arch, more = FILES[name]
    checkpoint = read_gguf(write(tmp_path / "m.gguf", name, arch, **more))
    theirs = THEIRS["models"][name]
    assert weights_hash(checkpoint.weights) == theirs["weights_sha256"], "made for other files"

    logits_TV = decode(
        checkpoint.config.to_dict(), _half_split(checkpoint), np.array([THEIRS["ids"]])
    )[0]

    share_TV = np.exp(logits_TV - logits_TV.max(axis=-1, keepdims=True))
    share_TV /= share_TV.sum(axis=-1, keepdims=True)
    assert share_TV.argmax(axis=-1).tolist() == theirs["best"]
    np.testing.assert_allclose(
        share_TV.max(axis=-1), theirs["probability"], rtol=TOLERANCE.get(name, 1e-5)
    )


# Held against transformers and the numpy decoder only.
NOT_HELD = {"deepseek2"}


def test_every_architecture_but_those_named_was_held_against_it():
    held = {FILES[name][0] for name in THEIRS["models"]}

    assert held == {arch for arch, _ in FILES.values()} - NOT_HELD


def _half_split(checkpoint):
    """Return float64 weights with llama's rows put back, as each twin does for itself."""
    arrays = {name: array.astype(np.float64) for name, array in checkpoint.weights.items()}
    if checkpoint.interleaved_qk:
        for i, layer in enumerate(checkpoint.config.layers):
            heads = {"q": layer.attention.num_heads, "k": layer.attention.num_kv_heads}
            for part, count in heads.items():
                name = f"layers.{i}.attn.{part}.weight"
                arrays[name] = half_split(arrays[name], heads=count)
    return arrays
