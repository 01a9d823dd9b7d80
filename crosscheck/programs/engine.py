"""Programs of cache operations, drawn by Hypothesis's state machine and run on a subject.

The machine holds nothing but the token model, so that every rule's arguments are legal for what the
rows hold. What it drew is one case, plain data: it runs when the machine stops, every step's logits
are judged, and a failure can be saved, shrunk and replayed without Hypothesis.
"""

import contextlib
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

from crosscheck import budget
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
        self.legal: dict[str, st.SearchStrategy[Any]] = {}

    @initialize(data=st.data(), seed=st.integers(0, 2**20), pad=st.integers(0, 5))
    def start(self, data: st.DataObject, seed: int, pad: int) -> None:
        """Draw the streams; they are longer than any row, so that they don't repeat in it."""
        info, width = self.info, 2 * self.limits.longest
        batch = data.draw(st.sampled_from(self.limits.batches))
        ids_BT = np.random.default_rng(seed).integers(
            info.first_id, info.vocab_size, (batch, width), dtype=np.int32
        )
        meta = {"pad_id": pad % info.vocab_size}
        self.case = Case(ids_BT, capacity=self.limits.room, seed=seed, meta=meta)
        self.rows = Rows.start(self.case)
        self.legal = draw.legal(self.limits, self.rows, 0)

    def add(self, op: Op) -> None:
        """Add one operation to the program."""
        self.ops.append(op)
        self.rows = self.rows.after(op)
        self.held = max(self.held, max(self.rows.lengths) + getattr(op, "k", 0))
        self.legal = draw.legal(self.limits, self.rows, self.held)

    @precondition(lambda self: "append" in self.legal)
    @rule(data=st.data())
    def feed(self, data: st.DataObject) -> None:
        """Append to every row."""
        self.add(data.draw(self.legal["append"]))

    @precondition(lambda self: bool(self.legal))
    @rule(data=st.data())
    def other(self, data: st.DataObject) -> None:
        """Do anything that is legal now."""
        kind = data.draw(st.sampled_from(sorted(self.legal)))
        self.add(data.draw(self.legal[kind]))

    @precondition(lambda self: not self.legal)
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
        deadline: As `budget.now` gives it.
        seed: Of the drawing.
    """
    ran, late = 0, False
    found: list[Case] = []

    def done(case: Case) -> None:
        nonlocal ran, late
        late = budget.now() > deadline
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
