"""Loading a model adds little more than its weights to the memory of the process."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from jaxkv.spec import memory
from jaxkv.spec.huggingface_save import write_huggingface
from jaxkv.spec.weight_shapes import weight_shapes
from tests.tiny import CONFIGS, TWINS

# What a process has touched is not given back to others: the peak is read from the kernel. Threads
# and pools of the framework start with the first array, which is made before counting.
PROBE = """
import importlib, json, re, sys
from jaxkv.spec.huggingface import read_huggingface
twin, path = sys.argv[1:]
weights = importlib.import_module(f"{twin}.weights")
importlib.import_module("safetensors.numpy")
small = read_huggingface(path + "/small")
weights.from_arrays(small.config, small.weights)

def peak():
    status = open("/proc/self/status").read()
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) * 1024

before = peak()
checkpoint = read_huggingface(path + "/large")
model = weights.from_arrays(checkpoint.config, checkpoint.weights)
print(json.dumps(peak() - before))
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two models in directories of shards, and the bytes of the larger one in float32."""
    path = tmp_path_factory.mktemp("models")
    plain = CONFIGS["llama"]
    layer = plain.layers[1]
    wide = replace(layer, mlp=replace(layer.mlp, width=2000))
    large = replace(plain, width=320, vocab_size=6000, layers=(wide,) * 12)
    for name, config in (("small", replace(plain, layers=(layer,) * 2)), ("large", large)):
        arrays = {key: np.ones(shape, np.float32) for key, shape in weight_shapes(config).items()}
        write_huggingface(path / name, config, arrays, shard_bytes=16 * 1024**2)
    return path, 4 * memory.num_parameters(large)


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the kernel counts pages there")
@pytest.mark.parametrize("twin", TWINS)
def test_loading_adds_at_most_1_3_times_the_weights(twin, models):
    path, weight_bytes = models

    run = subprocess.run(
        [sys.executable, "-c", PROBE, twin, str(path)], capture_output=True, text=True, check=True
    )

    assert weight_bytes > 90 * 1024**2
    assert len(list((path / "large").glob("*.safetensors"))) > 4
    assert weight_bytes < json.loads(run.stdout) < 1.3 * weight_bytes
