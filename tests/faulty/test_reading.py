"""What is told without keys and values, without windows, and of numbers that are none."""

import re

import numpy as np
import pytest

from crosscheck.check import check
from crosscheck.diagnosis.diagnose import diagnose
from crosscheck.page import render
from crosscheck.programs.case import Append, Case, Gather
from crosscheck.results import NAMED, Diagnosis
from crosscheck.subjects.functions import from_functions
from crosscheck.text import report_lines
from tests.tool.user_model import Decoder

VOCAB, WIDTH, WINDOW = 23, 8, 6
IDS_BT = np.random.default_rng(3).integers(1, VOCAB, (2, 14)).astype(np.int32)
draw = np.random.default_rng(0)
EMBED, HEAD = draw.normal(size=(VOCAB, WIDTH)), draw.normal(size=(WIDTH, VOCAB))
PLACE, QKV = draw.normal(size=(64, WIDTH)), 0.2 * draw.normal(size=(3, WIDTH, WIDTH))


def attend(q, k, v, visible):
    scores = np.where(visible, q @ k.swapaxes(-1, -2), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def ring(slots, *, window=WINDOW, visible=False, windows=()):
    """One layer over a ring, as functions; its author told of the window only in `windows`."""

    def forward(ids, visible=None):
        t = ids.shape[1]
        x, age = EMBED[ids] + PLACE[:t], np.subtract.outer(np.arange(t), np.arange(t))
        own = (age >= 0) & (age < window)
        return (x + attend(*(x @ w for w in QKV), own if visible is None else visible)) @ HEAD

    def init(batch, capacity):
        return np.zeros((2, batch, slots, WIDTH)), 0

    def step(state, ids):
        (held, n), parts = (state[0].copy(), state[1]), []
        for token in ids.T:
            x = EMBED[token][:, None] + PLACE[n]
            held[:, :, n % slots] = (x @ QKV[1])[:, 0], (x @ QKV[2])[:, 0]
            n += 1
            seen = held[:, :, : min(n, slots)]
            parts.append((x + attend(x @ QKV[0], *seen, True)) @ HEAD)
        return np.concatenate(parts, axis=1), (held, n)

    full = forward if visible else (lambda ids: forward(ids))
    return from_functions(full, init, step, persistent=True, windows=windows, name="ring")


class Lost(Decoder):
    """Gives NaN from the fourth token of a cache on."""

    def step(self, state, ids, positions=None):
        logits, after = super().step(state, ids, positions)
        place = state[0].shape[1] + np.arange(ids.shape[1])
        return np.where(place[:, None] > 2, np.nan, logits), after


@pytest.mark.parametrize("visible", [True, False], ids=["visible", "bare"])
@pytest.mark.parametrize(
    ("slots", "window", "fault"),
    [
        (WINDOW - 1, WINDOW, "window.off_by_one"),
        (WINDOW + 1, WINDOW, "window.off_by_one.wide"),
    ],
)
def test_a_ring_of_another_size_is_named_though_no_window_was_told(slots, window, fault, visible):
    subject = ring(slots, window=window, visible=visible)
    case = Case(IDS_BT, (Append(3), Append(1), Append(10)), seed=0)

    found = diagnose(subject, None, "cache.partition", case)

    assert found[0].fault == fault
    assert f"windows=({window},)" in found[0].evidence


def test_a_forward_without_the_window_of_its_ring_is_still_told_from_a_ring_too_small():
    subject = ring(WINDOW - 1, window=64, visible=True)
    case = Case(IDS_BT, (Append(1),) * 14, seed=0)

    assert diagnose(subject, None, "cache.partition", case)[0].fault == "window.cache_only"


def test_values_that_stay_where_they_were_are_named_without_seeing_them():
    ops = (Append(6), Append(1), Gather((1, 0)), Append(6), Append(1))
    case = Case(IDS_BT, ops, seed=0, meta={"first": 7})

    found = diagnose(Decoder("values-stay"), None, "cache.fork_gather", case)

    assert [each.fault for each in found] == ["gather.partial"]


def test_rows_that_do_not_stay_or_that_mix_anyway_are_not_called_partial():
    class Skips(Decoder):
        def gather(self, state, rows):
            return state

    class Leaks(Decoder):
        def step(self, state, ids, positions=None):
            logits, after = super().step(state, ids, positions)
            return logits + logits.sum(axis=0, keepdims=True), after

    ops = (Append(6), Append(1), Gather((1, 0)), Append(6), Append(1))
    case = Case(IDS_BT, ops, seed=0, meta={"first": 7})

    for subject in (Skips(), Leaks()):
        found = diagnose(subject, None, "cache.fork_gather", case)
        assert "gather.partial" not in {each.fault for each in found}


def test_numbers_that_are_not_finite_get_their_place_and_no_name():
    report = check(Lost(), relations="cache.full,cache.partition,batch.rows", dtypes=("float64",))

    lines = list(report_lines(report, report.verdict))

    assert [row.diagnosis for row in report.rows] == [()] * 3
    told = [
        line for line in lines if line.startswith("  meaning non-finite from row 0, position 3")
    ]
    assert len(told) == 3
    assert all(" position 3" in line for line in lines if line.startswith("  first"))
    assert lines[-1].startswith("FAIL: a divergence, non-finite numbers. 3 fail")


@pytest.mark.parametrize(
    ("score", "exact", "named"),
    [(NAMED + 0.01, 0, True), (NAMED, 0, False), (0.3, 1, True)],
    ids=["more", "half", "exact"],
)
def test_only_what_explains_more_than_half_or_fits_exactly_somewhere_is_a_name(score, exact, named):
    assert Diagnosis("a.b", score, "", exact).is_name == named


def test_a_fault_that_explains_little_is_the_nearest_and_no_name():
    class Odd(Decoder):
        def step(self, state, ids, positions=None):
            logits, after = super().step(state, ids, positions)
            logits = logits.copy()
            logits[..., state[0].shape[1] % VOCAB] *= -0.5
            return logits, after

    report = check(Odd(), relations="cache.partition", dtypes=("float64",))
    (row,) = report.rows
    last = list(report_lines(report, report.verdict))

    assert row.diagnosis
    assert not row.diagnosis[0].is_name
    assert any(line.startswith("  meaning no fault explains it; nearest: ") for line in last)
    assert re.match(r"FAIL: a divergence; no fault explains it; nearest: \S+ \(0\.\d\d\)", last[-1])
    assert "most likely" not in "\n".join(last)
    assert "no fault explains it; nearest</dt>" in render(report.to_json())
