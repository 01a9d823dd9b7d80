"""A part of a model that takes something from the tokens before, and is not given it in a step."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from crosscheck.adapters.torch_module import adapt_module
from crosscheck.check import check_case
from crosscheck.diagnosis.diagnose import diagnose
from crosscheck.diagnosis.trial import run_trial
from crosscheck.diagnosis.unfed import _is_unfed, unfed
from crosscheck.programs.case import Append, Case
from crosscheck.subjects.heard import OPAQUE, Heard

WIDTH, VOCAB = 8, 23
CASE = Case(
    np.random.default_rng(3).integers(1, VOCAB, (2, 9)).astype(np.int32),
    (Append(4), Append(2), Append(3)),
    seed=0,
)


class Fading(torch.nn.Module):
    """A bias on the scores: how far tokens fade adds up along what it is given."""

    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Linear(WIDTH, 1)

    def forward(self, x):
        past = torch.nn.functional.logsigmoid(self.gate(x)).cumsum(1)
        return past - past.transpose(1, 2)


class Attention(torch.nn.Module):
    """Causal attention with a bias; its cache is keys, values and what the bias is made of."""

    def __init__(self, reads):
        super().__init__()
        self.reads, self.fading = reads, Fading()
        self.k, self.v = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x, cache):
        k, v, text = self.k(x), self.v(x), x
        if cache is not None and self.reads != "itself":
            k, v, text = (torch.cat(pair, 1) for pair in zip(cache, (k, v, x), strict=True))
        scores = x @ k.transpose(1, 2)
        new, held = scores.shape[1:]
        bias = self.fading(text if self.reads == "all" else x)[:, -new:]
        scores = scores + torch.nn.functional.pad(bias, (held - bias.shape[2], 0))
        hidden = torch.ones(new, held, dtype=torch.bool).triu(held - new + 1)
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v, (k, v, text)


class Model(torch.nn.Module):
    """One layer."""

    def __init__(self, reads):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(VOCAB, WIDTH), torch.nn.Linear(WIDTH, VOCAB)
        self.attn = Attention(reads)

    def forward(self, ids, cache=None):
        x = self.embed(ids)
        read, cache = self.attn(x, cache)
        return self.head(x + read), cache


def subject(reads):
    torch.manual_seed(0)
    return adapt_module(Model(reads).double())


def signs(reads):
    return list(unfed(run_trial(subject(reads), None, "cache.partition", CASE)))


def test_a_part_that_is_given_the_step_alone_is_named_with_what_it_does():
    found = diagnose(subject("keys and values"), None, "cache.partition", CASE)

    assert (found[0].fault, found[0].is_name) == ("state.dropped", True)
    assert "what attn.fading gives for a token depends on the tokens before it" in found[0].evidence


def test_the_same_part_given_all_of_the_text_is_right_and_no_sign():
    right = subject("all")

    assert check_case(right, None, "cache.partition", CASE).verdict == "pass"
    assert signs("all") == []


def test_an_attention_that_reads_nothing_of_what_is_held_is_another_fault():
    assert signs("itself") == []


def test_without_a_later_step_nothing_can_have_been_dropped():
    once = Case(CASE.ids, (Append(9),), seed=0)

    assert not list(unfed(run_trial(subject("keys and values"), None, "cache.partition", once)))


T, NEW = 7, 2
INPUT = np.linspace(0.0, 1.0, T)[None, :, None]
SUMS = INPUT.cumsum(1)


def runs(**changes):
    """Return the four runs of a running sum that is not given what stood before."""
    other = INPUT.copy()
    other[:, 1] += 1.0
    step = Heard((INPUT[:, -NEW:],), (INPUT[:, -NEW:].cumsum(1),))
    made = {
        "whole": Heard((INPUT,), (SUMS,)),
        "other": Heard((other,), (other.cumsum(1),)),
        "step": step,
        "again": step,
    }
    return made | changes


STEP = runs()["step"]
OTHERWISE = {
    "it does not depend on earlier tokens": {"other": runs()["whole"]},
    "its input carries them": {"again": replace(STEP, given=(STEP.given[0] + 1.0,))},
    "it remembers them itself": {"again": replace(STEP, gave=(STEP.gave[0] + 1.0,))},
    "it is given more in a step": {"step": replace(STEP, given=(*STEP.given, STEP.given[0]))},
    "it is given what may hold anything": {"step": replace(STEP, given=(OPAQUE,))},
    "its results can't be compared": {"step": replace(STEP, gave=(np.zeros((1, 3, 1)),))},
}


@pytest.mark.parametrize("changes", OTHERWISE.values(), ids=OTHERWISE)
def test_no_part_is_accused_where(changes):
    assert _is_unfed(**runs(), new=NEW)
    assert not _is_unfed(**runs(**changes), new=NEW)
