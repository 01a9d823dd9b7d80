"""What a beam search owes on every layout: the texts and scores of a search without any cache."""

import importlib
import itertools
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from crosscheck import assert_agree, semantic
from tests.beams.by_hand import beam_search as by_hand
from tests.beams.by_hand import beam_search_in_steps, score
from tests.tiny import DEEP, TWINS, make_model

# Of as many tokens as beams of both rows: a reorder along another axis would find its places.
PROMPTS = [[3, 1, 4, 1, 5, 9], [26, 53, 58, 9, 7, 93]]
RAGGED = [[3, 1, 4, 1, 5, 9], [26, 53]]
BEAMS, NEW, ENDS = 3, 8, (45, 80)
LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "paged": {"page_size": 4},
    "window": {},
    "quantized": {"bits": 4, "group_size": 6, "residual_length": 6},
    "sinks": {"sinks": 2, "window": 6},
}
CASES = [
    (twin, layout)
    for twin in TWINS
    for layout in LAYOUTS
    if twin == "torchkv" or DEEP or layout in ("contiguous", "paged", "window")
]
twins = pytest.mark.parametrize("twin", TWINS)


def search(twin: str, prompts: Any = None, *, model: str = "llama", **options: Any) -> Any:
    """Return what the twin's search finds; by default on the tests' one shape."""
    given = {"beams": BEAMS, "n_best": BEAMS, "max_new_tokens": NEW, "end_ids": ENDS} | options
    given["n_best"] = min(given["n_best"], given["beams"])
    return importlib.import_module(f"{twin}.searching").beam_search(
        make_model(twin, model), PROMPTS if prompts is None else prompts, **given
    )


def asked(layout: str) -> dict[str, Any]:
    """Return the layout as the search takes it."""
    own = dict(LAYOUTS[layout])
    page_size = own.pop("page_size", None)
    return {"layout": layout, "page_size": page_size, "layout_options": own}


def next_logits(prompt: list[int], layout: str = "uncached", model: str = "llama"):
    """Return a function: new tokens of some texts -> the logits after each, whole texts anew."""
    from torchkv import caches
    from torchkv.model import forward, params_of

    decoder = make_model("torchkv", model)
    config, options = decoder.config, dict(LAYOUTS.get(layout, {}))

    def logits(texts: list[list[int]]) -> np.ndarray:
        ids = torch.tensor([prompt + text for text in texts], dtype=torch.int32)
        rows, width = ids.shape
        sizes = {"batch": rows, "capacity": 24, "layout": layout}
        kept = caches.init(config, **sizes, dtype=torch.float64, **options)
        count_B = torch.full((rows,), width, dtype=torch.int32)
        given = params_of(decoder), ids, None if layout == "uncached" else kept, count_B
        return forward(*given, config=config, last_only=True, fresh=True)[0][:, 0].numpy()

    return logits


@cache
def right(row: int, layout: str, penalty: float = 1.0, early: Any = False) -> list:
    """Return what the search by hand finds for one of the prompts."""
    return by_hand(
        next_logits(PROMPTS[row], layout),
        beams=BEAMS,
        budget=NEW,
        ends=ENDS,
        penalty=penalty,
        early=early,
    )


def assert_found(found: Any, rows: list[list], what: str = "scores") -> None:
    """Compare texts, scores and how many have ended with those by hand, row by row."""
    assert found.best == [[text for _, text in row] for row in rows]
    scores = np.array([[score for score, _ in row] for row in rows])
    assert_agree(found.score_BM[None], scores[None], semantic(rtol=1e-10), name=what)


@pytest.mark.parametrize(("twin", "layout"), CASES)
def test_every_layout_finds_what_a_search_without_cache_finds(twin, layout):
    """KV-47: batch 2, 3 beams, 6 tokens. A layout that changes results: with its own results."""
    found = search(twin, **asked(layout))

    anew = layout if layout in ("quantized", "sinks") else "uncached"
    assert_found(found, [right(row, anew) for row in range(2)])
    ended = [sum(text[-1] in ENDS for _, text in right(row, anew)) for row in range(2)]
    assert found.ended_B.tolist() == ended


@pytest.mark.parametrize("early", [False, True, "never"])
@pytest.mark.parametrize("penalty", [0.0, 2.0, -1.0])
@twins
def test_a_score_is_the_sum_over_the_length_to_the_power_of_the_penalty(twin, penalty, early):
    """KV-48: the end token counts, the prompt does not; and when a row may stop."""
    found = search(twin, length_penalty=penalty, early_stopping=early)

    assert_found(found, [right(row, "uncached", penalty, early) for row in range(2)])


# Every third token ends a text, so that rows have found enough long before their budget.
OFTEN = tuple(range(1, 97, 3))


@cache
def in_steps(row: int, penalty: float, early: Any) -> tuple[list, int]:
    return beam_search_in_steps(
        next_logits(PROMPTS[row]),
        beams=BEAMS,
        budget=NEW,
        ends=OFTEN,
        penalty=penalty,
        early=early,
    )


