"""The full text of reports and errors: whoever reads one must be able to start fixing."""

import numpy as np
import pytest

from crosscheck import (
    CrosscheckError,
    Disagreement,
    Inconclusive,
    assert_agree,
    assert_greedy_agree,
    bitwise,
    bounded,
    close,
    compare,
    compare_greedy,
    ratio,
    semantic,
)


def staircase(rows=2, positions=7, tokens=97):
    """Return logits whose largest value is 8 and whose top-2 margin is exactly 0.5."""
    logits_BTV = np.zeros((rows, positions, tokens))
    logits_BTV[..., 1], logits_BTV[..., 2] = 8.0, 7.5
    return logits_BTV


def report_of(*args, **kwargs):
    with pytest.raises(Disagreement) as caught:
        assert_agree(*args, **kwargs)
    return str(caught.value)


def test_the_report_on_logits():
    left, right = staircase(), staircase()
    left[1, 6, 58] += 3.1e-2
    left[0, 4, 3] -= 1e-3

    text = report_of(
        left,
        right,
        semantic(),
        name="logits_BTV",
        names=("jaxkv/contiguous", "torchkv/paged"),
        repeat="crosscheck replay split-window-7.json",
    )

    assert text == (
        "DISAGREE logits_BTV: jaxkv/contiguous vs torchkv/paged, float64\n"
        "  worst   |a-b| 3.1e-02 at row 1, position 6, token 58; "
        "allowed 8.0e-09 (rule: semantic, float64, 1e-9 x max |logit| 8)\n"
        "  count   2 of 1,358 outside; non-finite: 0 left, 0 right\n"
        "  first   row 0, position 4, token 3\n"
        "  greedy  same tokens; smallest top-2 margin 0.5\n"
        "  repeat  crosscheck replay split-window-7.json"
    )


def test_the_report_on_a_forward_pass():
    right = {
        "k.0": np.ones((2, 7, 3, 5)),
        "layers.1.attn": np.ones((2, 7, 8)),
        "logits": staircase(),
    }
    left = {name: array.copy() for name, array in right.items()}
    left["layers.1.attn"][1, 4, 3] += 0.25
    left["logits"][1, 5, 2] = np.nan

    text = report_of(left, right, semantic(), name="forward", names=("mine", "oracle"))

    assert text == (
        "DISAGREE forward: mine vs oracle, float64\n"
        "  worst   |a-b| nan at logits: row 1, position 5, token 2; "
        "allowed 8.0e-09 (rule: semantic, float64, 1e-9 x max |logit| 8)\n"
        "  count   2 of 1,680 outside; non-finite: 1 left, 0 right\n"
        "  first   layer 1, attn: row 1, position 4, channel 3; layer 0, k agrees there\n"
        "  greedy  1 of 14 tokens differ; smallest top-2 margin 0.5"
    )


def test_the_report_on_a_cache_names_head_and_channel():
    right = np.zeros((2, 7, 3, 5))
    left = right.copy()
    left[1, 2, 0, 4] = 2.0

    assert report_of(left, right, bitwise(), name="k.1") == (
        "DISAGREE k.1: left vs right, float64\n"
        "  worst   |a-b| 2.0e+00 at row 1, position 2, head 0, channel 4; "
        "allowed 0.0e+00 (rule: bitwise, float64, every bit equal)\n"
        "  count   1 of 210 outside; non-finite: 0 left, 0 right\n"
        "  first   row 1, position 2, head 0, channel 4"
    )


def test_the_report_of_a_ratio_that_fails_by_its_rms():
    oracle = staircase()
    right = (oracle + 2.0**-20).astype(np.float32)
    left = (oracle + 2.0**-10).astype(np.float32)

    assert report_of(left, right, ratio(), name="logits", oracle=oracle) == (
        "DISAGREE logits: left vs right, float32\n"
        "  worst   rms(a-o) 9.8e-04 largest at row 0, position 0, token 0; "
        "allowed 3.8e-06 (rule: ratio, float32, 2 x rms(b-o) 9.5e-07 + 4u x max |logit| 8)\n"
        "  count   1,358 of 1,358 outside; non-finite: 0 left, 0 right\n"
        "  first   row 0, position 0, token 0\n"
        "  greedy  same tokens; smallest top-2 margin 0.5"
    )


def test_the_report_of_an_agreement():
    text = str(compare(staircase() + 2.0**-30, staircase(), bounded(0.25), name="logits"))

    assert text == (
        "AGREE logits: left vs right, float64\n"
        "  worst   |a-b| 9.3e-10 at row 0, position 0, token 0; "
        "allowed 2.5e-01 (rule: bounded, float64, eps 0.25)\n"
        "  count   0 of 1,358 outside; non-finite: 0 left, 0 right\n"
        "  greedy  same tokens; smallest top-2 margin 0.5"
    )


