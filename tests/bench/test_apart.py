"""What decode and prefill time apart: ragged rows, prompts in pieces, prompts that entered once."""

import pytest

from bench import chunked, ragged
from bench.cases import Case, differing, kept
from bench.gpu_shapes import random_checkpoint
from bench.peers import TransformersRunner
from bench.runners import TwinRunner
from tests.tiny import TWINS

PROMPTS, NEW = [[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]], 5


@pytest.fixture(scope="module", params=[*TWINS, "transformers"])
def runner(request):
    checkpoint = random_checkpoint("tiny")
    if request.param == "transformers":
        return TransformersRunner(checkpoint)
    return TwinRunner(request.param, checkpoint)


def test_prompts_that_entered_once_go_on_like_whole_ones_again_and_again(runner):
    whole = runner.prepare(PROMPTS, NEW)()

    call = runner.kept(PROMPTS, NEW)

    assert [call(NEW), call(NEW)] == [whole, whole]
    assert call(2) == [row[:2] for row in whole]


@pytest.mark.parametrize("twin", TWINS)
def test_a_prompt_in_pieces_gives_the_same_token(twin):
    runner = TwinRunner(twin, random_checkpoint("tiny"))

    assert runner.in_pieces(PROMPTS, chunk=4, capacity=6)() == runner.prepare(PROMPTS, 1)()


class Stub:
    """A twin that gives the ids that it is told to give, and whose times are its own."""

    def __init__(self, name, ids, times):
        self.name = self.twin = name
        self._ids, self._times, self.cache = ids, times, {}

    def filled(self, subject, *, batch):
        return None

    def ids(self, subject):
        return self._ids

    def step_of(self, subject):
        return lambda: self._times[subject.name]

    def prepare(self, prompts, budget, *, capacity):
        return lambda: [[7]]

    def in_pieces(self, prompts, *, chunk, capacity):
        return lambda: self._ids

    def kept(self, prompts, budget):
        return lambda new: [[7] * new for _ in prompts]


TIMES = {"ragged": 4.0, "one length": 3.0}


@pytest.mark.parametrize("other", [[[7]], [[8]]], ids=["alike", "differ"])
def test_ragged_rows_are_timed_only_if_the_twins_agree(monkeypatch, other):
    ids = {"jaxkv": [[7]], "torchkv": other}
    monkeypatch.setattr(ragged, "Steps", lambda twin, _: Stub(twin, ids[twin], TIMES))

    found = ragged.rows(None, repeats=1)

    if other == [[8]]:
        assert [row.median for row in found] == [None, None]
        assert all("ids of jaxkv and torchkv differ" in row.note for row in found)
        return
    assert [(row.subject, row.median, row.ratio) for row in found] == [
        (f"{twin} {name}", TIMES[name], 3.0 / TIMES[name]) for twin in TWINS for name in TIMES
    ]


def test_ragged_rows_hold_as_many_tokens_as_those_of_one_length():
    rows = len(ragged.LENGTHS)

    assert sum(ragged.RAGGED.held(rows)) == sum(ragged.LEVEL.held(rows))
    assert (min(ragged.LENGTHS) + 1, max(ragged.LENGTHS) + 1) == (16, 1008)


@pytest.mark.parametrize("token", [7, 8], ids=["alike", "differ"])
def test_a_prompt_in_pieces_is_timed_only_if_its_token_is_the_same(monkeypatch, token):
    monkeypatch.setattr(chunked, "prompts_of", lambda case: [[1]])

    found = chunked.rows([Stub("jaxkv", [[token]], {})], repeats=1)

    assert [row.subject for row in found] == (
        ["jaxkv at once", "jaxkv in pieces of 256"] if token == 7 else ["jaxkv"]
    )
    assert all((row.median is None) == (token == 8) for row in found)


def test_long_prompts_enter_once_and_their_ids_are_compared_too(monkeypatch):
    monkeypatch.setattr("bench.cases.prompts_of", lambda case: [[1]] * case.batch)
    case = Case("long", batch=2, prompt=1024, new=3)
    calls = kept(case, [Stub("it", [], {}), Stub("base", [], {})])

    assert sorted(calls) == ["base", "it"]
    assert differing(case, [Stub("it", [], {}), Stub("base", [], {})], calls) == []
    wrong = {**calls, "it": lambda new: [[8] * new] * 2}
    assert differing(case, [Stub("it", [], {}), Stub("base", [], {})], wrong) == ["it"]
    assert kept(Case("short", batch=1, prompt=16, new=3), [Stub("it", [], {})]) == {}
