"""The oracle's questions: may it judge, is float64 float64, does another decoder agree."""

import numpy as np
import pytest

from crosscheck import decode
from crosscheck.calibrate import calibrate
from crosscheck.errors import CrosscheckError
from crosscheck.oracle import examine
from crosscheck.subjects.functions import from_functions
from tests.tool.programs_toy import OddFull
from tests.toys import FLAVORS, Toy
from tests.toys import model as toy_model


@pytest.fixture
def float32_norm(monkeypatch):
    """Make the toy's norms compute in float32, as released models do."""
    exact = toy_model.rms_norm

    def narrow(x_TD, gain_D):
        return exact(x_TD.astype(np.float32), np.ones_like(gain_D, np.float32)) * gain_D

    monkeypatch.setattr(toy_model, "rms_norm", narrow)


@pytest.fixture
def float32_softmax(monkeypatch):
    """Make the toy's attention compute in float32, whose sums depend on the keys' number."""
    exact = toy_model.attend

    def narrow(q_TNH, k_SKH, v_SKH, see_TS, *, scale):
        narrow = (x.astype(np.float32) for x in (q_TNH, k_SKH, v_SKH))
        return exact(*narrow, see_TS, scale=np.float32(scale)).astype(q_TNH.dtype)

    monkeypatch.setattr(toy_model, "attend", narrow)


def test_a_right_float64_subject_is_held_to_one_in_a_billion():
    oracle = examine(Toy())

    assert (oracle.dtype, oracle.rtol, oracle.wrong, oracle.shaken) == ("float64", 1e-9, "", "")
    assert oracle.floor < 1e-14
    assert oracle.status == "unchecked"


def test_a_float32_subject_is_cast_for_the_gate():
    assert examine(Toy(dtype="float32")).dtype == "float64"


def test_without_float64_the_gate_says_so_and_is_wider():
    oracle = examine(Toy(dtype="float32", without=frozenset({"f64"})))

    assert oracle.dtype == "float32"
    assert 1e-6 < oracle.rtol < 1e-4
    assert oracle.notes == ("the semantic gate runs in float32: left out by the test",)


@pytest.mark.usefixtures("float32_norm")
def test_a_float32_cast_inside_is_found_named_and_measured():
    oracle = examine(Toy())

    assert "capped at float32 by layers.0.attn (noise" in oracle.status
    assert 1e-9 < oracle.floor < 1e-6
    assert oracle.rtol == pytest.approx(30 * oracle.floor)


@pytest.mark.usefixtures("float32_softmax")
def test_a_float32_softmax_shows_without_any_probe():
    class Closed:
        info = Toy(without=frozenset({"capture"})).info
        full = staticmethod(Toy().full)

    oracle = examine(Closed())

    assert "capped at float32 (noise" in oracle.status
    assert oracle.rtol > 1e-7


def acausal(ids, logits, call):
    return logits + 1e-2 * np.flip(np.cumsum(np.flip(ids, 1), 1), 1)[..., None]


def drifting(ids, logits, call):
    return logits + 1e-12 * call


def infinite(ids, logits, call):
    logits[:, -1, 0] = np.nan
    return logits


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (acausal, "is not causal: later tokens move earlier logits"),
        (drifting, "is not deterministic"),
        (infinite, "not finite"),
    ],
    ids=["acausal", "drifting", "nan"],
)
def test_a_wrong_uncached_forward_must_not_judge(change, message):
    oracle = examine(OddFull(change=change))

    assert message in oracle.wrong
    assert oracle.status.startswith("refused: ")


def test_the_reference_judges_even_where_the_candidate_is_shaken():
    oracle = examine(OddFull(change=drifting), Toy())

    assert oracle.wrong == ""
    assert "is not deterministic" in oracle.shaken


def test_rows_that_mix_are_said_but_do_not_refuse_the_oracle():
    oracle = examine(OddFull(change=lambda ids, x, call: x + 1e-2 * ids[:, :1].sum()))

    assert oracle.wrong == ""
    assert "rows of one batch mix" in oracle.notes[0]


def test_other_vocabularies_are_misuse():
    other = from_functions(lambda ids: np.zeros((*ids.shape, 5)))

    with pytest.raises(CrosscheckError, match=r"has vocab_size 23, reference .* has 5"):
        examine(Toy(), other)


@pytest.fixture
def decoded(make_config, make_arrays):
    """Return a function: changed arrays -> a subject that is the decoder, with its inputs."""
    config = make_config(layers=2, attention={"rope": None})
    arrays = make_arrays(config)

    def make(told=None):
        return from_functions(
            lambda ids: decode(config, arrays, ids),
            decoder_inputs=lambda: (config, arrays | (told or {})),
            max_positions=16,
            name="decoded",
        )

    return make


def test_an_oracle_that_the_independent_decoder_confirms_is_checked(decoded):
    assert examine(decoded()).status.startswith("checked against the independent decoder (")


def test_an_oracle_that_the_independent_decoder_contradicts_says_so(decoded):
    oracle = examine(decoded({"norm.weight": np.full(20, 1.5)}))

    assert oracle.status.startswith("contradicted: the independent decoder differs by")
    assert oracle.decoder is not None


def test_what_the_independent_decoder_does_not_compute_is_unchecked(decoded):
    oracle = examine(decoded({"extra.weight": np.ones(3)}))

    assert oracle.status.startswith("unchecked (the independent decoder: ")
    assert oracle.decoder is None


def test_calibration_measures_rounding_of_both_runs():
    wide, narrow = calibrate(FLAVORS["windowed"])

    assert (wide.full_max, wide.dtype, narrow.dtype) == (0.0, "float64", "float32")
    assert 0 < wide.cached_max < 1e-13
    assert 1e-7 < narrow.full_max / narrow.scale < 1e-4
    assert narrow.ratio_rms is not None
    assert 0.3 < narrow.ratio_rms < 3


def test_calibration_needs_float64():
    with pytest.raises(CrosscheckError, match="declares no f64"):
        calibrate(Toy(dtype="float32", without=frozenset({"f64"})))
