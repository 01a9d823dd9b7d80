"""`python -m bench quality`: what it judges, and when it says that it cannot judge."""

import argparse

import pytest

from bench import quality
from bench.quality import PROMPT, VARIANTS, Found, Judge, Variant, compare, ratios, rows_of, table
from jaxkv.spec.tiny import CONFIGS, open_subject

SMALL = (
    Variant("exact", "contiguous", {}),
    Variant("int8", "quantized", {"bits": 8}),
    Variant("sinks", "sinks", {"sinks": 2, "window": 6}),
)
SIZES = argparse.Namespace(tokens=400, pairs=10, seed=0, new=6)


class Letters:
    """A tokenizer of one id a letter."""

    def encode(self, text):
        return [ord(letter) % 97 for letter in text]


@pytest.fixture(scope="module")
def judged():
    """The table of random weights in both twins."""
    given, _ = open_subject("llama-mixed")
    judges = [Judge(twin, given, Letters(), SIZES) for twin in quality.TWINS]
    return table(judges, SMALL)


def found(*, loss=1.0, new=(1, 2, 3, 4), retrieval=90.0):
    return Found({("loss", "nats"): loss}, list(new), retrieval)


def test_each_policy_that_drops_has_dropped_before_the_first_greedy_token():
    dropping = [v for v in VARIANTS if v.layout.startswith("sinks")]

    for layout in ("sinks", "sinks_absolute"):
        kept = [sum(v.options.values()) for v in dropping if v.layout == layout]
        assert min(kept) < PROMPT


def test_both_twins_say_the_same_of_every_variant(judged):
    rows, agree = judged

    by = {(row.subject, row.metric): row for row in rows}
    assert agree
    for variant in SMALL:
        assert by[variant.name, "loss, twins apart"].median < 1e-4
        for metric in ("cache", "loss"):
            ours, theirs = (by[f"{variant.name}, {twin}", metric].median for twin in quality.TWINS)
            assert ours == pytest.approx(theirs, rel=1e-4)
    assert by["int8, jaxkv", "loss"].median != by["exact, jaxkv", "loss"].median


def test_where_exact_does_not_retrieve_nobody_is_judged(judged):
    """Random weights answer nothing: a number would say that sinks are as good as exact."""
    rows = [row for row in judged[0] if row.metric == "retrieval"]

    assert len(rows) == 2 * len(SMALL)
    for row in rows:
        assert row.median is None
        assert row.note.startswith("exact answers 0 %, less than 80 %")


@pytest.mark.parametrize(("exact", "number"), [(79.9, None), (80.0, 90.0)])
def test_retrieval_judges_from_80_percent_of_exact_on(exact, number):
    (row,) = (row for row in rows_of("int8", found(), exact) if row.metric == "retrieval")

    assert row.median == number


@pytest.mark.parametrize("loss", [1.02, float("nan")])
def test_twins_that_are_apart_do_not_agree(loss):
    class Fixed:
        exact_retrieval = 0.0

        def __init__(self, twin, loss):
            self.twin, self.loss = twin, loss

        def judged(self, variant):
            return found(loss=self.loss)

    rows, agree = table([Fixed("jaxkv", 1.0), Fixed("torchkv", loss)], SMALL[:1])

    assert not agree
    assert compare(found(), found(new=(1, 2, 9, 9)))[1] == 50
    assert sum(row.metric == "loss, twins apart" for row in rows) == 1


def test_payload_and_total_ratio_stand_apart():
    """4 against 32 bits are 8 times less payload, in the one layer of three without a window."""
    four = Variant("4", "quantized", {"bits": 4, "group_size": 6, "residual_length": 12})

    apart = ratios(CONFIGS["llama"], four, 480)

    assert apart["payload ratio", "x"] == 8
    assert 1 < apart["total ratio", "x"] < 8
    assert list(ratios(CONFIGS["llama"], SMALL[2], 480)) == [("total ratio", "x")]
    assert ratios(CONFIGS["llama"], SMALL[0], 480) == {}
