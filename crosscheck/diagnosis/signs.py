"""Signs that name a fault without a replay, from the logits and from the entries.

Each gives a fault, a score below that of a replay that fits, and a sentence.
"""

from crosscheck.diagnosis import (
    carried,
    disorder,
    influence,
    reading,
    signs_entries,
    signs_logits,
    unfed,
)
from crosscheck.diagnosis.trial import Trial
from crosscheck.errors import CrosscheckError
from crosscheck.results import Diagnosis

MORE = (disorder.reordered, influence.influenced, influence.overrun, carried.lost, unfed.unfed)
READ = (reading.mixed, reading.narrowed)


def signs(trial: Trial) -> list[Diagnosis]:
    """Return what all signs say; one whose own calls the subject refuses says nothing."""
    found: list[Diagnosis] = []
    for sign in (*signs_logits.SIGNS, *signs_entries.SIGNS, *MORE, *READ):
        try:
            found.extend(sign(trial))
        except CrosscheckError:
            continue
    return found
