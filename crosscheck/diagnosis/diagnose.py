"""Name the fault: replay the dictionary in what is right, and read the signs.

A replay on the failing case may fit several faults; short cases of the same model then part them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from crosscheck import budget
from crosscheck.diagnosis.replay import Ground, Match, grounds, replay
from crosscheck.diagnosis.signs import signs
from crosscheck.diagnosis.suspects import suspects
from crosscheck.diagnosis.trial import Trial, run_trial
from crosscheck.faults.registry import Fault
from crosscheck.programs.case import Append, Case
from crosscheck.results import Diagnosis

# Faults that score less, or less than this share of the best, are not told.
LEAST, WORTH = 0.2, 0.35
SHOWN = 5
# A sign of this score needs no comparison with what other faults would have done.
CERTAIN = 0.9


@dataclass
class Suspicion:
    """A fault with its replays.

    Attributes:
        fault: Of the dictionary.
        here: On the failing case.
        weight: Of that replay: small where the fault can't be planted exactly on this text.
        apart: On the short cases.
    """

    fault: Fault
    here: Match
    weight: float
    apart: list[Match] = field(default_factory=list)

    @property
    def score(self) -> float:
        """From 0 to 1: a replay that fits wherever something is wrong."""
        told = [(self.weight, self.here), *((1.0, m) for m in self.apart)]
        told = [(weight, m) for weight, m in told if not m.silent]
        if not told:
            return 0.0
        score = sum(weight * m.score for weight, m in told) / sum(weight for weight, _ in told)
        sure = self.here.exact or len(told) > 1 or self.weight >= 1
        return score if sure else 0.6 * score

    @property
    def exact(self) -> int:
        """How many replays give the candidate's own wrong logits."""
        return sum(m.exact and not m.silent for m in (self.here, *self.apart))

    @property
    def words(self) -> str:
        """What the replays showed."""
        told = [m for m in (self.here, *self.apart) if not m.silent]
        if self.here.exact:
            start = "planted in the right path it gives the same wrong logits"
        else:
            start = f"planted in the right path it explains {self.here.explained:.0%} of the error"
        return f"{start} ({self.exact} of {len(told)} replays fit exactly)"


def diagnose(
    candidate: Any,
    reference: Any | None,
    relation_name: str,
    case: Case,
    *,
    deadline: float | None = None,
) -> tuple[Diagnosis, ...]:
    """Return the faults that would explain a failing case, best first; () where none is known.

    Args:
        candidate: The subject in doubt.
        reference: A right subject with the same weights; None for the candidate's own forward.
        relation_name: The relation that failed.
        case: On which it failed.
        deadline: As `budget.now` gives it: return what is known by then.
    """
    trial = run_trial(candidate, reference, relation_name, case)
    found = {each.fault: each for each in signs(trial)}
    certain = {name for name, each in found.items() if each.score >= CERTAIN}
    faults = [f for f in suspects(trial) if not certain or f.name in certain]
    for suspicion in _replayed(trial, faults, deadline):
        _merge(found, suspicion)
    if trial.unbounded:
        # Of NaN and infinity no share is explained: what fits in part says nothing.
        found = {k: each for k, each in found.items() if each.exact or each.score >= CERTAIN}
    ranked = sorted(found.values(), key=lambda each: -each.score)
    return tuple(d for d in ranked[:SHOWN] if d.score >= max(LEAST, WORTH * ranked[0].score))


def _merge(found: dict[str, Diagnosis], suspicion: Suspicion) -> None:
    """Add a replay to what the signs said: each makes the other more likely."""
    name, sign = suspicion.fault.name, found.get(suspicion.fault.name)
    if sign is not None and suspicion.score < LEAST:
        return
    score, words = suspicion.score * 0.98, suspicion.words
    if sign is not None:
        score = max(score, sign.score) + 0.02 * min(score, sign.score)
        words = f"{sign.evidence}; {words}"
    found[name] = Diagnosis(name, round(min(score, 1.0), 3), words, suspicion.exact)


def _replayed(trial: Trial, faults: list[Fault], deadline: float | None) -> list[Suspicion]:
    """Return the faults whose replay explains something of the failing case."""
    tried: list[Suspicion] = []
    here = grounds(trial)
    # visible= is one mask for all layers: unlike windows can't be told apart through it.
    weight = 3.0 if len(set(trial.info.windows)) <= 1 else 0.5
    for fault in faults:
        if _late(deadline):
            return tried
        match = _best(trial, fault, here)
        if match is not None:
            tried.append(Suspicion(fault, match, weight))
    best = max((each.here.score for each in tried), default=0.0)
    least = 0.6 * best if weight > 1 else 0.3 * best
    likely = [each for each in tried if each.here.score >= max(least, 0.05)]
    if len(likely) > 1:
        _part(trial, likely, deadline)
    return likely


def _best(trial: Trial, fault: Fault, where: tuple[Ground, ...]) -> Match | None:
    """Return the replay in the best right subject that the fault can be planted in."""
    return next((m for ground in where if (m := replay(trial, fault, ground)) is not None), None)


def _part(trial: Trial, likely: list[Suspicion], deadline: float | None) -> None:
    """Replay the likely ones on short cases; what is wrong there drops out where another fits."""
    for relation, case in short_cases(trial):
        short = run_trial(trial.candidate, trial.reference, relation, case)
        where = grounds(short)
        for suspicion in likely:
            if _late(deadline):
                return
            suspicion.apart.append(_best(short, suspicion.fault, where) or Match(0.0, 0.0))
        if any(s.apart[-1].exact and not s.apart[-1].silent for s in likely):
            likely = [s for s in likely if s.apart[-1].score > 0.5]


def short_cases(trial: Trial) -> Iterator[tuple[str, Case]]:
    """Yield relations and short texts, most telling first, and one that just fills a window."""
    n = min([5, *(w - 1 for w in trial.info.windows if w)])
    if n < 3 or trial.case.ids.shape[1] < n:
        return
    ids, seed = trial.case.ids[:2, :n], trial.case.seed
    if any(event.padded for event in trial.events) and "left_pad" in trial.info.capabilities:
        # One row alone: what goes wrong there is the padding, not its neighbours' lengths.
        meta = {"pads": [1], "pad_id": trial.info.first_id}
        ops = (Append(n - 2), Append(1), Append(1))
        yield "pad.left", Case(ids[:1], ops, seed=seed, meta=meta)
    if trial.info.capabilities >= {"cache", "chunk"}:
        for sizes in dict.fromkeys(((1, n - 1), (n - 2, 2), (n - 1, 1), (1,) * n, (n,))):
            yield "cache.partition", Case(ids, tuple(map(Append, sizes)), seed=seed)
    window = trial.info.windows[0] if len(set(trial.info.windows)) == 1 else None
    if window and window + 3 <= trial.case.ids.shape[1]:
        ones = (Append(1),) * (window + 3)
        yield "cache.partition", Case(trial.case.ids[:2, : window + 3], ones, seed=seed)


def _late(deadline: float | None) -> bool:
    return deadline is not None and budget.now() > deadline
