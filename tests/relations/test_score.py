"""A score is the mean nats of uncached logits; what a text is worth depends on no other text."""

import importlib

import numpy as np
import pytest

from jaxkv.spec.errors import CapacityError, RequestError
from tests.tiny import CELLS, ids_of, make_model

CELLS_ONCE = [cell for cell in CELLS if cell.layout == "contiguous"]
pytestmark = pytest.mark.parametrize("cell", CELLS_ONCE, ids=str)


def score(cell, texts):
    model = make_model(cell.twin, cell.model)
    return importlib.import_module(f"{cell.twin}.scoring").score(model, texts)


def test_a_score_is_the_mean_over_all_predictions_of_all_texts(cell):
    texts = [ids_of(cell, 1, batch=1, length=n)[0].tolist() for n in (17, 2, 9)]

    loss, predictions = score(cell, texts)

    nats = []
    for text in texts:
        logits = cell.subject.full(np.array([text]))[0, :-1]
        peak = logits.max(-1, keepdims=True)
        log_sum = peak[:, 0] + np.log(np.exp(logits - peak).sum(-1))
        nats += (log_sum - logits[np.arange(len(text) - 1), text[1:]]).tolist()
    assert predictions == 16 + 1 + 8
    assert loss == pytest.approx(np.mean(nats), rel=1e-12)


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        ([[1, 2], [3]], RequestError, r"texts_ids\[1\] has 1 token, expected at least 2"),
        ([], RequestError, "texts_ids is empty, expected at least 1 text"),
        ([[1, 999]], RequestError, "is 999, expected 0 to"),
        ([[1] * 600], CapacityError, "has 600 tokens, expected at most"),
    ],
    ids=["one token", "nothing", "outside", "too long"],
)
def test_texts_without_a_score_are_refused(cell, texts, error, message):
    with pytest.raises(error, match=message):
        score(cell, texts)
