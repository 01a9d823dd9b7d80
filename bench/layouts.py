"""A decode step of SmolLM2, float32, by cache layout: each against contiguous in one run, per twin.

The caches hold their tokens before the clock starts (seeded noise: what they hold costs no time,
and an entry read from the wrong place gives other ids), and a step's time is (time of N tokens -
time of 1) / (N - 1). Paged caches stand beside contiguous at 2,048 tokens a row; a ring of W beside
contiguous at W tokens, in the same model with and without a window of W, its ids beside those of
contiguous with its own tokens and window; so do codes of 8, 4 and 2 bits at 2,048 tokens, and sinks
of W tokens in all, whose ids may be others. `fork` is one row of a paged cache forked onto another.
Beside each time stand the cache's bytes.
"""

import argparse
import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.rows import Row, report, rows_of
from bench.runners import TwinRunner
from bench.timing import Spread, interleaved, seconds
from jaxkv.spec.source import open_source

NEW, USED, WINDOW = 17, 2048, 1024
TWINS = ("jaxkv", "torchkv")


@dataclass(frozen=True)
class Subject:
    """One layout in one case.

    Attributes:
        name: As in the results.
        options: Of `caches.init`.
        used: Tokens that each row holds before the clock starts, the longest where they differ.
        rows: Tokens of each row where they differ.
        window: Of every layer, None for none.
        exact: Whether its ids must be those of contiguous with as many tokens and the same window.
    """

    name: str
    options: dict[str, Any]
    used: int = USED
    rows: tuple[int, ...] = ()
    window: int | None = None
    exact: bool = True

    def held(self, batch: int) -> list[int]:
        """Return the tokens of each row."""
        return list(self.rows) or [self.used] * batch


FLAT = Subject("contiguous", {})
PAGED = tuple(Subject(f"paged-{size}", {"layout": "paged", "page_size": size}) for size in (64, 16))
RING = (
    Subject("contiguous", {}, used=WINDOW),
    Subject("ring", {"layout": "window", "slack": NEW}, used=USED, window=WINDOW),
)


def _coded(bits: int) -> Subject:
    options = {"layout": "quantized", "bits": bits, "slack": NEW if bits < 8 else 0}
    return Subject(f"{bits}-bit", options, exact=False)


