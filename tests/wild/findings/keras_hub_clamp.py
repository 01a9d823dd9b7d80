"""keras-hub: past the cache's end the write moves back over what it holds.

pins: keras==3.15.1 keras-hub==0.32.0 torch==2.13.0 (KERAS_BACKEND=jax gives the same)
"""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras_hub
import numpy as np
from keras import ops

draw = np.random.default_rng(0)
backbone = keras_hub.models.LlamaBackbone(97, 3, 4, 32, 48, 2)
for weight in backbone.weights:
    if len(weight.shape) > 1:
        weight.assign(draw.normal(0, 0.2, weight.shape))
model = keras_hub.models.LlamaCausalLM(backbone=backbone, preprocessor=None)
ids = draw.integers(0, 97, (2, 14)).astype("int32")
ones = np.ones(ids.shape, bool)
whole = ops.convert_to_numpy(model({"token_ids": ids, "padding_mask": ones}))


def off(sizes, room):
    """Return the largest error, relative, and the first wrong position."""
    shape = ops.shape(model._build_cache(ids[:, :1])[1])
    cache, out, at = ops.zeros((*shape[:3], room, *shape[4:])), [], 0
    for size in sizes:
        logits, _, cache = model.call_with_cache(ids[:, at : at + size], cache, at)
        out, at = [*out, ops.convert_to_numpy(logits)], at + size
    error = (np.abs(np.concatenate(out, 1) - whole) / np.abs(whole).max()).max((0, 2))
    return f"{error.max():.1e}, first {next((i for i, e in enumerate(error) if e > 1e-4), None)}"


print(f"wrong: {off([1] * 14, 10)}; with room for all: {off([1] * 14, 16)}")
