"""What a cache saves, counted and measured: scores, projections, seconds, by the text's length.

Counted are attention scores of one layer and query head, and positions that pass the projections
and the feed-forward; the prompt's own share stands apart. Measured are whole calls of `generate`,
cached and uncached. The slopes of both are fitted in log-log axes, with their 95 % interval.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.plots import curves
from bench.rows import Row, report
from bench.runners import TwinRunner
from bench.timing import Spread, interleaved, seconds
from bench.usage import positive
from jaxkv.spec import memory
from jaxkv.spec.source import open_source

PROMPT = 8
BUDGETS = (9, 17, 33, 65, 129)
SAYS = (
    "A score count is neither arithmetic nor time: widths, the prompt, dispatch and memory traffic "
    "come first, so a measured slope need not be the counted one, and a slope of one machine and "
    "one range of lengths is none of another. Full squares count what a forward without causal "
    "skipping computes, causal pairs what its mask leaves."
)


@dataclass(frozen=True)
class Slope:
    """A fitted exponent.

    Attributes:
        value: Of the length, in log-log axes.
        low: Lower end of the 95 % interval of the fit; the points' own spread is not in it.
        high: Upper end.
    """

    value: float
    low: float
    high: float


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add this benchmark's options."""
    parser.add_argument("--model", default="reference", help="as for `jaxkv generate`")
    parser.add_argument("--budgets", nargs="+", type=positive, default=BUDGETS, metavar="N")


def main(options: argparse.Namespace) -> int:
    """Print counts, times and slopes; the curves are in the page.

    Returns:
        0; 1 if cached and uncached ids differ: nothing is timed then.
    """
    budgets = options.budgets[:3] if options.quick else options.budgets
    runner = TwinRunner("jaxkv", open_source(options.model))
    measured = measure(runner, budgets, repeats=3 if options.quick else 7)
    if measured is None:
        print("scores: cached and uncached ids differ, so nothing is timed.")
        return 1
    counted = {name: [float(count(n)) for n in budgets] for name, count in COUNTS.items()}
    times = {name: [spread.median for spread in spreads] for name, spreads in measured.items()}
    rows = [
        *_counts(counted, budgets, options.model),
        *_times(measured, budgets, options.model),
        *_slopes({**{name: counted[name] for name in GROWING}, **times}, budgets, options.model),
    ]
    figures = {
        "Counted": curves(
            {name: (budgets, values) for name, values in counted.items()},
            x="new tokens",
            y="scores, or positions",
            dashed=frozenset(counted),
        ),
        "Measured, over counts that are scaled to meet at the last length": _over(
            times, counted, budgets
        ),
    }
    about = f"{options.model}, prompt of {PROMPT}, cached and uncached"
    report(rows, options, about=about, says=SAYS, figures=figures)
    return 0


# What generating n tokens after the prompt computes: the prompt once, then n - 1 are fed.
COUNTS = {
    "scores, cached": lambda n: memory.cached_scores(n - 1, prompt=PROMPT),
    "scores, uncached, causal pairs": lambda n: memory.uncached_pairs(n - 1, prompt=PROMPT),
    "scores, uncached, full squares": lambda n: memory.uncached_squares(n - 1, prompt=PROMPT),
    "scores, prompt alone": lambda n: memory.cached_scores(PROMPT),
    "positions, cached": lambda n: n - 1,
    "positions, uncached": lambda n: memory.cached_scores(n - 1, prompt=PROMPT),
    "positions, prompt alone": lambda n: PROMPT,
}
# The prompt's own share is the same for every budget.
GROWING = tuple(name for name in COUNTS if "prompt" not in name)
BELOW = {
    "cached": ("scores, cached", "positions, cached"),
    "uncached": ("scores, uncached, full squares", "positions, uncached"),
}


def measure(
    runner: TwinRunner, budgets: Sequence[int], *, repeats: int
) -> dict[str, list[Spread]] | None:
    """Return the milliseconds of whole calls by budget; None if cached and uncached ids differ."""
    prompt = [list(range(1, PROMPT + 1))]
    found: dict[str, list[Spread]] = {"cached": [], "uncached": []}
    for budget in budgets:
        calls = {name: runner.prepare(prompt, budget, cached=name == "cached") for name in found}
        if calls["cached"]() != calls["uncached"]():
            return None
        measures = {name: (lambda call=call: seconds(call) * 1e3) for name, call in calls.items()}
        for name, spread in interleaved(measures, repeats=repeats).items():
            found[name].append(spread)
    return found


def slope(lengths: Sequence[float], values: Sequence[float]) -> Slope:
    """Return the exponent of a power law through the points, with its 95 % interval.

    Args:
        lengths: At least three, above 0.
        values: One each, above 0.
    """
    import numpy as np
    from scipy import stats

    fit: Any = stats.linregress(np.log(lengths), np.log(values))
    reach = stats.t.ppf(0.975, len(lengths) - 2) * fit.stderr
    return Slope(float(fit.slope), float(fit.slope - reach), float(fit.slope + reach))


def _counts(counted: dict[str, list[float]], budgets: Sequence[int], model: str) -> list[Row]:
    return [
        Row("scores", f"{model}-n{n}", name, "count", "", value, value, value)
        for at, n in enumerate(budgets)
        for name, value in ((name, values[at]) for name, values in counted.items())
    ]


def _times(measured: dict[str, list[Spread]], budgets: Sequence[int], model: str) -> list[Row]:
    return [
        Row("scores", f"{model}-n{n}", name, "total_ms", "ms", each.median, each.low, each.high)
        for at, n in enumerate(budgets)
        for name, each in ((name, spreads[at]) for name, spreads in measured.items())
    ]


def _slopes(lines: dict[str, list[float]], budgets: Sequence[int], model: str) -> list[Row]:
    found = {name: slope(budgets, values) for name, values in lines.items()}
    return [
        Row("scores", model, name, "slope", "", each.value, each.low, each.high)
        for name, each in found.items()
    ]


def _over(
    times: dict[str, list[float]], counted: dict[str, list[float]], budgets: Sequence[int]
) -> str:
    lines = {f"{name}, measured": (budgets, values) for name, values in times.items()}
    dashed = {}
    for measured, names in BELOW.items():
        last = times[measured][-1]
        for name in names:
            dashed[name] = (budgets, [each * last / counted[name][-1] for each in counted[name]])
    return curves({**lines, **dashed}, x="new tokens", y="ms", dashed=frozenset(dashed))
