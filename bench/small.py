"""A model of 2 million parameters, 32 new tokens: what a call costs beside what it computes.

Whole calls of both twins' `generate` after warm-up, against transformers' eager loop on the same
weights. `program` is jaxkv's compiled program alone, on arguments that lie on the device already:
what `generate` takes beyond it is the host's, and is told as a share of it.
"""

import argparse
from collections.abc import Callable
from typing import Any

from bench.gpu_shapes import random_checkpoint
from bench.peers import TransformersRunner
from bench.rows import Row, report, rows_of
from bench.runners import TwinRunner
from bench.timing import Spread, interleaved, seconds

SHAPE, PROMPT, NEW = "2m", [3, 1, 4, 1, 5, 9, 2, 6], 32
SAYS = (
    "Host overhead is the call's median less the program's, over the program's: below 0.1 is what "
    "was asked for. The others run op by op, so that calls and computing are one time."
)


def main(options: argparse.Namespace) -> int:
    """Print the table; ratio is transformers over the subject.

    Returns:
        0; 1 if some ids differ: nothing is timed then.
    """
    checkpoint = random_checkpoint(SHAPE)
    ours = TwinRunner("jaxkv", checkpoint)
    runners = [ours, TwinRunner("torchkv", checkpoint), TransformersRunner(checkpoint)]
    calls = {runner.name: runner.prepare([PROMPT], NEW) for runner in runners}
    texts = {name: call() for name, call in calls.items()}
    if wrong := [name for name, ids in texts.items() if ids != texts["transformers"]]:
        print(f"small: nothing is timed, the ids differ: {', '.join(wrong)}.")
        return 1
    measures: dict[str, Callable[[], float]] = {"program": program(ours.model)}
    measures |= {name: (lambda call=call: seconds(call) * 1e3) for name, call in calls.items()}
    found = interleaved(measures, repeats=20 if options.quick else 60, warmups=3)
    case = f"{SHAPE}-p{len(PROMPT)}-n{NEW}"
    rows = [*rows_of("small", case, "total_ms", found), overhead(case, found)]
    report(rows, options, about="2 million parameters, float32", says=SAYS)
    return 0


def overhead(case: str, found: dict[str, Spread]) -> Row:
    """Return the row of what a call takes beyond its program, as a share of the program."""
    share = found["jaxkv"].median / found["program"].median - 1
    return Row("small", case, "jaxkv", "host_overhead", "", share, share, share)


def program(model: Any) -> Callable[[], float]:
    """Return a measure, in ms, of the program that `generate` runs for the case, and of it alone.

    Its cache is allocated before the clock starts, as its arguments are.
    """
    import jax

    from jaxkv import programs
    from jaxkv.loop import run
    from jaxkv.model import params_of
    from jaxkv.request import check, device_arrays, new_cache

    request = check(
        "small",
        model,
        [PROMPT],
        max_new_tokens=NEW,
        end_ids=(),
        cache=None,
        capacity=None,
        sampling={},
    )
    arguments = jax.block_until_ready((params_of(model), *device_arrays(request)))
    compiled = programs.PROGRAMS.jitted(run, donate=("cache",))
    static = {
        "config": model.config,
        "reach": request.plan.reach,
        "fresh": True,
        "rectangular": True,
        "clean": True,
        "logprobs": False,
        "top": 0,
    }

    def measure() -> float:
        sizes = {"slots": request.plan.reach, "layout": "contiguous", "slack": 0}
        cache = new_cache(model, request, **sizes, page_size=None, options=None)
        jax.block_until_ready(cache)
        call = lambda: jax.block_until_ready(compiled(*arguments, cache, None, **static))  # noqa: E731
        return seconds(call) * 1e3

    return measure