def test_the_report_on_greedy_ids_that_diverge():
    left, right = staircase(), staircase()
    left[1, 3, 9] = 9.0
    left[0, 5, 2] = 8.5

    with pytest.raises(Disagreement) as caught:
        assert_greedy_agree(left, right, bound=0.01, names=("jaxkv", "torchkv"))

    assert str(caught.value) == (
        "DISAGREE greedy ids: jaxkv vs torchkv\n"
        "  count   2 of 14 ids differ: 2 where the margin forces them, "
        "0 near ties (budget 5%); 14 forced\n"
        "  first   row 1, position 3: id 9 left, 1 right; margin 0.5\n"
        "  greedy  2 of 14 tokens differ; smallest top-2 margin 0.5"
    )


def test_the_report_on_greedy_ids_that_cannot_tell():
    left, right = staircase(), staircase()
    left[0, 5, 2] = 8.5

    with pytest.raises(Inconclusive) as caught:
        assert_greedy_agree(left, right, bound=0.5)

    assert str(caught.value) == (
        "INCONCLUSIVE greedy ids: left vs right\n"
        "  count   1 of 14 ids differ: 0 where the margin forces them, "
        "1 near ties (budget 5%); 0 forced\n"
        "  first   row 0, position 5: id 2 left, 1 right; margin 0.5\n"
        "  greedy  1 of 14 tokens differ; smallest top-2 margin 0.5"
    )


@pytest.mark.parametrize(
    ("tolerance", "text"),
    [
        (bitwise(), "bitwise, any, every bit equal"),
        (semantic(), "semantic, float64, 1e-9 x max |right|"),
        (close(rtol=1e-3, atol=1e-5), "close, any, 1e-5 + 0.001 x |right|"),
        (
            ratio(k=2, dtype="bfloat16"),
            "ratio, bfloat16, rms(a-o) <= 2 x rms(b-o) + 4u x max |oracle|, max the same with 3",
        ),
        (bounded(0.05), "bounded, any, eps 0.05"),
    ],
    ids=["bitwise", "semantic", "close", "ratio", "bounded"],
)
def test_a_tolerance_prints_level_dtype_and_rule(tolerance, text):
    assert str(tolerance) == text


F64, F32 = np.zeros((2, 7, 11)), np.zeros((2, 7, 11), np.float32)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: close(rtol=1e-3), "close: tolerance needs rtol and atol together; got rtol only."),
        (lambda: close(atol=1e-3), "close: tolerance needs rtol and atol together; got atol only."),
        (lambda: close(), "close: tolerance needs rtol and atol together; got neither."),
        (
            lambda: semantic(rtol=1.0),
            "semantic: rtol is 1.0, expected a number of at least 0, below 1.",
        ),
        (
            lambda: bounded(np.nan),
            "bounded: eps is nan, expected a number of at least 0, finite.",
        ),
        (lambda: ratio(k=0), "ratio: k is 0, expected above 0."),
        (lambda: ratio(k_max=0), "ratio: k_max is 0, expected above 0."),
        (
            lambda: ratio(dtype="int8"),
            "ratio: dtype is 'int8', expected one of float64, float32, float16, bfloat16.",
        ),
        (
            lambda: assert_agree(F64, F64[:1], semantic(), name="logits"),
            "assert_agree: left 'logits' has shape (2, 7, 11), right has shape (1, 7, 11). "
            "Shapes are never broadcast; align them first.",
        ),
        (
            lambda: compare(F64, F64.astype(int), bitwise(), name="logits"),
            "compare: left 'logits' is float64, right is int64, "
            "expected one kind: float, int or bool.",
        ),
        (
            lambda: compare({"k.0": F64}, {"k.0": F64, "v.0": F64}, semantic(), name="cache"),
            "compare: left lacks 'v.0', right has it; left has 'k.0'.",
        ),
        (
            lambda: compare({}, {}, semantic(), name="cache"),
            "compare: left and right hold no arrays, nothing was compared.",
        ),
        (
            lambda: compare(F64, F64, semantic(), name="x", valid=np.zeros((2, 7), bool)),
            "compare: 'x' has no elements (0 valid of 14), nothing was compared.",
        ),
        (
            lambda: compare(F64, F64, semantic(), name="x", valid=np.ones((7, 2), bool)),
            "compare: valid is bool (7, 2), expected bool (2, 7) (the first two axes of 'x').",
        ),
        (
            lambda: compare(F32, F64, semantic(), name="logits"),
            "compare: left 'logits' is float32, semantic compares float64. "
            "Run the model in float64, or judge float32 with ratio().",
        ),
        (
            lambda: compare(F64, F64, ratio(), name="logits"),
            "compare: ratio() needs oracle=, the reference in float64; got none.",
        ),
        (
            lambda: compare(F32, F64, ratio(), name="logits", oracle=F64),
            "compare: left 'logits' is float32, right is float64, ratio compares equal dtypes. "
            "Cast one, or say ratio(dtype=...).",
        ),
        (
            lambda: compare_greedy(F64, F64, bound=np.nan),
            "compare_greedy: bound holds nan, expected finite and at least 0.",
        ),
        (
            lambda: assert_greedy_agree(F64, F64, bound=0.0, waiver=1.0),
            "assert_greedy_agree: waiver is 1.0, expected at least 0 and below 1.",
        ),
    ],
)
def test_an_error_says_what_was_given_and_what_was_expected(call, text):
    with pytest.raises(CrosscheckError) as caught:
        call()

    assert str(caught.value) == text
