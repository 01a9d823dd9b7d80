"""The twins behind the call that a benchmark times, and the usual set of subjects."""

import importlib
from typing import Any

from bench.peers import TransformersRunner
from bench.runner import Rows, Run, Runner
from jaxkv.spec.checkpoint import Checkpoint


class TwinRunner:
    """jaxkv or torchkv through its public `generate`, on the framework's default device."""

    def __init__(self, twin: str, checkpoint: Checkpoint, *, dtype: str = "float32"):
        self.name = twin
        self._generate = importlib.import_module(f"{twin}.generation").generate
        self._caches = importlib.import_module(f"{twin}.caches")
        self.model = importlib.import_module(f"{twin}.weights").from_arrays(
            checkpoint.config,
            checkpoint.weights,
            dtype=dtype,
            interleaved_qk=checkpoint.interleaved_qk,
        )

    def prepare(
        self, prompts: Rows, budget: int, *, capacity: int | None = None, cached: bool = True
    ) -> Run:
        """Return the call that continues the prompts, on a cache of that capacity if given."""
        options = {"max_new_tokens": budget, "cached": cached}
        if capacity is not None:
            options["consume"] = True
            options["cache"] = self.allocate(batch=len(prompts), capacity=capacity)
        return lambda: self._generate(self.model, prompts, **options).new_tokens

    def allocate(self, *, batch: int, capacity: int, layout: str = "contiguous") -> Any:
        """Return an empty cache whose buffers are there."""
        cache = self._caches.init(
            self.model.config,
            batch=batch,
            capacity=capacity,
            dtype=self.model.dtype,
            layout=layout,
        )
        if self.name == "jaxkv":
            import jax

            jax.block_until_ready(cache)
        return cache


def subjects(checkpoint: Checkpoint) -> list[Runner]:
    """Return both twins and transformers, the baseline, on a checkpoint's weights."""
    return [
        TwinRunner("jaxkv", checkpoint),
        TwinRunner("torchkv", checkpoint),
        TransformersRunner(checkpoint),
    ]
