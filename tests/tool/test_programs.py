"""Programs of cache operations: the token model, running, drawing, shrinking, saving."""

import json

import numpy as np
import pytest

from crosscheck.errors import CrosscheckError
from crosscheck.judging import run_case
from crosscheck.programs import engine
from crosscheck.programs.case import (
    Append,
    AppendRagged,
    Case,
    Fork,
    Gather,
    Grow,
    Pad,
    PermutePages,
    Rollback,
    Speculate,
)
from crosscheck.programs.case_json import case_from_json, case_to_json
from crosscheck.programs.expect import tabulate
from crosscheck.programs.model import Rows, room
from crosscheck.programs.run import check_ops, run_program
from crosscheck.programs.shrink import shrink
from crosscheck.select import select
from tests.tool.programs_toy import Leaky, Odd
from tests.toys import FLAVORS, Toy

IDS = np.arange(1, 21, dtype=np.int32).reshape(2, 10)
OPS = {
    "append": Append(2),
    "ragged": AppendRagged((1, 2)),
    "rollback": Rollback(1),
    "rollback-rows": Rollback((0, 1)),
    "gather": Gather((1, 1, 0)),
    "fork": Fork(2),
    "pad": Pad("left", 2),
    "grow": Grow(30),
    "pages": PermutePages(3),
    "speculate": Speculate(2, 1),
}
(PROGRAM,) = select("cache.program")


def case(*ops, **fields):
    return Case(IDS, ops, **fields)


def fails_on(subject):
    return lambda program: run_case(PROGRAM, subject, subject, program).verdict == "fail"


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_a_case_survives_json(op):
    saved = Case(IDS, (Append(3), op), (3, 4), 12, 5, {"pad_id": 2, "sizes": (1, 2)})

    loaded = case_from_json(json.loads(json.dumps(case_to_json(saved))))

    assert loaded.ops == saved.ops
    assert loaded.ids.tolist() == IDS.tolist()
    assert (loaded.lengths, loaded.capacity, loaded.seed) == ((3, 4), 12, 5)
    assert loaded.meta == {"pad_id": 2, "sizes": [1, 2]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 9}, "schema_version is 9, expected 1"),
        ({"ops": [{"op": "Apend", "n": 1}]}, "expected one of Append"),
        ({"ops": [{"op": "Append", "k": 1}]}, "with its own fields"),
        ({"ids": [1, 2]}, r"expected integers \[B, T\]"),
        ({"extra": 1}, "keys are"),
    ],
    ids=["version", "operation", "field", "ids", "key"],
)
def test_a_file_that_is_no_case_is_refused(change, message):
    with pytest.raises(CrosscheckError, match=message):
        case_from_json(case_to_json(case(Append(1))) | change)


def test_the_model_reads_on_after_a_rollback():
    rows = Rows.start(case())

    for op in (Append(3), Rollback(1), Append(2), Gather((1, 1)), Append(1)):
        rows = rows.after(op)

    assert rows.texts == ((11, 14, 15, 6), (11, 14, 15, 16))


def test_the_model_keeps_what_a_speculation_accepts():
    rows = Rows.start(case()).after(Append(2)).after(Speculate(3, 1))

    assert rows.texts == ((1, 2, 3), (11, 12, 13))
    assert room(case(Append(2), Speculate(3, 1))) == 5


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ((Append(2), Rollback(3)), "expected at most the lengths"),
        ((Append(2), Gather((0, 2))), "expected rows 0 to 1"),
        ((AppendRagged((1,)),), "expected 2 counts"),
        ((Append(0),), "feeds nothing"),
        ((Append(1), PermutePages(1)), "needs paged"),
    ],
    ids=["rollback", "gather", "ragged", "empty", "capability"],
)
def test_a_program_without_meaning_is_refused(ops, message):
    with pytest.raises(CrosscheckError, match=message):
        run_program(Toy(), case(*ops))


def test_each_step_answers_for_what_each_row_holds():
    subject = Toy()

    trace = run_program(subject, case(Append(3), Gather((1, 0, 1)), Append(2), Rollback(4)))

    assert trace.starts == [0, 3]
    assert trace.lengths == (4, 4, 4)
    assert subject.length(trace.state).tolist() == [4, 4, 4]
    step = trace.steps[1]
    whole = subject.full(np.asarray(step.texts, np.int32))
    np.testing.assert_allclose(step.logits_BTV, whole[:, 3:], atol=1e-12)


def test_padding_is_fed_and_never_held():
    subject = Toy()

    trace = run_program(subject, case(Pad("left", 2), Append(3), Append(1), meta={"pad_id": 7}))

    assert trace.fed == 2 * (2 + 3) + 2
    assert trace.texts == ((1, 2, 3, 4), (11, 12, 13, 14))
    table = tabulate(trace)
    np.testing.assert_allclose(
        table.logits_MTV, subject.full(np.asarray(table.texts, np.int32)), atol=1e-12
    )


def test_a_state_is_never_used_again_after_an_exception():
    def refuse(logits, call):
        if call == 2:
            raise ValueError("the second step")
        return logits

    subject = Odd(change=refuse)

    trace = run_program(subject, case(Append(1), Append(1), Append(1), Append(1)))

    assert len(subject.calls) == 2
    assert trace.state is None
    assert trace.failed_at == 1
    with pytest.raises(ValueError, match="the second step"):
        trace.require()


@pytest.mark.parametrize("flavor", ["gqa", "ring", "paged", "cross"])
def test_generated_programs_answer_like_the_uncached_forward(flavor):
    subject = FLAVORS[flavor]
    seen = []

    def fails(program):
        seen.append(program)
        check_ops(program, subject.info.capabilities)
        return run_case(PROGRAM, subject, subject, program).verdict != "pass"

    found = engine.search(subject, subject.info, fails, programs=12, seed=3)

    assert found.failing is None
    assert found.programs >= 12
    assert len({type(op) for program in seen for op in program.ops}) >= 6


def test_a_leaking_rollback_is_found_and_shrunk_to_a_few_operations(looks):
    subject = Leaky()

    found = engine.search(subject, subject.info, fails_on(subject), programs=60, seed=0)
    assert found.failing is not None
    small = shrink(found.failing, fails_on(subject), deadline=looks() + 20, first_id=0)

    assert fails_on(subject)(small)
    assert len(small.ops) <= 3
    assert small.ids.shape[0] == 1
    assert sum(getattr(op, "n", 0) for op in small.ops) <= 4


def test_a_search_stops_when_the_time_is_up(looks):
    found = engine.search(
        Toy(), Toy().info, fails_on(Toy()), programs=10_000, deadline=looks() + 0.05
    )

    assert found.exhausted
    assert found.programs < 10_000


def test_shrinking_stops_at_its_deadline_with_a_case_that_fails(looks):
    big = case(*(Append(1),) * 8)

    assert shrink(big, lambda _: True, deadline=0.0) is big
    assert shrink(big, lambda _: True, deadline=looks() + 5).ids.size == 1


def test_generated_programs_respect_windows_and_positions():
    limited = engine.draw.Limits.of(FLAVORS["ring"], FLAVORS["ring"].info)

    assert limited.window == 5
    assert limited.lowest(4) == 0
    assert limited.lowest(12) == 9
