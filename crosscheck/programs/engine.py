"""Programs of cache operations, drawn by Hypothesis's state machine and run on a subject.

The machine holds nothing but the token model, so that every rule's arguments are legal for what the
rows hold. What it drew is one case, plain data: it runs when the machine stops, every step's logits
are judged, and a failure can be saved, shrunk and replayed without Hypothesis.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from crosscheck.programs import draw
from crosscheck.programs.case import Case, Op, Pad
from crosscheck.programs.model import Rows
from crosscheck.subjects.protocol import SubjectInfo

STEPS = 9


@dataclass(frozen=True)
class Search:
    """What a search over programs found.

    Attributes:
        programs: How many ran.
        failing: The first that failed; None if none did.
        exhausted: Whether the time was up before the programs were.
    """

    programs: int
    failing: Case | None
    exhausted: bool


class _StopError(Exception):
    """Ends a search: a program failed, or the time is up."""


class ProgramMachine(RuleBasedStateMachine):
    """Draws one program; `limits`, `info` and `done` are set by `machine`."""

    limits: draw.Limits
    info: SubjectInfo
    done: Callable[[Case], None]

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Op] = []
        self.held = 0

    @initialize(
        batch=st.sampled_from(draw.BATCHES), seed=st.integers(0, 2**20), pad=st.integers(0, 5)
    )
    def start(self, batch: int, seed: int, pad: int) -> None:
        """Draw the streams; they are longer than any row, so that they don't repeat in it."""
        info, width = self.info, 2 * self.limits.longest
        ids_BT = np.random.default_rng(seed).integers(
            info.first_id, info.vocab_size, (batch, width), dtype=np.int32
        )
        meta = {"pad_id": pad % info.vocab_size}
        self.case = Case(ids_BT, capacity=self.limits.longest, seed=seed, meta=meta)
        self.rows = Rows.start(self.case)

    def add(self, op: Op) -> None:
        """Add one operation to the program."""
        self.ops.append(op)
        self.rows = self.rows.after(op)
        self.held = max(self.held, max(self.rows.lengths) + getattr(op, "k", 0))

    def _options(self, kind: str) -> Any:
        match kind:
            case "append":
                return draw.appends(self.limits, self.rows)
            case "ragged":
                return draw.raggeds(self.limits, self.rows)
            case "rollback":
                return draw.rollbacks(self.limits, self.rows, self.held)
            case "gather":
                return draw.gathers(self.limits, self.rows)
            case "fork":
                return draw.forks(self.limits, self.rows)
            case "pad":
                return draw.pads(self.limits, self.rows)
            case "speculate":
                return draw.speculations(self.limits, self.rows, self.held)
            case "grow":
                return draw.grows(self.limits)
            case _:
                return draw.permutations(self.limits)

    def _kinds(self) -> list[str]:
        if self.rows.pad is not None:
            return ["append"]
        kinds = ("append", "rollback", "gather", "fork", "ragged", "speculate", "pad", "grow")
        open_kinds = [kind for kind in (*kinds, "pages") if self._options(kind) is not None]
        # Nothing is to be taken back, copied or grown before something was fed.
        first = {"append", "ragged", "pad"}
        return open_kinds if any(self.rows.lengths) else [k for k in open_kinds if k in first]

    @precondition(lambda self: self._options("append") is not None)
    @rule(data=st.data())
    def feed(self, data: st.DataObject) -> None:
        """Append to every row."""
        self.add(data.draw(self._options("append")))

    @precondition(lambda self: bool(self._kinds()))
    @rule(data=st.data())
    def other(self, data: st.DataObject) -> None:
        """Do anything that is legal now."""
        kind = data.draw(st.sampled_from(self._kinds()))
        self.add(data.draw(self._options(kind)))

    @precondition(lambda self: not self._kinds() and self._options("append") is None)
    @rule()
    def full(self) -> None:
        """Do nothing: the rows are full and nothing can be taken back."""

    def teardown(self) -> None:
        """Run the program that was drawn."""
        while self.ops and isinstance(self.ops[-1], Pad):
            self.ops.pop()
        if self.ops:
            ops = tuple(self.ops)
            type(self).done(Case(self.case.ids, ops, (), self.case.capacity, 0, self.case.meta))


def machine(subject: Any, info: SubjectInfo, done: Callable[[Case], None]) -> type[ProgramMachine]:
    """Return the machine that draws programs for a subject.

    Args:
        subject: Whose limits hold.
        info: What it says about itself.
        done: Called with each program; it raises where the program fails.
    """
    members = {
        "limits": draw.Limits.of(subject, info),
        "info": info,
        "done": staticmethod(done),
        "__doc__": ProgramMachine.__doc__,
    }
    return type("Programs", (ProgramMachine,), members)


def search(
    subject: Any,
    info: SubjectInfo,
    fails: Callable[[Case], bool],
    *,
    programs: int,
    deadline: float = float("inf"),
    seed: int = 0,
) -> Search:
    """Return what programs on a subject showed, until one fails, all ran, or the time is up.

    Args:
        subject: Whose limits hold.
        info: What it says about itself.
        fails: Runs one program and says whether it failed.
        programs: How many to run.
        deadline: On `time.monotonic`'s clock.
        seed: Of the drawing.
    """
    ran, late = 0, False
    found: list[Case] = []

    def done(case: Case) -> None:
        nonlocal ran, late
        late = time.monotonic() > deadline
        if found or late:
            raise _StopError
        ran += 1
        if fails(case):
            found.append(case)
            raise _StopError

    with contextlib.suppress(_StopError):
        run_state_machine_as_test(
            with_seed(seed)(machine(subject, info, done)), settings=_quiet(programs)
        )
    return Search(ran, found[0] if found else None, late)


def _quiet(programs: int) -> settings:
    """Only generation: shrinking is ours, so that it works on data and keeps the time."""
    every: Any = list(HealthCheck)
    return settings(
        max_examples=programs,
        stateful_step_count=STEPS,
        phases=(Phase.generate,),
        deadline=None,
        database=None,
        derandomize=False,
        print_blob=False,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        suppress_health_check=every,
    )
