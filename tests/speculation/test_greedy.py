"""Greedy ids with drafts are those of plain greedy decoding: draft x k x batch x layout."""

import numpy as np
import pytest

from tests.pairwise import cover
from tests.speculation.twins import (
    BUDGETS,
    LAYOUTS,
    PROMPTS,
    TWINS,
    generate,
    greedy,
    speculate,
)
from tests.tiny import DEEP

# Models of one config share a program.
SOURCES = {"models": ("itself", "near", "unrelated"), "lookup": ("lookup",)}
KS = (1, 4) if not DEEP else (1, 2, 3, 4, 7)
CASES = cover(tuple(LAYOUTS), tuple(SOURCES), KS, ("alone", "ragged"))
twins = pytest.mark.parametrize("twin", TWINS)


def owed(result, prompts=PROMPTS):
    """Check the counts that every request owes."""
    held, new = np.array([len(x) for x in prompts]), np.array([len(x) for x in result.new_tokens])
    forwarded = held + new - 1 + result.rolled_back_B
    assert result.forwarded_positions_B.tolist() == forwarded.tolist()
    assert result.length_B.tolist() == (held + new).tolist()
    assert (result.accepted_B <= result.drafted_B).all()


@twins
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_ids_are_those_of_plain_greedy_decoding(twin, case):
    """KV-28: drafts of the model itself are all kept, k + 1 tokens a round."""
    layout, source, k, batch = case
    rows = slice(1) if batch == "alone" else slice(None)
    expected, prompts, budgets = greedy(twin, layout)[rows], PROMPTS[rows], BUDGETS[rows]

    for name in SOURCES[source]:
        found = speculate(twin, prompts, layout=layout, draft=name, k=k, max_new_tokens=budgets)

        assert found.new_tokens == expected, name
        owed(found, prompts)
        new = np.array(budgets)
        assert (new == 1 + found.steps_B + found.accepted_B).all()
        assert (found.rolled_back_B == found.drafted_B - found.accepted_B).all()
        if name == "itself":
            assert found.accepted_B.tolist() == found.drafted_B.tolist()
            assert found.steps_B.tolist() == (-(-(new - 1) // (k + 1))).tolist()
        elif name == "near":
            assert 0 < found.accepted_B.sum() < found.drafted_B.sum()
        elif name == "unrelated":
            assert found.accepted_B.sum() < found.drafted_B.sum() / 2
        else:
            assert found.drafted_B.sum() > 0


@twins
def test_a_smaller_draft_model_changes_no_id_either(twin):
    found = speculate(twin, draft="small")

    assert found.new_tokens == greedy(twin)
    owed(found)


@twins
def test_each_row_keeps_its_own_number_and_rolls_back_alone(twin):
    """Rows beside others draft, keep and take back what they do alone."""
    together = speculate(twin, draft="near")

    for b, prompt in enumerate(PROMPTS):
        alone = speculate(twin, [prompt], draft="near", max_new_tokens=BUDGETS[b])
        for name in ("drafted_B", "accepted_B", "rolled_back_B", "steps_B"):
            assert getattr(alone, name).tolist() == [getattr(together, name)[b]], name
    assert len({*together.accepted_B.tolist()}) > 1


@twins
def test_an_end_token_inside_the_kept_drafts_ends_its_row(twin):
    """Drafts after it are taken back, and it is the last token, which no cache holds."""
    whole = greedy(twin)
    end = next(token for token in whole[0][2:5] if token not in whole[0][:2])
    stop = whole[0].index(end) + 1

    found = speculate(twin, end_ids=[end], keep_cache=True)

    cut = [row[: row.index(end) + 1] if end in row else row for row in whole]
    assert found.new_tokens == cut
    owed(found)
    assert len(found.new_tokens[0]) == stop <= 5
    assert found.drafted_B[0] == 4
    assert found.accepted_B[0] == stop - 1
    assert found.rolled_back_B[0] == 5 - (stop - 1)
    assert np.asarray(found.cache.length_B).tolist() == (found.length_B - 1).tolist()


@twins
@pytest.mark.parametrize("budget", [0, 1, 2, 5])
def test_a_budget_that_ends_inside_a_block_is_kept_exactly(twin, budget):
    """KV-30: drafts are cut to what a row may still take; no budget touches no model."""
    found = speculate(twin, max_new_tokens=[budget, 9, 0])

    whole = greedy(twin)
    assert found.new_tokens == [whole[0][:budget], whole[1], []]
    assert found.drafted_B[0] == max(budget - 1 - -(-max(budget - 1, 0) // 5), 0)
    assert found.forwarded_positions_B[2] == 0
    assert found.forwarded_positions_B[0] == (len(PROMPTS[0]) + budget - 1 if budget else 0)


@twins
def test_no_budget_at_all_touches_no_model(twin):
    found = speculate(twin, max_new_tokens=0)

    assert found.tokens == PROMPTS
    assert found.forwarded_positions_B.tolist() == [0, 0, 0]
    assert found.compilations in (0, None)


@twins
@pytest.mark.parametrize("layout", ["paged", "quantized"] if DEEP else ["paged"])
def test_the_cache_goes_on_as_if_nothing_had_been_taken_back(twin, layout):
    """Rejected drafts leave no trace: plain decoding continues, and so does a second lookup."""
    first = speculate(twin, layout=layout, draft="lookup", max_new_tokens=6, keep_cache=True)
    last = [[row[-1]] for row in first.new_tokens]
    asked = {"max_new_tokens": [8, 3, 6], "cache": first.cache}

    plain = generate(twin, last, **{**asked, "capacity": None})
    drafted = speculate(twin, last, draft="lookup", **{**asked, "capacity": None})

    assert first.rolled_back_B.sum() > 0
    joined = [a + b for a, b in zip(first.new_tokens, plain.new_tokens, strict=True)]
    assert joined == greedy(twin, layout)
    assert drafted.new_tokens == plain.new_tokens


@twins
def test_a_pool_too_small_is_told_as_without_drafts(twin):
    """A rollback clears the mark of a refused row: no round follows one that was refused."""
    from jaxkv.spec.errors import CapacityError

    asked = {"page_size": 4, "layout_options": {"pool_pages": 16}, "max_new_tokens": [50, 9, 12]}

    with pytest.raises(CapacityError, match=r"of the pool's 16 there are") as told:
        speculate(twin, layout="paged", draft="itself", **asked)

    assert "check: row " in str(told.value)
