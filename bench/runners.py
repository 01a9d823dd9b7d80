"""The twins behind the call that a benchmark times, and the usual set of subjects."""

import argparse
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from bench.cases import Case, used_of
from bench.compiled import CompiledRunner, lacking
from bench.elsewhere import RevisionRunner
from bench.keras_runner import KerasRunner
from bench.llama_cpp import LlamaBench, llama_bench
from bench.peers import TransformersRunner
from bench.runner import Rows, Run, Runner
from jaxkv.spec.checkpoint import Checkpoint
from jaxkv.spec.source import open_source


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
        self,
        prompts: Rows,
        budget: int,
        *,
        capacity: int | None = None,
        cached: bool = True,
        layout: str = "contiguous",
    ) -> Run:
        """Return the call that continues the prompts, on a cache of that capacity if given."""
        options: dict[str, Any] = {"max_new_tokens": budget, "cached": cached, "layout": layout}
        if capacity is not None:
            options["consume"] = True
            options["cache"] = self.allocate(batch=len(prompts), capacity=capacity)
        return lambda: self._generate(self.model, prompts, **options).new_tokens

    def in_pieces(self, prompts: Rows, *, chunk: int, capacity: int) -> Run:
        """Return the call that gives each prompt's first token, its prompt entered in pieces."""
        stream = importlib.import_module(f"{self.name}.streaming").stream
        cache = self.allocate(batch=len(prompts), capacity=capacity)
        options = {"max_new_tokens": 1, "chunk": chunk, "cache": cache, "consume": True}
        return lambda: next(stream(self.model, prompts, **options))

    def kept(self, prompts: Rows, budget: int) -> Callable[[int], list[list[int]]]:
        """Return the call that continues the prompts by so many tokens, `budget` at most.

        They have entered a cache here, once, all but their last tokens. It is as large as
        `generate` makes one for prompts and budget, and rolled back in the call.
        """
        plan = importlib.import_module(f"{self.name}.planning").plan
        slots = plan(self.model.config, prompts, max_new_tokens=budget).reach
        cache = self._generate(
            self.model,
            [row[:-1] for row in prompts],
            max_new_tokens=1,
            cache=self.allocate(batch=len(prompts), capacity=slots),
            consume=True,
            keep_cache=True,
        ).cache
        held_B, last = cache.length_B, [row[-1:] for row in prompts]

        def run(new: int) -> list[list[int]]:
            nonlocal cache
            options = {"max_new_tokens": new, "consume": True, "keep_cache": True}
            found = self._generate(self.model, last, cache=cache, **options)
            cache = self._caches.rollback(found.cache, held_B)
            return found.new_tokens

        return run

    def slots_read(self, case: Case) -> int:
        """Return how many slots of a row a step reads: jaxkv a window, torchkv what is in use."""
        if self.name != "jaxkv":
            return used_of(case)
        plan = importlib.import_module("jaxkv.planning").plan
        prompts = [[0] * case.prompt] * case.batch
        asked = {"max_new_tokens": case.new, "capacity": case.capacity}
        return plan(self.model.config, prompts, **asked).reach

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


def add_peers(parser: argparse.ArgumentParser) -> None:
    """Add the options that say against whom: the arguments of `subjects`."""
    parser.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="REV",
        help="also jaxkv of another git revision, in the same run (repeatable)",
    )
    parser.add_argument(
        "--caches",
        nargs="+",
        choices=("static", "compiled"),
        default=[],
        help="also transformers with its static cache, eager or with its step compiled",
    )
    parser.add_argument("--no-torchkv", action="store_true", help="leave torchkv's eager steps out")
    parser.add_argument(
        "--compile", action="store_true", help="also torchkv with its step of decode compiled"
    )
    parser.add_argument(
        "--keras-hub",
        metavar="PYTHON",
        help="also keras-hub on JAX, in the environment of that interpreter",
    )
    parser.add_argument(
        "--llama-cpp", metavar="PATH", help="also llama.cpp in F32: its program llama-bench"
    )


@contextmanager
def everyone(
    options: argparse.Namespace,
) -> Iterator[tuple[Checkpoint, list[Runner], list[LlamaBench]]]:
    """Yield SmolLM2, its `subjects` and llama.cpp, as the options of `add_peers` say."""
    checkpoint = open_source("smollm2")
    names = ("against", "caches", "compile", "keras_hub", "no_torchkv")
    peers = {name: getattr(options, name) for name in names}
    with (
        llama_bench(checkpoint, options.llama_cpp) as others,
        subjects(checkpoint, **peers) as runners,
    ):
        yield checkpoint, runners, others


@contextmanager
def subjects(
    checkpoint: Checkpoint,
    *,
    against: Sequence[str] = (),
    caches: Sequence[str] = (),
    compile: bool = False,
    keras_hub: str | None = None,
    no_torchkv: bool = False,
) -> Iterator[list[Runner]]:
    """Yield the subjects on a checkpoint's weights: both twins, peers, and transformers at last.

    Args:
        checkpoint: SmolLM2; another revision opens it by that name.
        against: Git revisions of jaxkv.
        caches: Of transformers, beside its default, which is the baseline.
        compile: Whether torchkv runs with its step compiled too, if it can be here.
        keras_hub: An interpreter that has keras-hub; None leaves it out.
        no_torchkv: Whether torchkv's eager steps are left out.

    Raises:
        SourceError: A revision is none, or another program cannot run.
    """
    with ExitStack() as ended:
        others: list[Runner] = [
            ended.enter_context(closing(RevisionRunner(each))) for each in against
        ]
        if keras_hub is not None:
            others.append(ended.enter_context(closing(KerasRunner(checkpoint, keras_hub))))
        ours: list[Runner] = [TwinRunner("jaxkv", checkpoint)]
        if compile or not no_torchkv:
            eager = TwinRunner("torchkv", checkpoint)
            ours += [eager] * (not no_torchkv)
            ours += [CompiledRunner(eager)] * (compile and lacking() is None)
        yield [
            *ours,
            *others,
            *(TransformersRunner(checkpoint, cache=each) for each in caches),
            TransformersRunner(checkpoint),
        ]
