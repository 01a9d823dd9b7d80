"""Planting asks a right subject for the same uncached answers again: they are computed once."""

import numpy as np
import pytest

from crosscheck import blindness
from crosscheck.check import check
from crosscheck.select import select
from crosscheck.subjects import remembered
from crosscheck.subjects.remembered import Remembered
from tests.tool.user_model import Decoder

IDS = np.array([[3, 1, 4], [1, 5, 9]])


class Counting(Decoder):
    """Counts the forwards without a cache."""

    def __init__(self, *given):
        super().__init__(*given)
        self.asked = 0

    def full(self, ids, positions=None):
        self.asked += 1
        return super().full(ids, positions)


def test_the_same_text_is_computed_once_and_another_anew():
    inner = Counting()
    subject, shifted = Remembered(inner), np.tile(np.arange(3) + 1, (2, 1))

    answers = [subject.full(IDS), subject.full(IDS.copy()), subject.full(IDS, positions=shifted)]
    subject.full(IDS.reshape(3, 2))

    assert inner.asked == 3
    np.testing.assert_array_equal(answers[0], answers[1])
    np.testing.assert_array_equal(answers[2], inner.full(IDS, shifted))
    assert np.abs(answers[2] - answers[0]).max() > 1e-3


def test_an_answer_is_the_callers_own():
    subject = Remembered(Counting())
    first = subject.full(IDS)
    first[:] = np.nan

    assert np.isfinite(subject.full(IDS)).all()


def test_the_oldest_answers_are_forgotten_when_the_room_is_full(monkeypatch):
    inner = Counting()
    subject, size = Remembered(inner), inner.full(IDS).nbytes
    monkeypatch.setattr(remembered, "ROOM_BYTES", 2 * size)

    for ids in (IDS, IDS + 1, IDS + 2, IDS + 2, IDS):
        subject.full(ids)

    assert inner.asked == 1 + 4


@pytest.mark.parametrize("name", ["mode.stale", "cache.work", "cache.full"])
def test_what_asks_for_a_new_computation_gets_one(name):
    (relation,) = select(name)
    oracle = type("Oracle", (), {"candidate": Counting()})

    right = blindness.right_for(type("Job", (), {"relation": relation, "oracle": oracle}))

    assert isinstance(right, Remembered) == (name == "cache.full")


def test_the_same_faults_are_killed_with_fewer_forwards(monkeypatch):
    def told(subject):
        options = {"relations": "cache.partition,cache.prefix", "dtypes": ("float64",)}
        report = check(subject, budget_seconds=60.0, **options)
        return {row.name: sorted(row.kills) for row in report.rows}, subject.asked

    kills, asked = told(Counting())
    monkeypatch.setattr(blindness, "Remembered", lambda subject: subject)
    without, more = told(Counting())

    assert kills == without
    assert asked < more
