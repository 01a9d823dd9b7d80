"""keras-hub on its JAX backend as a subject: `--keras-hub PYTHON`, an interpreter that has it.

It runs in a process of its own because it brings TensorFlow, which this project's environment does
not hold. A call's time holds one line of JSON each way, which cancels in a step's time.
"""

import json
import os
import tempfile
from pathlib import Path

import numpy as np

from bench.peers import their_names
from bench.runner import Rows, Run
from bench.worker import Worker
from jaxkv.spec.checkpoint import Checkpoint
from jaxkv.spec.config import Mlp

WORKER = Path(__file__).with_name("keras_worker.py")
ADVICE = "Give the interpreter of an environment with: pip install keras-hub jax"


class KerasRunner:
    """keras-hub's llama, its `generate` compiled by XLA; `close` ends its process.

    Its cache has the text's length, prompt and new tokens: a capacity says nothing to it, and
    another length is another program, compiled before the clock starts.
    """

    name, model = "keras-hub", None

    def __init__(self, checkpoint: Checkpoint, python: str):
        env = {**os.environ, "KERAS_BACKEND": "jax"}
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            write_weights(checkpoint, Path(folder))
            # -I: modules of the worker's own folder must not come before its libraries.
            command = [python, "-I", str(WORKER), folder]
            self._worker = Worker("--keras-hub", command, env=env, advice=ADVICE)
            try:
                # It answers once it has read them.
                self.version = self._worker.hear()["version"]
            except BaseException:
                self.close()
                raise

    def prepare(self, prompts: Rows, budget: int, *, capacity: int | None = None) -> Run:
        """Return the call that continues the prompts, all of one length."""
        request = {"prompts": [list(row) for row in prompts], "budget": budget}
        return lambda: self._worker.ask(request)["new_tokens"]

    def close(self) -> None:
        """End the process."""
        self._worker.close()


def write_weights(checkpoint: Checkpoint, folder: Path) -> None:
    """Write a llama's sizes as `sizes.json` and its weights, one .npy each, under their names."""
    config, layer = checkpoint.config, checkpoint.config.layers[0]
    attention, mlp = layer.attention, layer.mlp
    assert attention.rope is not None  # a llama checkpoint
    assert isinstance(mlp, Mlp)
    sizes = {
        "vocabulary_size": config.vocab_size,
        "num_layers": config.num_layers,
        "num_query_heads": attention.num_heads,
        "hidden_dim": config.width,
        "intermediate_dim": mlp.width,
        "num_key_value_heads": attention.num_kv_heads,
        "rope_max_wavelength": attention.rope.theta,
        "layer_norm_epsilon": config.norm.eps,
        "tie_word_embeddings": config.tied_head,
    }
    (folder / "sizes.json").write_text(json.dumps(sizes))
    for name, array in their_names(checkpoint):
        np.save(folder / f"{name}.npy", array.astype(np.float32))
