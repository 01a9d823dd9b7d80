"""The parts of the diagnosis, each by itself, on the hand-written torch decoder."""

from dataclasses import replace

import numpy as np
import pytest

from crosscheck.diagnosis.diagnose import diagnose
from crosscheck.diagnosis.probe import Right, first_difference
from crosscheck.diagnosis.reach import reach
from crosscheck.diagnosis.rebuilt import Rebuilt
from crosscheck.diagnosis.recorder import Recorder
from crosscheck.judging import run_case
from crosscheck.select import select
from tests.faulty.corpus import subject_of
from tests.faulty.rates import RTOL, failing
from tests.faulty.test_diagnosis import BY_NAME


@pytest.mark.parametrize(
    "name", ["cache.partition", "cache.rollback", "cache.fork_gather", "pad.left", "cache.capacity"]
)
def test_a_rebuilt_cache_keeps_the_relations(name):
    rebuilt = Rebuilt(subject_of("torch"))
    (relation,) = select([name])

    for case in list(relation.cases(rebuilt.info, 0))[:3]:
        assert run_case(relation, rebuilt, rebuilt, case, rtol=RTOL).verdict == "pass"


class Deaf:
    """Takes visible= and does not obey it."""

    def __init__(self, subject):
        self.subject, self.info = subject, subject.info

    def full(self, ids, *, positions=None, visible=None):
        return self.subject.full(ids, positions=positions)


def test_reach_tells_an_option_that_is_obeyed_from_one_that_is_only_taken():
    subject = subject_of("torch")

    assert reach(subject) == {"positions", "visible"}
    assert reach(Deaf(subject)) == {"positions"}


def test_the_probe_finds_one_changed_entry_and_nothing_in_a_right_cache():
    subject = subject_of("torch")
    recorder, ids = Recorder(subject), np.arange(12, dtype=np.int32).reshape(2, 6)
    state = recorder.init(2, 32)
    for at in range(0, 6, 2):
        _, state = recorder.step(state, ids[:, at : at + 2])

    clean = first_difference(recorder.events, Right(subject))
    recorder.events[1].kv[2].values_BSKH[1, 3] += 1e-3
    found = first_difference(recorder.events, Right(subject))

    assert clean is None
    assert (found.event, found.layer, found.row, found.position) == (1, 2, 1, 3)
    assert found.parts == "v"


class Bare:
    """A subject of which only init and step are known: no entries, positions, or masks to set."""

    def __init__(self, subject):
        self.subject = subject
        kept = subject.info.capabilities & {"cache", "chunk", "capacity"}
        self.info = replace(subject.info, capabilities=kept)

    def full(self, ids):
        return self.subject.full(ids)

    def init(self, batch, capacity=None):
        return self.subject.init(batch, capacity)

    def step(self, state, ids):
        return self.subject.step(state, ids)


def test_a_mask_fault_is_named_without_any_access_and_says_so():
    candidate, _, case = failing(BY_NAME["torch-mask.top_left-cache.partition-0-alone"])

    (first, *_) = diagnose(Bare(candidate), None, "cache.partition", case)

    assert first.fault == "mask.top_left"
    assert first.score < 0.9
    assert "measured from outside" in first.evidence


def test_a_right_subject_gets_no_diagnosis():
    subject = subject_of("torch")
    (relation,) = select(["cache.partition"])
    case = next(iter(relation.cases(subject.info, 0)))

    assert diagnose(subject, None, "cache.partition", case) == ()
    assert diagnose(Bare(subject), None, "cache.partition", case) == ()


def test_a_deadline_that_has_passed_leaves_what_the_signs_say():
    candidate, _, case = failing(BY_NAME["torch-append.stale-cache.partition-0-alone"])

    named = diagnose(candidate, None, "cache.partition", case, deadline=0.0)

    assert [each.fault for each in named][:1] == ["append.stale.values"]
