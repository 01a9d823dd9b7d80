"""A subject in a process of its own: MODEL PACKAGE; requests and answers are lines of JSON.

Imports nothing of this package: it must run beside any revision of jaxkv.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

Request = dict[str, Any]


def main(source: str, package: str) -> None:
    """Answer until standard input ends.

    First the folder of the package that was imported; then, for each request with `prompts`,
    `budget` and `capacity`, what `allocate` or `continue` gives.
    """
    # Whatever the program itself prints must not stand between the answers.
    answers, sys.stdout = sys.stdout, sys.stderr
    twin = importlib.import_module(package)
    open_source = importlib.import_module("jaxkv.spec.source").open_source
    checkpoint = open_source(source)
    model = importlib.import_module(f"{package}.weights").from_arrays(
        checkpoint.config, checkpoint.weights, interleaved_qk=checkpoint.interleaved_qk
    )
    served = Served(package, model)
    _say(answers, {"folder": str(Path(twin.__file__ or "").resolve().parent.parent)})
    for line in sys.stdin:
        _say(answers, served.answer(json.loads(line)))


class Served:
    """A model, and the cache that was allocated for its next call."""

    def __init__(self, package: str, model: Any):
        self.model = model
        self.generate = importlib.import_module(f"{package}.generation").generate
        self.init = importlib.import_module(f"{package}.caches").init
        self.package, self.cache = package, None

    def answer(self, request: Request) -> dict[str, Any]:
        """Return {} for an allocation, the new ids for a continuation."""
        if request["do"] == "allocate":
            self.cache = self._allocate(len(request["prompts"]), request["capacity"])
            return {}
        options = {}
        if self.cache is not None:
            options, self.cache = {"cache": self.cache, "consume": True}, None
        made = self.generate(
            self.model, request["prompts"], max_new_tokens=request["budget"], **options
        )
        return {"new_tokens": made.new_tokens}

    def _allocate(self, batch: int, capacity: int) -> Any:
        cache = self.init(self.model.config, batch=batch, capacity=capacity, dtype=self.model.dtype)
        if self.package == "jaxkv":
            import jax

            jax.block_until_ready(cache)
        return cache


def _say(answers: Any, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
