"""keras-hub as a subject: what its process is given, and how it is told that it has ended."""

import json
import sys

import numpy as np
import pytest

from bench import keras_runner
from bench.gpu_shapes import SHAPES, random_checkpoint
from bench.keras_runner import KerasRunner, write_weights
from jaxkv.spec.errors import SourceError

# Reads the sizes and a weight as the real worker does; answers each prompt's last token, budget
# times.
WORKER = """
import json, sys
from pathlib import Path
import numpy as np
folder = Path(sys.argv[1])
sizes = json.loads((folder / "sizes.json").read_text())
table = np.load(folder / "model.embed_tokens.weight.npy")
print(json.dumps({"version": f"{sizes['num_layers']} layers, {len(table)} rows"}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    made = [[row[-1]] * asked["budget"] for row in asked["prompts"]]
    print(json.dumps({"new_tokens": made}), flush=True)
"""


def test_a_process_of_another_environment_answers(tmp_path, monkeypatch):
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    monkeypatch.setattr(keras_runner, "WORKER", worker)

    runner = KerasRunner(random_checkpoint("tiny"), sys.executable)

    assert runner.version == "2 layers, 97 rows"
    assert runner.prepare([[1, 2], [3, 4]], 3)() == [[2, 2, 2], [4, 4, 4]]
    runner.close()


def test_an_environment_without_keras_hub_is_told_what_to_install():
    with pytest.raises(SourceError, match="pip install keras-hub jax"):
        KerasRunner(random_checkpoint("tiny"), sys.executable)


def test_an_interpreter_that_is_not_there_is_told(tmp_path):
    with pytest.raises(SourceError, match="cannot be run"):
        KerasRunner(random_checkpoint("tiny"), str(tmp_path / "python"))


def test_weights_lie_under_the_names_that_transformers_gives_them(tmp_path):
    checkpoint = random_checkpoint("tiny")
    write_weights(checkpoint, tmp_path)

    sizes = json.loads((tmp_path / "sizes.json").read_text())
    assert (sizes["hidden_dim"], sizes["num_key_value_heads"]) == (SHAPES["tiny"].width, 2)
    np.testing.assert_array_equal(
        np.load(tmp_path / "model.layers.1.self_attn.k_proj.weight.npy"),
        checkpoint.weights["layers.1.attn.k.weight"],
    )
    assert (tmp_path / "model.norm.weight.npy").exists()
