"""Whatever a subject does wrong is one typed error with one sentence."""

import signal
import threading
import weakref

import numpy as np
import pytest

from crosscheck.errors import (
    BudgetEnded,
    InputChanged,
    NotRepeatable,
    Refused,
    SubjectRaised,
    TimedOut,
    WrongResult,
)
from crosscheck.subjects.functions import from_functions
from crosscheck.subjects.guard import assert_repeatable, guarded
from crosscheck.subjects.worker import Worker

VOCAB = 5
IDS = np.zeros((2, 3), np.int32)


def right(ids):
    return np.zeros((*ids.shape, VOCAB))


def subject(full=right, step=None, **given):
    known = {"name": "mine", "dtype": "float64", "vocab_size": VOCAB}
    init = None if step is None else (lambda batch: None)
    return guarded(from_functions(full, init, step, **known | given), timeout_seconds=5)


def raising(ids):
    raise IndexError("out of  range\n at 3")


def writing(ids):
    ids[0, 0] = 1
    return right(ids)


@pytest.mark.parametrize(
    ("full", "error", "message"),
    [
        pytest.param(
            raising,
            SubjectRaised,
            r"mine\.full\(2x3\): raised IndexError: out of range at 3\.",
            id="raises",
        ),
        pytest.param(
            lambda ids: right(ids)[:, :2],
            WrongResult,
            r"mine\.full\(2x3\): returned shape \[2, 2, 5\], expected \[2, 3, 5\] \[B, T, V\]\.",
            id="shape",
        ),
        pytest.param(
            lambda ids: right(ids).astype(int),
            WrongResult,
            r"mine\.full\(2x3\): returned dtype int64, expected a float dtype\.",
            id="dtype",
        ),
        pytest.param(
            writing,
            InputChanged,
            r"mine\.full\(2x3\): wrote into its argument \[2, 3\]\.",
            id="input",
        ),
    ],
)
def test_a_wrong_forward_is_one_sentence(full, error, message):
    with pytest.raises(error, match=f"^{message}$"):
        subject(full).full(IDS.copy())


def test_a_step_without_a_state_is_named():
    broken = subject(step=lambda state, ids: right(ids))

    with pytest.raises(ValueError, match=r"mine\.step\(2x3\)"):
        broken.step(broken.init(2, None), IDS)


def test_a_hang_returns_and_is_not_asked_again():
    answer = threading.Event()
    hung = guarded(subject(lambda ids: answer.wait(60) and right(ids)).subject, timeout_seconds=0.1)

    with pytest.raises(TimedOut, match=r"^mine\.full\(2x3\): no answer within 0\.1 seconds\.$"):
        hung.full(IDS)
    with pytest.raises(TimedOut, match=r"not called, mine\.full"):
        hung.full(IDS)

    answer.set()


def test_a_call_that_outlasts_the_budget_is_no_hang():
    answer = threading.Event()
    inner = subject(lambda ids: answer.wait(60) and right(ids)).subject
    cut = guarded(inner, timeout_seconds=60, left=lambda: 0.1)

    with pytest.raises(BudgetEnded, match=r"no answer within 0\.1 seconds that were left\.$"):
        cut.full(IDS)
    with pytest.raises(BudgetEnded, match=r"not called, mine\.full"):
        cut.full(IDS)
    with pytest.raises(TimedOut) as hang:
        guarded(inner, timeout_seconds=0.1, left=60).full(IDS)

    assert hang.type is TimedOut
    answer.set()


def test_an_interrupted_call_is_known_to_run_on():
    answer, worker = threading.Event(), Worker()
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)

    with pytest.raises(KeyboardInterrupt):
        worker.run(lambda: answer.wait(60), 60, "full")
    signal.signal(signal.SIGALRM, before)

    assert worker.is_left_behind
    answer.set()


def test_the_time_out_may_be_asked_for_at_each_call():
    left, answer = [60.0], threading.Event()
    slow = guarded(subject(lambda ids: answer.wait(60) and right(ids)).subject)
    slow.timeout_seconds = lambda: left[0]
    answer.set()
    slow.full(IDS)
    left[0] = 0.05
    answer.clear()

    with pytest.raises(TimedOut):
        slow.full(IDS)


def test_casts_are_guarded_too():
    cast = subject(cast=lambda dtype: from_functions(raising, dtype=dtype, vocab_size=VOCAB))

    with pytest.raises(SubjectRaised):
        cast.cast("float32").full(IDS)


def test_a_refusal_stays_a_refusal():
    def full(state, ids):
        raise Refused("full")

    refusing = subject(step=full)

    with pytest.raises(Refused, match=r"^full$"):
        refusing.step(refusing.init(1, 2), IDS)


def test_unknown_attributes_pass_through():
    inner = subject().subject
    inner.rollback_room = 7

    assert guarded(inner).rollback_room == 7


def test_a_random_answer_is_not_repeatable():
    rng = np.random.default_rng(0)
    random = subject(lambda ids: rng.standard_normal((*ids.shape, VOCAB)))

    with pytest.raises(NotRepeatable, match=r"mine\.full: the same texts twice differ by .* row 0"):
        assert_repeatable(random, IDS)
    assert_repeatable(subject(), IDS)


def test_no_answered_call_keeps_a_model_alive():
    """A large model's copies are gigabytes: one must be gone before the next is made."""

    class Model:
        def full(self, ids):
            return right(ids)

    for _ in range(20):
        model = Model()
        gone = weakref.ref(model)
        own = subject(model.full)
        own.full(IDS)
        del model, own
        assert gone() is None
