"""`python -m bench writes`: what it calls a rewritten buffer."""

import argparse

import pytest

from bench import writes
from bench.timing import Spread


@pytest.mark.parametrize(
    ("low", "code", "words"),
    [(800.0, 1, "REWRITES the buffer: 16.00"), (130.0, 0, "writes in place: 2.60")],
    ids=["rewritten", "beyond-the-processors-cache"],
)
def test_a_rewritten_buffer_is_flagged_and_one_that_misses_a_cache_is_not(
    low, code, words, monkeypatch, capsys
):
    """Of the smallest times: a median that was disturbed says nothing."""
    spreads = Spread(500.0, 50.0, 900.0), Spread(510.0, low, 9_000.0)
    names = [f"capacity {slots}" for slots in writes.CAPACITIES]
    monkeypatch.setattr(writes, "_writes", lambda slots: None)
    monkeypatch.setattr(
        writes, "interleaved", lambda measures, repeats: dict(zip(names, spreads, strict=True))
    )
    options = argparse.Namespace(quick=True, json=None, html=None)

    assert writes.main(options) == code
    assert words in capsys.readouterr().out
