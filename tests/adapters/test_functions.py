"""Plain callables as a subject."""

import numpy as np
import pytest

from crosscheck.errors import CrosscheckError
from crosscheck.subjects import describe
from crosscheck.subjects.functions import from_functions
from tests.adapters.programs import apart, fed, texts

VOCAB = 11
TABLE = np.random.default_rng(0).standard_normal((VOCAB, VOCAB))


def full(ids):
    return np.cumsum(TABLE[ids], axis=1)


def init(batch):
    return np.zeros((batch, 1, VOCAB))


def step(total, ids):
    logits = total + full(ids)
    return logits, logits[:, -1:]


def test_three_functions_make_a_cached_subject():
    subject = from_functions(full, init, step)

    logits, state = fed(subject, texts(subject), [3, 1, 10])

    assert describe(subject).capabilities == {"cache", "chunk"}
    assert subject.length(state).tolist() == [14, 14]
    assert apart(logits, subject.full(texts(subject))) < 1e-14


def test_dtype_and_vocabulary_are_read_off_one_call():
    info = from_functions(full, name="mine").info

    assert (info.name, info.dtype, info.vocab_size) == ("mine", "float64", VOCAB)


def test_further_callables_and_named_options_become_capabilities():
    def masked(ids, mask=None, count=None):
        return full(ids)

    subject = from_functions(
        masked,
        init,
        lambda state, ids, mask=None, count=None: step(state, ids),
        gather=lambda state, rows: state[rows],
        chunk=False,
        persistent=True,
    )

    assert subject.info.capabilities == {
        *("cache", "persistent", "gather", "left_pad", "right_pad", "count")
    }


def test_lengths_count_real_tokens():
    subject = from_functions(full, init, lambda state, ids, count=None: step(state, ids))

    _, state = subject.step(subject.init(2, None), texts(subject), count=np.array([3, 14]))

    assert subject.length(state).tolist() == [3, 14]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param(
            {"step": step},
            "from_functions: step is given without init. Give both.",
            id="half-a-cache",
        ),
        pytest.param(
            {"rollbak": True},
            r"from_functions: rollbak is True, expected a callable, a capability with True or "
            r"False, or one of .*",
            id="misspelled",
        ),
    ],
)
def test_what_means_nothing_is_refused(given, message):
    with pytest.raises(CrosscheckError, match=message):
        from_functions(full, **given)


def test_a_call_that_was_not_given_says_so():
    subject = from_functions(full, name="mine")

    with pytest.raises(CrosscheckError, match=r"mine: no rollback= was given to from_functions\."):
        subject.rollback(None, np.array([1]))
