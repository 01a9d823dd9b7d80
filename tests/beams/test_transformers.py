"""Beam search against transformers' own, in float64: texts, scores, and when it stops."""

import importlib
from functools import cache

import pytest

from crosscheck import assert_agree, semantic
from tests.beams import peers
from tests.tiny import DEEP, TWINS

GRID = [(penalty, early) for penalty in (0.0, 1.0, 2.0, -1.0) for early in (False, True, "never")]
BEAMS = 3
theirs = cache(
    lambda name, penalty, early: peers.searched(
        name, beams=BEAMS, ends=peers.ENDS[name], length_penalty=penalty, early_stopping=early
    )
)


def cases(name: str) -> list[tuple[float, object]]:
    """Return every length penalty with every rule of stopping, dealt out among the models."""
    return GRID if DEEP else GRID[list(peers.NAMES).index(name) :: len(peers.NAMES)]


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("name", peers.NAMES)
def test_texts_and_scores_are_those_of_transformers(name, twin, model_of):
    """Batch 3, ragged, left-padded there; all beams returned; two end tokens."""
    search = importlib.import_module(f"{twin}.searching").beam_search
    for penalty, early in cases(name):
        found = search(
            model_of(name, twin),
            **peers.asked(name),
            beams=BEAMS,
            n_best=BEAMS,
            max_new_tokens=peers.NEW,
            length_penalty=penalty,
            early_stopping=early,
            end_ids=peers.ENDS[name],
        )

        texts, score_BJ = theirs(name, penalty, early)
        assert found.best == texts, (penalty, early)
        label = f"scores at {penalty}, {early}"
        # Sums of a few log-probabilities, each within 1e-10 of theirs.
        assert_agree(found.score_BM[None], score_BJ[None], semantic(rtol=1e-9), name=label)


@pytest.mark.parametrize("name", peers.NAMES)
def test_some_beams_end_early_and_others_at_the_budget(name):
    """Else the test above would say little."""
    ends = peers.ENDS[name]
    texts = [text for case in cases(name) for row in theirs(name, *case)[0] for text in row]

    has_ended = [text[-1] in ends for text in texts]
    assert any(has_ended)
    assert any(len(text) == peers.NEW for text in texts)
    assert any(len(text) < peers.NEW for text in texts)
