"""One start for `bench startup`: TWIN MODEL; prints the seconds of its stages as JSON."""

import time

BEGUN = time.perf_counter()

import importlib  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402

from bench.timing import first_and_steady  # noqa: E402


def main(twin: str, name: str) -> None:
    """Print one JSON object: seconds of imports, reading, and of two calls for one token."""
    source = importlib.import_module("jaxkv.spec.source")
    weights = importlib.import_module(f"{twin}.weights")
    generate = importlib.import_module(f"{twin}.generation").generate
    imported = time.perf_counter()
    checkpoint = source.open_source(name)
    model = weights.from_arrays(
        checkpoint.config, checkpoint.weights, interleaved_qk=checkpoint.interleaved_qk
    )
    read = time.perf_counter()
    first, steady = first_and_steady(
        lambda: generate(model, [[1, 2, 3]], max_new_tokens=1), repeats=1
    )
    stages = {
        "imports": imported - BEGUN,
        "reading": read - imported,
        "first_call": first,
        "second_call": steady.median,
    }
    print(json.dumps(stages))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
