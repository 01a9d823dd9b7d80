"""A prompt in pieces against the whole prompt at once: time to the first token, caches allocated.

What pieces cost: each reads keys and values of those before it from the cache, where a whole prompt
attends to what it has at hand.
"""

from collections.abc import Callable

from bench.cases import Case, prompts_of
from bench.rows import Row, missing, rows_of
from bench.runners import TwinRunner
from bench.timing import interleaved, seconds

CASE = Case("b1-p2048-chunked", batch=1, prompt=2048, new=1, capacity=2048)
CHUNK, METRIC = 256, "ttft_ms"
WHOLE, PIECES = "at once", f"in pieces of {CHUNK}"


def rows(twins: list[TwinRunner], *, repeats: int) -> list[Row]:
    """Return the rows of the case: each twin at once and in pieces, all in turn.

    Nothing is timed unless all give the same token.

    Args:
        twins: On SmolLM2.
        repeats: That count.
    """
    prompts = prompts_of(CASE)
    texts = {each.name: in_pieces(each, prompts)() for each in twins}
    texts |= {f"{each.name} {WHOLE}": at_once(each, prompts)() for each in twins}
    if len({str(ids) for ids in texts.values()}) > 1:
        note = f"not timed: the first tokens differ: {texts}"
        return [missing("prefill", CASE.name, each.name, METRIC, "ms", note) for each in twins]
    measures: dict[str, Callable[[], float]] = {}
    for each in twins:
        measures[f"{each.name} {WHOLE}"] = lambda each=each: seconds(at_once(each, prompts)) * 1e3
        measures[f"{each.name} {PIECES}"] = lambda each=each: (
            seconds(in_pieces(each, prompts)) * 1e3
        )
    # All have run once: their ids were compared.
    found = interleaved(measures, repeats=repeats, warmups=0)
    timed: list[Row] = []
    for each in twins:
        pair = {f"{each.name} {how}": found[f"{each.name} {how}"] for how in (WHOLE, PIECES)}
        timed += rows_of("prefill", CASE.name, METRIC, pair, baseline=f"{each.name} {WHOLE}")
    return timed


def at_once(twin: TwinRunner, prompts: list[list[int]]) -> Callable[[], list[list[int]]]:
    """Return the call that gives the first token, its cache allocated here."""
    return twin.prepare(prompts, 1, capacity=CASE.capacity)


def in_pieces(twin: TwinRunner, prompts: list[list[int]]) -> Callable[[], list[list[int]]]:
    """Return the call that gives the first token after pieces, its cache allocated here."""
    assert CASE.capacity is not None
    return twin.in_pieces(prompts, chunk=CHUNK, capacity=CASE.capacity)