CODED = (FLAT, *(_coded(bits) for bits in (8, 4, 2)))
SINKS = (
    Subject("contiguous", {}, used=WINDOW),
    Subject(
        "sinks",
        {"layout": "sinks", "sinks": 4, "window": WINDOW - 4, "slack": NEW},
        used=USED,
        exact=False,
    ),
)
CASES: dict[str, tuple[int, tuple[Subject, ...]]] = (
    {f"b{rows}-u{USED}": (rows, (FLAT, *PAGED)) for rows in (1, 8)}
    | {f"b{rows}-w{WINDOW}": (rows, RING) for rows in (1, 8)}
    | {f"b{rows}-coded{USED}": (rows, CODED) for rows in (1, 8)}
    | {f"b{rows}-sinks{WINDOW}": (rows, SINKS) for rows in (1, 8)}
)
QUICK = (f"b1-u{USED}", f"b1-w{WINDOW}")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what this benchmark alone takes."""
    parser.add_argument("--cases", nargs="+", choices=(*CASES, "fork"), metavar="CASE")
    parser.add_argument("--twins", nargs="+", choices=TWINS, default=list(TWINS))


def main(options: argparse.Namespace) -> int:
    """Print the table; ratio is contiguous over the layout, so 0.67 is 1.5 times its step.

    Returns:
        0; 1 if layouts of one case gave different ids: that case is then not timed.
    """
    checkpoint = open_source("smollm2")
    repeats = 3 if options.quick else 5
    rows: list[Row] = []
    failed = 0
    for twin in options.twins:
        runner = Steps(twin, checkpoint)
        for name in options.cases or (*(QUICK if options.quick else CASES), "fork"):
            if name == "fork":
                found = interleaved({f"{twin} fork": runner.fork}, repeats=10 * repeats)
                rows += rows_of("layouts", f"u{USED}", "fork_ms", found, baseline="")
                continue
            batch, subjects = CASES[name]
            if wrong := runner.open(batch, subjects):
                print(f"layouts: {twin} {name} is not timed, the ids differ: {', '.join(wrong)}.")
                failed = 1
                continue
            rows += _timed(runner, name, subjects, repeats=repeats)
            done = [row for row in rows if row.case == name and row.metric == "step_ms"]
            print(name, *(f"{each.subject} {each.median:.2f} ms" for each in done), flush=True)
    report(rows, options, about="decode by layout, SmolLM2-135M, float32")
    return failed


def _timed(runner: "Steps", name: str, subjects: tuple[Subject, ...], *, repeats: int) -> list[Row]:
    twin = runner.twin
    measures = {f"{twin} {each.name}": runner.step_of(each) for each in subjects}
    found = interleaved(measures, repeats=repeats)
    rows = rows_of("layouts", name, "step_ms", found, baseline=f"{twin} contiguous")
    sizes = {f"{twin} {each.name}": runner.mebibytes(each) for each in subjects}
    spreads = {subject: Spread(size, size, size) for subject, size in sizes.items()}
    return rows + rows_of("layouts", name, "cache", spreads, unit="MiB", baseline="")


class Steps:
    """One twin's SmolLM2 with caches that hold tokens already."""

    def __init__(self, twin: str, checkpoint: Any):
        runner = TwinRunner(twin, checkpoint)
        self.twin, self.model = twin, runner.model
        self.generate, self.caches = runner._generate, runner._caches
        self.cache: dict[str, Any] = {}
        self.write = _writer(self.caches, twin)

    def open(self, batch: int, subjects: tuple[Subject, ...]) -> list[str]:
        """Make the caches of a case; return the exact subjects with other ids than contiguous."""
        self.cache = {each.name: self.filled(each, batch=batch) for each in subjects}
        texts = {each.name: self.ids(each) for each in subjects}
        right = {
            (each.used, each.window): texts[each.name] for each in subjects if not each.options
        }
        wrong = []
        for each in subjects:
            form = each.used, each.window
            if each.exact and form not in right:
                right[form] = self._right(each, batch=batch)
            if each.exact and texts[each.name] != right[form]:
                wrong.append(each.name)
        return wrong

    def _right(self, subject: Subject, *, batch: int) -> list[list[int]]:
        """Return the ids of contiguous with a subject's tokens and window."""
        flat = replace(FLAT, name="", used=subject.used, window=subject.window)
        self.cache[flat.name] = self.filled(flat, batch=batch)
        ids = self.ids(flat)
        del self.cache[flat.name]
        return ids

    def filled(self, subject: Subject, *, batch: int) -> Any:
        """Return a cache whose rows hold noise as keys and values, the same in every layout."""
        config, used = self._model(subject).config, subject.used
        cache = self.caches.init(
            config, batch=batch, capacity=used + 64, dtype=self.model.dtype, **subject.options
        )
        counts = self._counts(subject.held(batch))
        cache, step = self.caches.begin(
            cache, counts, T=used, fresh=True, rectangular=not subject.rows
        )
        sites = tuple(
            self._noisy(site, step, layer.attention, seed=at)
            for at, (site, layer) in enumerate(zip(cache.sites, config.layers, strict=True))
        )
        return self.caches.commit(cache, step, sites)

    def _noisy(self, site: Any, step: Any, attention: Any, *, seed: int) -> Any:
        """Return a site that `attend` wrote noise to; what it answers is of no interest."""
        rows, tokens = step.valid_BT.shape
        shape = (rows, tokens, attention.num_kv_heads, attention.head_dim)
        rng = np.random.default_rng(seed)
        k_BTKH, v_BTKH = (
            self._array(rng.standard_normal(shape, dtype=np.float32)) for _ in range(2)
        )
        rule = self.caches.Rule(scale=1.0, window=attention.window)
        return self.write(site, step, k_BTKH, v_BTKH, rule)

    def ids(self, subject: Subject) -> list[list[int]]:
        """Return the new tokens of each row after what a subject's cache holds."""
        return self._run(subject, NEW)

    def step_of(self, subject: Subject) -> Callable[[], float]:
        """Return the measurement of one step, in ms."""

        def measure() -> float:
            first, whole = (seconds(lambda n=n: self._run(subject, n)) for n in (1, NEW))
            return (whole - first) / (NEW - 1) * 1000

        return measure

    def fork(self) -> float:
        """Return how long a paged row of 2,048 tokens takes to be forked, in ms."""
        if "fork" not in self.cache:
            cache = self.filled(PAGED[1], batch=2)
            only_B = self._counts([0, 1]) > 0
            self.cache = {"fork": self.caches.reset(cache, only_B)}

        def call() -> None:
            forked = self.caches.fork_row(self.cache["fork"], 0, 1)
            for array in (forked.shared.table_BC, forked.shared.count_A, forked.length_B):
                np.asarray(array)

        return seconds(call) * 1000

    def mebibytes(self, subject: Subject) -> float:
        """Return the size of a subject's cache."""
        return self.caches.nbytes(self.cache[subject.name]) / 2**20

    def _run(self, subject: Subject, new: int) -> list[list[int]]:
        cache = self.cache.pop(subject.name)
        batch = len(cache.length_B)
        found = self.generate(
            self._model(subject),
            [[11 + row] for row in range(batch)],
            max_new_tokens=new,
            cache=cache,
            consume=True,
            keep_cache=True,
        )
        held = self._counts(subject.held(batch))
        self.cache[subject.name] = self.caches.rollback(found.cache, held)
        return found.new_tokens

    def _model(self, subject: Subject) -> Any:
        if subject.window is None:
            return self.model
        model, config = copy.copy(self.model), self.model.config
        layers = tuple(
            replace(each, attention=replace(each.attention, window=subject.window))
            for each in config.layers
        )
        model.config = replace(config, layers=layers)
        return model

    def _counts(self, numbers: list[int]) -> Any:
        return self._array(np.array(numbers, np.int32))

    def _array(self, array: np.ndarray) -> Any:
        if self.twin == "torchkv":
            import torch

            return torch.from_numpy(array)
        import jax.numpy as jnp

        return jnp.asarray(array)


def _writer(caches: Any, twin: str) -> Callable[..., Any]:
    """Return a function: site, step, keys, values, rule -> the site with them written."""

    def write(site: Any, step: Any, k_BTKH: Any, v_BTKH: Any, rule: Any) -> Any:
        return caches.attend(site, step, k_BTKH, k_BTKH, v_BTKH, rule=rule)[1]

    if twin == "torchkv":
        return write
    import jax

    # Compiled, the attention that nobody asks for is left out.
    return jax.jit(write, static_argnames=("rule",))