@pytest.mark.parametrize("early", [False, True, "never"])
@pytest.mark.parametrize("penalty", [0.0, 2.0, -3.0])
@twins
def test_a_row_stops_at_the_step_at_which_the_rule_says(twin, penalty, early):
    """Neither too early nor too late, which texts and scores alone would not show."""
    found = search(twin, end_ids=OFTEN, length_penalty=penalty, early_stopping=early)

    rows = [in_steps(row, penalty, early) for row in range(2)]
    assert_found(found, [texts for texts, _ in rows])
    forwarded = [len(PROMPTS[b]) + BEAMS * (steps - 1) for b, (_, steps) in enumerate(rows)]
    assert found.forwarded_positions_B.tolist() == forwarded


def test_the_rules_stop_at_unlike_steps():
    """Else the test above could not tell them apart."""
    steps = {
        (penalty, early): [in_steps(row, penalty, early)[1] for row in range(2)]
        for penalty in (2.0, -3.0)
        for early in (False, True, "never")
    }

    assert len({*map(tuple, steps.values())}) >= 3
    assert steps[-3.0, "never"] == steps[-3.0, False] != steps[-3.0, True]
    assert max(steps[-3.0, False]) < NEW


@twins
def test_settings_cost_no_compilation(twin):
    first = search(twin, length_penalty=0.5).compilations
    others = [
        search(twin, length_penalty=x, early_stopping=early, end_ids=ends, max_new_tokens=new)
        for x, early, ends, new in ((0.7, True, 5, 4), (-2.0, "never", None, [6, 3]))
    ]

    assert first in ((None,) if twin == "torchkv" else (0, 1))
    assert {each.compilations for each in others} == ({None} if twin == "torchkv" else {0})


@pytest.mark.parametrize("penalty", [0.0, 1.0, 3.0])
@twins
def test_as_many_beams_as_tokens_find_the_best_of_all_texts(twin, penalty):
    """KV-48: with two tokens every first one stays, so nothing is lost: full enumeration."""
    ends, prompt = (7,), [3, 1, 4]
    found = search(
        twin,
        [prompt],
        model="reference",
        beams=18,
        n_best=18,
        max_new_tokens=2,
        end_ids=ends,
        length_penalty=penalty,
        early_stopping="never",
    )

    of_next = next_logits(prompt, model="reference")
    every = [(first,) for first in ends] + [
        pair for pair in itertools.product(range(19), repeat=2) if pair[0] not in ends
    ]
    first_V = np.log(_softmax(of_next([[]])))[0]
    second_VV = np.log(_softmax(of_next([[token] for token in range(19)])))
    sums = {text: first_V[text[0]] + (second_VV[text] if len(text) == 2 else 0.0) for text in every}
    best = sorted(((score(x, len(t), penalty), [*t]) for t, x in sums.items()), reverse=True)
    assert_found(found, [best[:18]])


@twins
def test_one_beam_finds_the_greedy_text(twin):
    generate = importlib.import_module(f"{twin}.generation").generate
    for ends in ((), ENDS):
        greedy = generate(
            make_model(twin, "llama"), RAGGED, max_new_tokens=NEW, end_ids=ends, logprobs=True
        )
        found = search(twin, RAGGED, beams=1, end_ids=ends, early_stopping=True)

        assert found.tokens == greedy.tokens
        assert [row[0] for row in found.best] == greedy.new_tokens
        means = np.array([[x.mean(dtype=float)] for x in greedy.logprobs])
        # They are float32.
        assert_agree(found.score_BM[None], means[None], semantic(rtol=1e-5), name="scores")
        assert found.forwarded_positions_B.tolist() == greedy.forwarded_positions_B.tolist()


@twins
def test_a_row_finds_what_it_finds_beside_others_and_each_by_its_own_budget(twin):
    """As `batch.rows`: prompts of unlike lengths, a row that is done before the others."""
    both = search(twin, RAGGED, max_new_tokens=[NEW, 3])
    turned = search(twin, RAGGED[::-1], max_new_tokens=[3, NEW])
    other = search(twin, [RAGGED[0], [8, 8, 8]], max_new_tokens=[NEW, 1])

    assert both.best == turned.best[::-1]
    assert both.best[0] == other.best[0]
    assert [len(text) for text in other.best[1]] == [1, 1, 1]
    for name, ours, theirs in (
        ("turned", both.score_BM, turned.score_BM[::-1]),
        ("beside another", both.score_BM[:1], other.score_BM[:1]),
    ):
        assert_agree(ours[None], theirs[None], semantic(rtol=1e-10), name=name)
    assert_found(
        both,
        [
            right(0, "uncached"),
            by_hand(next_logits(RAGGED[1]), beams=BEAMS, budget=3, ends=ENDS),
        ],
    )


@twins
def test_a_prompt_is_forwarded_once_and_each_beam_one_token_a_step(twin):
    found = search(twin, RAGGED, end_ids=None, max_new_tokens=[NEW, 3])

    assert found.forwarded_positions_B.tolist() == [6 + BEAMS * (NEW - 1), 2 + BEAMS * 2]


@twins
def test_a_search_without_reordering_finds_something_else(twin, monkeypatch):
    """KV-47, the other half: the tests above see a reorder that is left out."""
    beams = importlib.import_module(f"{twin}.beams")
    monkeypatch.setattr(beams.caches, "gather", lambda cache, rows_B: cache)
    if twin == "jaxkv":
        programs = importlib.import_module("jaxkv.programs")
        monkeypatch.setattr(programs, "PROGRAMS", programs.Programs())

    with pytest.raises(AssertionError):
        assert_found(search(twin), [right(row, "uncached") for row in range(2)])


def _softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)
