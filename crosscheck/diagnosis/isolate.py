"""Run one operation alone on right inputs: does the error arise in it, or did it come in?

The failing program runs again; in its first wrong step the operation in doubt is fed what the
reference feeds it, and its answer is compared once more. Names are canonical: `layers.0.attn` is
what an operation answers, `layers.0.attn_norm` what it is fed.
Letters: B rows, T tokens of a call.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from crosscheck.diagnosis.probe import first_difference
from crosscheck.diagnosis.recorder import Event, Tap, Text
from crosscheck.diagnosis.trial import Trial, apart, run_trial
from crosscheck.judging import sentence
from crosscheck.place import possessive
from crosscheck.subjects.protocol import describe

Points = dict[str, NDArray]
# How hooks name what goes into a module, and how a decoder that is tapped in its formulas does.
INPUTS = {"attn.in": "attn_norm", "mlp.in": "mlp_norm", "resid.in": "in"}
FED_WITH = {"attn": "attn_norm", "mlp": "mlp_norm", "resid": "in", "norm": "norm.in"}


@dataclass(frozen=True)
class Verdict:
    """What an isolated run showed.

    Attributes:
        inherited: Whether the operation is right on right inputs; None where that can't be told.
        words: One sentence on how it was found out, or why not.
    """

    inherited: bool | None
    words: str


class Isolation:
    """The first wrong step of a trial, with its points as they are and as they should be."""

    def __init__(self, trial: Trial, at: int) -> None:
        self.trial, self.at = trial, at
        self.event: Event = trial.events[at]

    @cached_property
    def obstacle(self) -> str:
        """Why no operation can be run alone; "" where one can."""
        for who, side in (("subject", self.trial.candidate), ("reference", self.trial.reference)):
            if "capture" not in describe(side).capabilities:
                return f"the {who} captures no intermediate results"
        if not hasattr(self.trial.candidate, "capture_step"):
            return "the subject captures no step"
        try:
            return "" if self.seen and self.owed else "no point of the step was captured"
        except Exception as error:
            return f"the step could not be captured: {sentence(error)}"

    @cached_property
    def seen(self) -> Points:
        """What the candidate's points are in this step."""
        return self._run({})[0]

    @cached_property
    def owed(self) -> Points:
        """What the reference's points are for the same tokens, in one forward over each text."""
        real_BT = self._real_BT
        by_text: dict[Text, Points] = {(): {}}
        for text in self.event.texts:
            if text not in by_text:
                by_text[text] = self._owed_of(text)
        found: Points = {}
        for name, array in self.seen.items():
            if all(name in points for text, points in by_text.items() if text):
                found[name] = np.array(array)
                for b, (text, before) in enumerate(
                    zip(self.event.texts, self.event.before, strict=True)
                ):
                    if text:
                        found[name][b, real_BT[b]] = by_text[text][name][0, len(before) :]
        return found

    @property
    def first(self) -> str | None:
        """The first point of the forward pass that is not right; None where all are."""
        return next((name for name in self.seen if name in self.owed and self._differs(name)), None)

    def can_feed(self, operation: str) -> bool:
        """Return whether what the operation is fed was captured on both sides."""
        fed = fed_with(operation)
        return fed is not None and fed in self.seen and fed in self.owed

    def verdict(self, operation: str, *, layer: int | None = None) -> Verdict:
        """Return whether an operation is right once it is fed what is right.

        Args:
            operation: Its point, `layers.0.attn`.
            layer: Whose entries in the cache are looked at; None to look at what it answers.
        """
        if self.obstacle:
            return Verdict(None, self.obstacle)
        fed, what = fed_with(operation), possessive(operation)
        if fed is None or not self.can_feed(operation):
            return Verdict(None, f"what {what} is fed can't be captured")
        try:
            points, trial = self._run({fed: self.owed[fed]})
        except Exception as error:
            return Verdict(None, f"{what} could not be run alone: {sentence(error)}")
        if layer is not None:
            found = first_difference(trial.events[: self.at + 1], self.trial.right)
            wrong = found is not None and found.event == self.at and found.layer == layer
            return Verdict(not wrong, _told(f"what layer {layer} holds", wrong))
        if operation not in points or operation not in self.owed:
            return Verdict(None, f"{what} can't be captured")
        wrong = bool(apart(points[operation], self.owed[operation], self._real_BT).any())
        return Verdict(not wrong, _told(what, wrong))

    def _owed_of(self, text: Text) -> Points:
        ids, reference = np.array([text], dtype=np.int32), self.trial.reference
        return canonical(reference.capture(ids, with_inputs(reference.capture(ids))))

    @property
    def _real_BT(self) -> NDArray:
        real_BT = self.event.real_BT
        if real_BT is None:
            raise ValueError("no step")
        return real_BT

    def _differs(self, name: str) -> bool:
        return bool(apart(self.seen[name], self.owed[name], self._real_BT).any())

    def _run(self, given: Points) -> tuple[Points, Trial]:
        """Return the step's points, some of them given, and the trial that it was part of."""
        trial, ids = self.trial, np.array([max(self.event.texts, key=len)], dtype=np.int32)
        points = with_inputs(trial.candidate.capture(ids))
        own = {each: given[name] for each in points if (name := plain(each)) in given}
        tap = Tap(self.at, points, own)
        alone = None if trial.alone else trial.reference
        ran = run_trial(trial.candidate, alone, trial.relation.name, trial.case, tap=tap)
        if not tap.seen and ran.error is not None:
            raise ran.error
        return canonical(tap.seen), ran


def with_inputs(points: Iterable[str]) -> tuple[str, ...]:
    """Return names of points, and of inputs where the subject has no points for those."""
    names = [name for name in points if name != "logits"]
    if any(plain(name).endswith(".attn_norm") for name in names):
        return (*names, "logits")
    return (*(each for name in names for each in (f"{name}.in", name)), "logits")


def canonical(points: Mapping[str, NDArray]) -> Points:
    """Return the points under canonical names."""
    return {plain(name): np.asarray(array) for name, array in points.items() if array.ndim >= 2}


def plain(name: str) -> str:
    """Return the canonical name of a point: `layers.0.attn.in` is `layers.0.attn_norm`."""
    found = re.fullmatch(r"(layers\.\d+\.)(\w+\.in)", name)
    return f"{found[1]}{INPUTS[found[2]]}" if found and found[2] in INPUTS else name


def fed_with(operation: str) -> str | None:
    """Return the point that an operation is fed with."""
    if operation == "logits":
        return "norm"
    layer, _, part = operation.rpartition(".")
    return ".".join(filter(None, (layer, FED_WITH[part]))) if part in FED_WITH else None


def _told(what: str, wrong: bool) -> str:
    return f"on right inputs {what} is {'still wrong' if wrong else 'right'}"
