"""The write of one step at two capacities: a jaxlib that rewrites the buffer shows itself.

jax #40101: on CPUs some releases turn a small `dynamic_update_slice` inside a loop into a copy of
the whole buffer, so that a step's time grows with the capacity. Keys and values of 30 layers of
SmolLM2 are written 200 times.
"""

import argparse
from importlib.metadata import version

import jax
import jax.numpy as jnp

from bench.rows import report, rows_of
from bench.timing import interleaved, seconds

CAPACITIES = (512, 8192)
LAYERS, LINES, WIDTH, STEPS = 30, 3, 64, 200
# A rewritten buffer costs 16 times. Smallest times, since those of some 50 us differ by chance; and
# 1 to 3 times without any rewriting: the larger buffer does not fit the processor's caches.
LIMIT = 6.0


def main(options: argparse.Namespace) -> int:
    """Print the table and the verdict.

    Returns:
        0; 1 if the larger capacity costs more than the limit, in the smallest times of both.
    """
    measures = {f"capacity {slots}": _writes(slots) for slots in CAPACITIES}
    found = interleaved(measures, repeats=5 if options.quick else 15)
    small, large = (found[name] for name in measures)
    rows = rows_of("writes", "b1", "write_us_per_step", found, unit="us", baseline="capacity 512")
    report(rows, options, about=f"one step's writes, {LAYERS} layers, float32")
    growth = large.low / small.low
    flagged = growth > LIMIT
    verdict = "REWRITES the buffer" if flagged else "writes in place"
    print(f"jaxlib {version('jaxlib')} {verdict}: {growth:.2f} times at 16 times the capacity.")
    return int(flagged)


def _writes(slots: int):
    from jaxkv.caches import slots as buffers

    keep = jnp.ones(LINES, bool)

    def step(at, layers):
        new = jnp.full((LINES, 1, WIDTH), at, jnp.float32)
        return [buffers.write_slice(k, v, new, new, start=at, keep_X=keep) for k, v in layers]

    run = jax.jit(lambda layers: jax.lax.fori_loop(0, STEPS, step, layers), donate_argnums=0)

    def measure() -> float:
        layers = [
            (jnp.zeros((LINES, WIDTH, slots)), jnp.zeros((LINES, slots, WIDTH)))
            for _ in range(LAYERS)
        ]
        jax.block_until_ready(layers)
        return seconds(lambda: jax.block_until_ready(run(layers))) / STEPS * 1e6

    return measure
