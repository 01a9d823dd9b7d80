"""Rows of different lengths against rows of one, with the same keys and values: a step of decode.

The caches hold their tokens before the clock starts, seeded noise as in `layouts`, of the same
number in all rows together: eight rows of 16 to 1,008, and eight of 496. No row of a ragged batch
is alone in what it costs: a step reads for all of them as far as the longest reaches, and writes
each token at a place of its own.
"""

from bench.layouts import FLAT, NEW, TWINS, Steps, Subject
from bench.rows import Row, missing, rows_of
from bench.timing import interleaved
from jaxkv.spec.checkpoint import Checkpoint

CASE, METRIC = "b8-ragged", "decode_ms_per_step"
# Before the last prompt token enters, which both begin with: both end on a whole window, 1,024
# slots and 512.
LENGTHS = (15, 140, 280, 422, 563, 702, 831, 1007)
RAGGED = Subject("ragged", FLAT.options, used=max(LENGTHS), rows=LENGTHS)
LEVEL = Subject("one length", FLAT.options, used=sum(LENGTHS) // len(LENGTHS))
SAYS = (
    f"{CASE}: reads as far as the longest row, {max(LENGTHS) + NEW} slots of each, where one "
    f"length reads {LEVEL.used + NEW}; ratio is the time of one length over this one's"
)


def rows(checkpoint: Checkpoint, *, repeats: int) -> list[Row]:
    """Return the rows of the case: both twins, ragged and of one length, all in turn.

    A twin's ragged rows are not timed unless the twins give the same ids.

    Args:
        checkpoint: SmolLM2.
        repeats: That count.
    """
    twins = [Steps(twin, checkpoint) for twin in TWINS]
    for each in twins:
        each.cache = {one.name: each.filled(one, batch=len(LENGTHS)) for one in (RAGGED, LEVEL)}
    if twins[0].ids(RAGGED) != twins[1].ids(RAGGED):
        note = f"not timed: ids of {TWINS[0]} and {TWINS[1]} differ"
        return [missing("decode", CASE, twin, METRIC, "ms", note) for twin in TWINS]
    found = interleaved(
        {f"{each.twin} {one.name}": each.step_of(one) for each in twins for one in (RAGGED, LEVEL)},
        repeats=repeats,
    )
    timed: list[Row] = []
    for twin in TWINS:
        pair = {name: spread for name, spread in found.items() if name.startswith(twin)}
        timed += rows_of("decode", CASE, METRIC, pair, baseline=f"{twin} {LEVEL.name}")
    return timed
