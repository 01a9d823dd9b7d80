"""What `check` says of a failure: it loses none, and what could not be compared is said."""

import json
from dataclasses import replace

import numpy as np
import pytest

from crosscheck.check import check, check_case
from crosscheck.errors import CrosscheckError
from crosscheck.faults import FAULTS
from crosscheck.programs.case_json import case_from_json
from crosscheck.results_json import from_json
from crosscheck.subjects.protocol import Documented, describe
from tests.tool.checking import ONES, quick, row_of, sides
from tests.tool.programs_toy import OddFull
from tests.toys import Toy


def reset_positions(subject):
    return FAULTS["pos.reset"].plant(subject)


def test_a_planted_fault_fails_with_the_smallest_case_and_the_first_ones_curve():
    report = quick(reset_positions(Toy()), "cache.partition")

    row = row_of(report, "cache.partition")
    assert row.verdict == "fail"
    assert row.required_tolerance > 1e-3
    small = case_from_json(row.case)
    assert small.ids.shape[0] == 1
    assert small.ids.shape[1] <= 4
    assert row.curve["chunks"]
    # The curve shows how the error runs along the text, for which the smallest case is too short.
    assert len(row.curve["points"]["logits"][0]) > small.ids.shape[1]
    assert len(row.curve["margins"][0]) == len(row.curve["points"]["logits"][0])


def test_a_saved_case_fails_again_by_itself():
    subject = reset_positions(Toy())
    saved = row_of(quick(subject, "cache.partition"), "cache.partition").case

    again = check_case(subject, None, "cache.partition", case_from_json(saved))

    assert again.verdict == "fail"
    right = check_case(Toy(), None, "cache.partition", case_from_json(saved))
    assert right.verdict == "pass"


def test_what_the_package_documents_stands_beside_the_difference():
    class Said(Toy):
        @property
        def info(self):
            said = Documented("Positions start anew.", "README")
            return replace(super().info, documented={"cache.partition": said})

    row = row_of(quick(reset_positions(Said()), "cache.partition"), "cache.partition")

    assert (row.verdict, row.documented) == ("fail", ("Positions start anew.", "README"))


def test_a_port_with_the_same_fault_passes_alone_and_fails_against_the_reference():
    other = Toy(seed=1)

    report = quick(other, "cache.full", reference=Toy())

    assert row_of(report, "cache.full").verdict == "pass"
    assert row_of(report, "cache.full", axis="parity").verdict == "fail"


def test_the_candidate_is_cast_and_asked_once_for_both_of_its_roles(monkeypatch):
    cast, made = Toy.cast, []
    monkeypatch.setattr(Toy, "cast", lambda toy, dtype: made.append(dtype) or cast(toy, dtype))

    report = quick(Toy(dtype="float32"), "cache.full", reference=Toy(dtype="float32"))

    assert report.verdict == "pass"
    assert made == ["float64", "float64"]


def test_parity_is_blind_where_the_relation_is_blind_within_the_candidate(register):
    register("test.constant", sides(ONES, ONES))

    report = quick(Toy(), "test.constant", reference=Toy())

    assert row_of(report, "test.constant", axis="parity").verdict == "blind"


def test_a_forward_that_is_not_causal_is_named_as_the_wrong_side():
    def acausal(ids, logits, call):
        return logits + 1e-2 * np.flip(np.cumsum(np.flip(ids, 1), 1), 1)[..., None]

    report = quick(OddFull(change=acausal), "cache.full,cache.causal")

    assert report.oracle.startswith("refused: the uncached forward")
    assert row_of(report, "cache.full").verdict == "inconclusive"
    assert row_of(report, "cache.causal").verdict == "fail"
    assert report.verdict == "fail"


def test_worse_rounding_fails_in_the_working_dtype_alone():
    class Coarse(Toy):
        def step(self, state, ids, **options):
            logits, state = super().step(state, ids, **options)
            if self.dtype == "float32":
                logits = logits.astype(np.float16).astype(np.float32)
            return logits, state

    report = quick(Coarse(), "cache.full", dtypes=("float64", "float32"))

    assert row_of(report, "cache.full").verdict == "pass"
    coarse = row_of(report, "cache.full", "float32")
    assert coarse.verdict == "fail"
    assert "times the reference's own" in coarse.reason


