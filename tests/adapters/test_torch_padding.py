"""Padding of an nn.Module: found by asking it, so that a fault in it fails and silence is told."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from crosscheck.adapters import adapt
from crosscheck.errors import Refused
from crosscheck.judging import run_case
from crosscheck.relations.registry import RELATIONS
from crosscheck.select import load_relations
from tests.adapters.programs import apart, fed, texts

VOCAB, WIDTH, HEADS, PADS = 29, 24, 3, 3


class Padded(nn.Module):
    """One attention with learned places; its cache is (keys, values).

    fault: "positions" (later steps count the padding), "ignored", "attended" (placed rightly, but
    read), "call" (the mask is of the call alone; the cache remembers the rest), "no cache".
    """

    def __init__(self, fault=""):
        super().__init__()
        self.fault = fault
        self.embed, self.place = nn.Embedding(VOCAB, WIDTH), nn.Embedding(64, WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, input_ids, attention_mask=None, cache=None):
        (rows, new), held = input_ids.shape, 0 if cache is None else cache[0].shape[2]
        real = torch.ones(rows, held + new, dtype=torch.bool)
        if attention_mask is not None and self.fault != "ignored":
            if held and self.fault == "no cache":
                raise NotImplementedError("no mask with a cache")
            told = attention_mask.bool()
            real = torch.cat([cache[2], told], 1) if held and self.fault == "call" else told
        at = (real.long().cumsum(1) - 1).clamp(min=0)[:, held:]
        if self.fault == "positions" and held:
            at = torch.arange(held, held + new).expand(rows, new)
        x = self.embed(input_ids) + self.place(at)
        q, k, v = (y.view(rows, new, HEADS, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        if held:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        visible = torch.ones(new, held + new, dtype=torch.bool).tril(held)
        if self.fault != "attended":
            visible = visible & real[:, None, None]
        visible = visible | torch.eye(held + new, dtype=torch.bool)[held:]
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        x = x + self.out(y.transpose(1, 2).reshape(rows, new, WIDTH))
        return self.head(x), ((k, v, real) if self.fault == "call" else (k, v))


class Renamed(Padded):
    """The same under a name that promises no padding."""

    def forward(self, input_ids, mask=None, cache=None):
        return super().forward(input_ids, mask, cache)


class Inverted(Padded):
    """True is padding, as in torch's own layers."""

    def forward(self, input_ids, key_padding_mask=None, cache=None):
        real = None if key_padding_mask is None else ~key_padding_mask
        return super().forward(input_ids, real, cache)


class Numbers(Padded):
    """Wants numbers: with bool it raises."""

    def forward(self, input_ids, attention_mask=None, cache=None):
        real = None if attention_mask is None else (1 - attention_mask) == 0
        return super().forward(input_ids, real, cache)


class Square(nn.Module):
    """Its mask says which token reads which, so it is [T, T]."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, VOCAB)

    def forward(self, ids, mask=None, cache=None):
        past = 0 if cache is None else cache[:, -1:]
        x = self.embed(ids)
        reads = torch.ones(len(ids[0]), len(ids[0])).tril() if mask is None else mask
        new = past + reads.to(x.dtype) @ x
        return new, new


class Unmasked(Padded):
    def forward(self, input_ids, cache=None):
        return super().forward(input_ids, None, cache)


def subject_of(kind, fault="", **hints):
    torch.manual_seed(0)
    module = kind(fault) if issubclass(kind, Padded) else kind()
    return adapt(module, amplify=0, **hints).cast("float64")


def padded_left(subject):
    load_relations()
    relation = RELATIONS["pad.left"]
    cases = relation.examples(subject.info, 0)
    return {run_case(relation, subject, subject, case).verdict for case in cases}


@pytest.mark.parametrize(
    ("kind", "fault"),
    [(Padded, ""), (Padded, "call"), (Renamed, ""), (Inverted, ""), (Numbers, "")],
    ids=["whole", "own-columns", "renamed", "inverted", "numbers"],
)
def test_padding_is_found_in_the_form_the_module_takes_and_agrees(kind, fault):
    subject = subject_of(kind, fault)

    assert "left_pad" in subject.info.capabilities
    assert padded_left(subject) == {"pass"}


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (Padded, "positions"),
        (Renamed, "positions"),
        (Padded, "ignored"),
        (Padded, "attended"),
    ],
    ids=["positions", "renamed", "ignored", "attended"],
)
def test_a_fault_of_padding_fails(kind, fault):
    subject = subject_of(kind, fault)

    assert "left_pad" in subject.info.capabilities
    assert "fail" in padded_left(subject)


def test_a_mask_that_is_named_in_the_call_is_a_promise():
    call = "forward(ids, mask=mask, cache=cache)"

    assert "fail" in padded_left(subject_of(Renamed, "ignored", call=call))


@pytest.mark.parametrize(
    ("kind", "fault", "words"),
    [
        (Unmasked, "", "its forward is given no mask; a Module declares it by an argument"),
        (Renamed, "ignored", "its mask= hides no padding: the id of a masked token still changes"),
        (Square, "", "its mask= is no mask of padding: with every token marked as real the"),
        (Padded, "no cache", "a cached call with attention_mask= raises NotImplementedError"),
    ],
    ids=["none", "ignored", "square", "uncached-only"],
)
def test_where_padding_is_not_taken_the_reason_is_told(kind, fault, words):
    info = subject_of(kind, fault).info

    assert "left_pad" not in info.capabilities
    assert info.absent["left_pad"].startswith(words)


def test_a_padded_state_keeps_its_padding_through_every_verb():
    subject = subject_of(Padded)
    ids = texts(subject)
    whole = subject.full(ids)
    pads = np.concatenate([np.zeros((2, PADS), ids.dtype), ids], axis=1)
    mask = np.arange(pads.shape[1]) >= np.full((2, 1), PADS)

    _, state = fed(subject, pads, [9], mask=mask)
    kv = subject.kv(state, 0)
    rows = np.array([1, 0, 1])
    gathered, _ = subject.step(subject.gather(subject.fork(state), rows), ids[rows, 6:])
    back, _ = subject.step(subject.rollback(subject.fork(state), [4, 4]), ids[:, 4:])

    assert kv.valid_BS.sum(axis=1).tolist() == [6, 6]
    assert kv.position_BS[0, PADS : PADS + 6].tolist() == [0, 1, 2, 3, 4, 5]
    assert apart(gathered, whole[rows, 6:]) < 1e-12
    assert apart(back, whole[:, 4:]) < 1e-12


def test_rows_that_would_be_cut_at_unlike_columns_are_refused():
    subject = subject_of(Padded)
    mask = np.array([[False, True, True, True], [True, True, True, True]])
    _, state = fed(subject, texts(subject, tokens=4), [4], mask=mask)

    with pytest.raises(Refused, match="rows keep unlike lengths"):
        subject.rollback(state, np.array([2, 2]))
