"""Decode by family: time per byte moved, each beside llama in one run, at equal total bytes.

Random weights of 100 M parameters' bytes in float32, 512 tokens of noise in each row's cache, steps
timed as in `layouts`: (time of N tokens - time of 1) / (N - 1). Bytes are the weights that a step
reads (experts: those that its rows chose, counted in the run) and the keys and values in use. A
second llama, of weights of its own, tells how far two of a kind lie apart.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from bench.family_shapes import BASELINE, FAMILIES, USED, checkpoint_of, moved_bytes, shape_of
from bench.layouts import FLAT, NEW, Steps, Subject
from bench.rows import Row, report, rows_of
from bench.timing import Spread, interleaved
from jaxkv.spec.config import Experts, ModelConfig

TWINS = ("jaxkv", "torchkv")
CASES = {"b1": 1, "b8": 8}
HELD = replace(FLAT, used=USED)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what this benchmark alone takes."""
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--families", nargs="+", choices=FAMILIES)
    parser.add_argument("--twin", choices=TWINS, default="jaxkv")


def main(options: argparse.Namespace) -> int:
    """Print the table; ratio is llama's time a byte over the family's, so 0.91 is 1.1 times.

    Returns:
        0.
    """
    rows: list[Row] = []
    families = options.families or (FAMILIES[:2] if options.quick else FAMILIES)
    for case in options.cases:
        batch = CASES[case]
        llama = Decoder(options.twin, shape_of(BASELINE, batch=batch), batch=batch)
        for family in families:
            other = Decoder(options.twin, shape_of(family, batch=batch), batch=batch)
            name = "second llama" if family == BASELINE else family
            found = _compared({BASELINE: llama, name: other}, repeats=3 if options.quick else 5)
            rows += rows_of("families", case, "time_a_byte", found, unit="ps", baseline=BASELINE)
            print(case, family, *_words(found, other), flush=True)
    report(rows, options, about=f"decode by family, {options.twin}, float32")
    return 0


def _compared(decoders: dict[str, "Decoder"], *, repeats: int) -> dict[str, Spread]:
    """Return picoseconds a byte of each, measured in turn."""
    found = interleaved({name: each.step for name, each in decoders.items()}, repeats=repeats)
    return {name: _a_byte(spread, decoders[name].moved) for name, spread in found.items()}


def _a_byte(step_ms: Spread, moved: float) -> Spread:
    each = (1e9 * ms / moved for ms in (step_ms.median, step_ms.low, step_ms.high))
    return Spread(*each)


def _words(found: dict[str, Spread], other: "Decoder") -> Iterator[str]:
    for name, spread in found.items():
        yield f"{name} {spread.median:.1f} ps"
    yield f"{other.moved / 1e6:.0f} MB"
    if other.touched is not None:
        yield f"{other.touched:.2f} experts"


class Decoder:
    """A random decoder whose rows hold noise already.

    Attributes:
        touched: Experts of a layer that the rows of a step choose together; None without experts.
        moved: Bytes of a step.
        step: Measures one, in ms.
    """

    def __init__(self, twin: str, config: ModelConfig, *, batch: int, held: Subject = HELD):
        steps = Steps(twin, checkpoint_of(config))
        steps.cache = {held.name: steps.filled(held, batch=batch)}
        has_experts = any(isinstance(layer.mlp, Experts) for layer in config.layers)
        self.touched = touched_by(steps, held) if has_experts else None
        used = held.used + NEW // 2
        self.moved = moved_bytes(config, batch=batch, used=used, touched=self.touched)
        self.step = steps.step_of(held)


def touched_by(steps: Steps, held: Subject) -> float:
    """Return how many experts of a layer a step's rows choose together, on average."""
    counts: list[int] = []
    with _listening(steps.twin, counts):
        steps._run(held, NEW)
    return sum(counts) / len(counts)


@contextmanager
def _listening(twin: str, counts: list[int]) -> Iterator[None]:
    """Append how many experts each routing of a step of one token chooses, while it lasts."""
    import importlib

    import numpy as np

    experts: Any = importlib.import_module(f"{twin}.experts")
    route = experts.route

    def count(chosen: Any) -> None:
        counts.append(len(np.unique(np.asarray(chosen))))

    def heard(*arguments: Any, **options: Any) -> Any:
        expert_BTC, weight_BTC = route(*arguments, **options)
        if expert_BTC.shape[1] > 1:
            return expert_BTC, weight_BTC
        if twin == "jaxkv":
            import jax

            jax.debug.callback(count, expert_BTC)
        else:
            count(expert_BTC)
        return expert_BTC, weight_BTC

    experts.route = heard
    try:
        _forget(twin)
        yield
    finally:
        experts.route = route
        _forget(twin)


def _forget(twin: str) -> None:
    """Drop what was compiled, so that the next call is traced anew."""
    if twin == "jaxkv":
        import jax

        jax.effects_barrier()
        jax.clear_caches()
