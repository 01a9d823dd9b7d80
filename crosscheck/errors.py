"""Every error in one leaf file: misuse is a `CrosscheckError`, a failure an `AssertionError`."""

from typing import Any


class CrosscheckError(ValueError):
    """Base of all errors that say how crosscheck was called wrongly; nothing was compared."""


class ToleranceError(CrosscheckError):
    """A tolerance is incomplete, out of range, or does not fit the arrays that it is to judge."""


class ComparisonError(CrosscheckError):
    """Two sides cannot be compared: shapes, dtypes or names differ, or nothing is left."""


class DecoderError(CrosscheckError):
    """The reference decoder was given a config, weights or ids that it does not compute exactly."""


class Disagreement(AssertionError):
    """Two sides differ; the message is the report, `comparison` holds its numbers."""

    def __init__(self, report: str, comparison: Any) -> None:
        super().__init__(report)
        self.comparison = comparison


class Inconclusive(Disagreement):
    """Too many differences were near ties: the check could tell neither agreement nor a fault."""


class SubjectError(CrosscheckError):
    """A subject did not keep the protocol; the message says which call, and what came of it."""


class SubjectRaised(SubjectError):
    """The model behind a subject raised where it should have answered."""


class Refused(SubjectError):
    """A subject says that it cannot do this (past its room, past its window): not a fault."""


class WrongResult(SubjectError):
    """A subject returned another shape, another dtype, or not a pair of logits and state."""


class InputChanged(SubjectError):
    """A subject wrote into the arrays that it was given."""


class NotRepeatable(SubjectError):
    """A subject answered the same call twice with different bits."""


class TimedOut(SubjectError):
    """A subject did not answer within the time-out; its worker is left behind."""


class BudgetEnded(TimedOut):
    """The run's budget ended while a call was at work: it says nothing of the subject."""
