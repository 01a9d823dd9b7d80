"""A failing case becomes a short program that needs the model and numpy alone."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from crosscheck import bitwise, semantic
from crosscheck.programs.case import Case
from crosscheck.relations.registry import Relation, Sides
from crosscheck.reproduce import reproduce
from crosscheck.reproduce_driver import trimmed
from crosscheck.reproduce_origin import origin_of
from tests.tool.user_model import Decoder

FILE = Path(__file__).parent / "user_model.py"
IDS = np.random.default_rng(3).integers(0, 23, (2, 9)).astype(np.int32)


def relation_of(run, level=None):
    return Relation(
        "my.relation", frozenset(), level or semantic(), frozenset(), "holds", run, None
    )


def one_by_one(candidate, reference, case):
    state, parts = candidate.init(len(case.ids), 20), []
    for place in range(case.ids.shape[1]):
        logits, state = candidate.step(state, case.ids[:, place : place + 1])
        parts.append(logits)
    # Only the last token is compared, so that all steps before it belong to the program.
    left, right = parts[-1], reference.full(case.ids)[:, -1:]
    return Sides({"logits": left}, {"logits": right}, words=("one by one", "one forward"))


def swapped(candidate, reference, case):
    left = candidate.init(2, None)
    _, left = candidate.step(left, case.ids[:, :4])
    left, _ = candidate.step(candidate.gather(left, np.array([1, 0])), case.ids[:, 4:])
    right = reference.init(2, None)
    _, right = reference.step(right, case.ids[::-1, :4])
    right, _ = reference.step(right, case.ids[:, 4:])
    return Sides({"logits": left}, {"logits": right}, words=("gathered", "fed in that order"))


def overfull(candidate, reference, case):
    state = candidate.init(2, 4)
    logits, state = candidate.step(state, case.ids[:, :4])
    meta = {"raised": None}
    try:
        candidate.step(state, case.ids[:, 4:])
    except ValueError as error:
        meta = {"raised": str(error)}
    return Sides({"logits": logits}, {"logits": logits}, expect="refuse", meta=meta)


def program(fault, run, folder, level=None):
    decoder = Decoder(fault)
    origin = origin_of(f"{FILE}:restarted", decoder, folder)
    return reproduce(relation_of(run, level), decoder, decoder, Case(IDS), origins=[origin])


def exit_and_text(text, folder):
    file = folder / "repro_it.py"
    file.write_text(text)
    done = subprocess.run(
        [sys.executable, "-I", str(file)], capture_output=True, text=True, timeout=900, check=False
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("run", "fault", "factory"),
    [(one_by_one, "restarted", "restarted"), (swapped, "values-stay", "values_stay")],
    ids=["steps", "gather"],
)
def test_the_program_fails_on_the_faulty_model_and_passes_on_the_right_one(
    tmp_path, run, fault, factory
):
    text = program(fault, run, tmp_path)
    wrong = text.replace("restarted", factory)
    right = text.replace("restarted", "right")

    assert exit_and_text(wrong, tmp_path)[0] == 1
    assert exit_and_text(right, tmp_path)[0] == 0


def test_the_program_is_short_and_knows_nothing_of_crosscheck(tmp_path):
    text = program("restarted", one_by_one, tmp_path)

    imports = [line for line in text.splitlines() if line.startswith(("import", "from"))]
    assert len(text.splitlines()) < 40
    assert imports == [
        "import sys",
        "from pathlib import Path",
        "import numpy as np",
        "from user_model import restarted",
    ]


def test_steps_that_go_on_from_one_another_become_a_loop(tmp_path):
    text = program("restarted", one_by_one, tmp_path)

    assert text.count("candidate.step(") == 1
    assert "for ids in (" in text


def test_room_that_was_not_kept_must_be_refused_by_the_last_call(tmp_path):
    text = program("unbounded", overfull, tmp_path)
    wrong = text.replace("restarted()", "type(restarted())('unbounded')")
    right = text.replace("restarted()", "type(restarted())()")

    assert exit_and_text(wrong, tmp_path) == (1, "it answered, expected an error\n")
    assert exit_and_text(right, tmp_path)[0] == 0


def test_sides_that_are_computed_from_what_was_returned_give_no_program(tmp_path):
    def halved(candidate, reference, case):
        sides = one_by_one(candidate, reference, case)
        return Sides({"logits": sides.left["logits"] / 3}, sides.right)

    assert program("restarted", halved, tmp_path) is None


def test_sides_that_agree_give_no_program(tmp_path):
    assert program(None, one_by_one, tmp_path) is None


def test_not_a_number_fails_in_the_program_too(tmp_path):
    def poisoned(candidate, reference, case):
        candidate._inner.head[:] = np.nan
        return one_by_one(candidate, reference, case)

    text = program(None, poisoned, tmp_path)
    spoiled = text.replace(
        "candidate = restarted()", "candidate = restarted()\ncandidate.head[:] = np.nan"
    )

    assert exit_and_text(spoiled, tmp_path)[0] == 1


def test_two_calls_that_should_be_bitwise_equal_are_compared_exactly(tmp_path):
    def drifting(candidate, reference, case):
        left = candidate.full(case.ids)
        candidate._inner.head += 1e-13
        return Sides({"logits": left}, {"logits": candidate.full(case.ids)})

    text = program(None, drifting, tmp_path, bitwise())

    assert "error, allowed = np.abs(np.float64(left) - right).max(), 0.0\n" in text
    assert text.count("candidate.full(") == 2


DRIVER = """
import copy, numpy as np
class Drive:
    def __init__(self, model):
        self.model = model
    def call(self, ids, mask=None):
        if mask is not None:
            print("masked")
        with open("/dev/null"):
            return self.model.full(ids)
    def full(self, ids):
        return self.call(ids)
    def gather(self, state, rows):
        return state
""".strip().splitlines()


def test_a_driver_is_cut_down_to_what_the_program_calls():
    cut = trimmed(DRIVER, {"full"}, plain=True)

    assert cut is not None
    assert cut[0] == "import numpy as np"
    assert not any("gather" in line or "masked" in line for line in cut)
    assert trimmed(DRIVER, {"full", "gather"}, plain=False)[-1] == DRIVER[-1]


def test_a_driver_that_lacks_a_method_drives_nothing():
    assert trimmed(DRIVER, {"full", "fork"}, plain=True) is None


def test_a_bare_model_brings_its_driver_and_a_subject_none(tmp_path):
    decoder = Decoder("restarted")
    decoder.driver, decoder.bare = tuple(DRIVER), True
    origin = origin_of(f"{FILE}:restarted?layers=2&cache=static", decoder, tmp_path)
    decoder.bare = False

    assert origin.driver == tuple(DRIVER)
    assert origin.expression == "restarted(layers=2)"
    assert origin_of(f"{FILE}:restarted", decoder, tmp_path).driver == ()
