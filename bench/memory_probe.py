"""One case of `bench memory`, in a process of its own: TWIN MODEL LAYOUT BATCH TOKENS.

Prints the bytes of the cache's arrays, and the resident bytes that it took to allocate and fill it,
above a process that holds the model and has run a step on a tiny cache.
"""

import importlib
import json
import sys

from bench.room import peak_bytes
from jaxkv.spec.source import open_source


def main(twin: str, model_name: str, layout: str, batch: int, tokens: int) -> None:
    """Print one JSON object."""
    checkpoint = open_source(model_name)
    model = importlib.import_module(f"{twin}.weights").from_arrays(
        checkpoint.config, checkpoint.weights, interleaved_qk=checkpoint.interleaved_qk
    )
    caches = importlib.import_module(f"{twin}.caches")
    generate = importlib.import_module(f"{twin}.generation").generate
    prompts = [[1 + row % 7] for row in range(batch)]

    def run(capacity: int):
        cache = caches.init(
            model.config, batch=batch, capacity=capacity, dtype=model.dtype, layout=layout
        )
        held = caches.nbytes(cache)
        generate(model, prompts, max_new_tokens=2, cache=cache, consume=True)
        return held

    run(8)
    before = peak_bytes()
    allocated = run(tokens)
    print(json.dumps({"allocated": allocated, "peak_above_model": peak_bytes() - before}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