def test_a_bad_cached_id_fails_where_the_margin_forces_it():
    class Flipped(Toy):
        def step(self, state, ids, **options):
            logits, state = super().step(state, ids, **options)
            return (np.roll(logits, 1, -1) if self.dtype == "float32" else logits), state

    report = quick(Flipped(), "cache.full", dtypes=("float64", "float32"))

    assert row_of(report, "greedy.ids", "float32").verdict == "fail"


def test_a_subject_that_runs_earlier_tokens_again_is_found():
    class Counting(Toy):
        forwarded_positions = 0

        def step(self, state, ids, **options):
            again = int(state.length_B.sum()) if self.page == 5 else 0
            type(self).forwarded_positions += ids.size + again
            return super().step(state, ids, **options)

    honest, wasteful = quick(Counting(), "cache.work"), quick(Counting(page=5), "cache.work")

    assert row_of(honest, "cache.work").verdict != "fail"
    assert row_of(wasteful, "cache.work").verdict == "fail"


class Plain(Toy):
    """As plain functions are: in one dtype."""

    @property
    def info(self):
        info = super().info
        return replace(info, capabilities=info.capabilities - {"f32"})


def test_a_dtype_that_the_subject_cannot_take_is_said_and_is_a_row():
    report = quick(Plain(), "cache.full", dtypes=("float32", "bfloat16"))

    assert report.verdict == "pass"
    why = "toy/gqa/contiguous is float64, and it declares no f32 (cast)"
    row = row_of(report, "rounding", "float32")
    assert (row.verdict, row.reason) == ("unsupported", why)
    assert f"float32 is not tested: {why}" in report.notes
    assert "alone" in row_of(report, "rounding", "bfloat16").reason
    assert not any(row.name == "rounding" for row in quick(Toy(), "cache.full").rows)


def test_a_vocabulary_without_an_id_is_refused_with_words():
    class Empty(Toy):
        @property
        def info(self):
            return replace(super().info, vocab_size=0)

    with pytest.raises(
        CrosscheckError, match=r"contiguous has vocab_size 0, expected at least 1\."
    ):
        quick(Empty(), "cache.full")


class Looped(Toy):
    """Holds its layers once a loop, as a decoder in loops does, and tells the windows of one."""

    @property
    def info(self):
        return replace(describe(super()), windows=(None,))


def test_a_cache_of_more_entries_than_layers_is_judged_by_the_windows_of_its_layers():
    report = quick(Looped(), "cache.rollback,cache.fork_gather,cache.write_set")

    assert [row.verdict for row in report.rows if row.verdict in ("error", "fail")] == []


def test_a_report_survives_strict_json(tmp_path):
    report = quick(reset_positions(Toy()), "cache.full,cache.partition,page.permute")
    path = tmp_path / "report.json"

    data = report.to_json(path)

    text = path.read_text()
    assert json.loads(text, parse_constant=pytest.fail) == data
    assert data["verdict"] == "fail"
    assert {"relation", "verdict", "worst", "required_tolerance", "diagnosis"} <= set(
        data["rows"][0]
    )
    assert from_json(data).to_json() == data
    with pytest.raises(CrosscheckError, match="schema_version is 0, expected 1"):
        from_json(data | {"schema_version": 0})


def test_progress_only_grows_and_ends_full():
    told = []

    quick(Toy(), "cache.full", progress=lambda *a: told.append(a))

    done = [d for _, d, _ in told]
    assert done == sorted(done)
    assert told[-1][1] == told[-1][2]


MISUSE = {
    "budget": ({"budget_seconds": 0.0}, "budget_seconds is 0.0, expected above 0"),
    "faults": ({"faults": "some"}, "faults is 'some', expected one of"),
    "relation": ({"relations": "cache.ful"}, "Did you mean 'cache.full'"),
    "no relation": ({"relations": " ,"}, "expected names, globs, 'core' or 'all'"),
}


@pytest.mark.parametrize(("options", "message"), MISUSE.values(), ids=MISUSE)
def test_misuse_is_refused_with_the_value(options, message):
    with pytest.raises(CrosscheckError, match=message):
        check(Toy(), **options)
