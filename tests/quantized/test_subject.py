"""What crosscheck sees of a layout that changes results: bounds, planted faults, and reasons."""

from functools import cache
from itertools import product

import numpy as np
import pytest

from crosscheck.judging import run_case
from crosscheck.oracle import examine
from crosscheck.relations.registry import why_not
from crosscheck.select import select
from crosscheck.selftest import selftest
from crosscheck.subjects.protocol import describe
from crosscheck.subjects.sources import load_subject
from tests.quantized.twins import to_numpy
from tests.tiny import DEEP, TWINS

KIVI = "layout=quantized&bits=4&group_size=6&residual_length=6&slack=4"
FORMS = {
    "4": KIVI,
    "int8": "layout=quantized&bits=8",
    "sinks": "layout=sinks&sinks=2&window=6",
    "2": "layout=quantized&bits=2&group_size=4&residual_length=4&slack=4",
    "fp8": "layout=quantized&bits=fp8",
    "absolute": "layout=sinks_absolute&sinks=2&window=6",
}
# Each relation that exact layouts pass among themselves, of some form; when deep these on all of
# their cases, and every relation on two cases of every form: what a case adds is no form's own.
PAIRS = [
    *product(("4", "int8", "sinks"), ("cache.full", "cache.partition", "cache.fork_gather")),
    *product(("4", "int8"), ("pos.explicit", "cache.prefix")),
    ("4", "cache.rollback"),
    ("2", "cache.partition"),
    ("2", "batch.rows"),
    ("2", "pad.left"),
    ("fp8", "cache.partition"),
    ("fp8", "cache.rollback"),
    ("fp8", "cache.capacity"),
    ("absolute", "cache.partition"),
    ("absolute", "ragged.continue"),
    ("absolute", "cache.causal"),
    ("sinks", "gqa.mha"),
]
RELATIONS = tuple(relation.name for relation in select("all"))
each = pytest.mark.parametrize("twin", TWINS)


@cache
def subject_of(twin, query):
    # No groups of whole bytes with 2 bits divide llama's head width 18.
    model = "reference" if "bits=2" in query else "llama"
    return load_subject(f"{twin}.subject:{model}?{query}")


@cache
def oracle_of(twin, form):
    return examine(subject_of(twin, FORMS[form]))


@pytest.mark.parametrize(
    ("twin", "form"), [*product(TWINS, ("4", "int8")), ("torchkv", "2")], ids="-".join
)
def test_a_planted_fault_of_codes_is_killed(twin, form):
    """In the twin's own codes: what is written back is quantized by it again.

    Killed is what is ten times off. Half a step of 4 bits is too wide a bound to tell a wrong axis;
    that every cut of a text gives one function tells it.
    """
    subject = subject_of(twin, FORMS[form])

    matrix = selftest(subject, relations="quant.bound", faults="quant.*", depth="first")

    assert (matrix.survivors, matrix.notes) == ((), ())
    assert matrix.planted == matrix.killed == 2


def test_what_a_bound_would_let_pass_is_killed_where_the_cut_of_a_text_changes_nothing():
    """Faults of position, mask and storage, none of them ten times the estimated bound."""
    subject = subject_of("torchkv", FORMS["4"])
    faults = "pos.*,mask.*,append.*,head.*,rollback.*,gather.*,window.off_by_one"

    matrix = selftest(subject, relations="core", faults=faults, depth="first")

    assert (matrix.survivors, matrix.notes) == ((), ())
    assert matrix.killed == matrix.planted > 25


@each
def test_in_the_published_order_it_owes_no_more_than_its_bound(twin):
    info = describe(subject_of(twin, f"{KIVI}&order=kivi"))

    assert "quant" in info.capabilities
    assert "quant_invariant" not in info.capabilities
    assert "earlier ones from codes" in info.absent["quant_invariant"]


@each
@pytest.mark.parametrize(("form", "name"), list(product(FORMS, RELATIONS)) if DEEP else PAIRS)
def test_a_right_cache_raises_no_alarm(twin, form, name):
    subject, (relation,) = subject_of(twin, FORMS[form]), select(name)
    if (reason := why_not(relation, describe(subject))) is not None:
        assert (form, name) not in PAIRS, reason
        return
    oracle = oracle_of(twin, form)
    right = oracle.candidate
    is_all = DEEP and (form, name) in PAIRS
    cases = list(relation.cases(describe(right), 0))[: None if is_all else 2]

    outcomes = [run_case(relation, right, right, case, rtol=oracle.rtol) for case in cases]

    assert outcomes[0].verdict == "pass", outcomes[0].reason
    for outcome in outcomes:
        # A rollback past the slack is refused, as it should be.
        past = outcome.verdict == "refused" and "Make the cache with slack" in outcome.reason
        assert outcome.verdict == "pass" or past, outcome.reason


@each
def test_the_published_order_offers_neither_chunks_nor_rollback_and_says_why(twin):
    info = describe(subject_of(twin, f"{KIVI}&order=kivi"))

    reasons = [why_not(relation, info) for relation in select("all")]

    chunked = [why_not(r, info) for r in select("all") if "chunk" in r.needs]
    assert {"chunk", "rollback"} & info.capabilities == set()
    assert any(reason and "depends on how it was cut" in reason for reason in chunked)
    assert any(reason and "another cut of the text" in reason for reason in reasons)


@each
def test_sinks_are_offered_as_no_form_of_full_attention(twin):
    info = describe(subject_of(twin, FORMS["sinks"]))

    assert {"layouts", "window", "positions", "visible", "rope"} & info.capabilities == set()
    assert not any(name.startswith("layout_") for name in info.variants)
    assert "it is no full attention" in info.absent["layouts"]


@each
@pytest.mark.parametrize("form", ["4", "int8"])
def test_unchanged_keys_and_values_written_back_change_no_code(twin, form):
    subject = subject_of(twin, FORMS[form])
    ids = np.random.default_rng(0).integers(0, 97, (2, 20))
    _, state = subject.step(subject.init(2, 32), ids)
    kv = subject.kv(state, 0)

    again = subject.with_kv(subject.fork(state), 0, kv)

    before, after = (_codes(held.sites[0]) for held in (state, again))
    assert any(code.any() for code in before.values())
    for name, code in before.items():
        np.testing.assert_array_equal(after[name], code, err_msg=name)


def _codes(site):
    """Return the arrays of codes by name."""
    return {name: to_numpy(x) for name, x in vars(site).items() if "_code_" in name}
