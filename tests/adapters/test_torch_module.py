"""Any nn.Module behind the protocol: read off its signature, or told by one line."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from crosscheck.adapters import adapt
from crosscheck.errors import CrosscheckError, Refused, SubjectError
from tests.adapters.programs import apart, fed, texts

VOCAB, WIDTH, HEADS = 23, 12, 3


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, past):
        rows, new, _ = x.shape
        q, k, v = (y.view(rows, new, HEADS, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        mask = torch.ones(new, k.shape[2], dtype=torch.bool).tril(k.shape[2] - new)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).reshape(x.shape)), (k, v)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attn, self.mlp = nn.LayerNorm(WIDTH), Attention(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, past):
        y, after = self.attn(self.norm(x), past)
        return x + y + self.mlp(x + y), after


class Decoder(nn.Module):
    """A cache is a list of (keys, values), grown by concatenation."""

    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(VOCAB, WIDTH), nn.Embedding(64, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB)

    def forward(self, ids, cache=None):
        start = 0 if cache is None else cache[0][0].shape[2]
        x = self.embed(ids) + self.place(torch.arange(start, start + ids.shape[1]))
        after = []
        for block, past in zip(self.blocks, cache or [None, None], strict=True):
            x, new = block(x, past)
            after.append(new)
        return self.head(self.norm(x)), after


class Buffered(nn.Module):
    """A cache is two fixed buffers, written in place from a start; one vector a token."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)

    def init_cache(self, batch_size, max_seq_len):
        return {n: torch.zeros(batch_size, max_seq_len, 1, WIDTH) for n in ("keys", "values")}

    def score(self, tokens, store, begin, scale=1.0):
        x = self.embed(tokens)
        for buffer in store.values():
            buffer[:, begin : begin + tokens.shape[1], 0] = x
        held = store["values"][:, : begin + tokens.shape[1], 0].cumsum(1)[:, begin:]
        return self.head(held * scale)

    def forward(self, tokens):
        return self.head(self.embed(tokens).cumsum(1))


class Sums:
    """A cache of its own kind: running sums of every length, with verbs."""

    def __init__(self, sums):
        self.sums = sums

    def crop(self, length):
        return Sums(self.sums[:, :length])

    def reorder(self, rows):
        self.sums = self.sums[rows]


class Summing(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, VOCAB)

    def forward(self, ids, cache=None):
        past = 0 if cache is None else cache.sums[:, -1:]
        new = past + self.embed(ids).cumsum(1)
        return new, Sums(new if cache is None else torch.cat([cache.sums, new], 1))


def decoder():
    torch.manual_seed(0)
    return adapt(Decoder(), amplify=0).cast("float64")


def buffered():
    torch.manual_seed(0)
    call = "score(ids, store=cache, begin=start, scale=1.0)"
    return adapt(Buffered(), call=call, full=lambda module, ids: module(ids))


@pytest.mark.parametrize("make", [decoder, buffered])
@pytest.mark.parametrize("sizes", [[14], [1] * 14, [3, 1, 10]], ids=str)
def test_cached_steps_equal_one_forward(make, sizes):
    subject = make()
    ids = texts(subject)

    logits, state = fed(subject, ids, sizes)

    assert apart(logits, subject.full(ids)) < 1e-5
    assert subject.length(state).tolist() == [14, 14]


def test_capabilities_come_from_what_the_module_has():
    grown, fixed = decoder().info.capabilities, buffered().info.capabilities

    assert grown == {
        *("cache", "chunk", "fork", "gather", "rollback", "kv", "kv_write", "capture"),
        *("f64", "f32"),
    }
    assert fixed - grown == {"capacity"}
    assert grown - fixed == {"capture"}


@pytest.mark.parametrize("make", [decoder, buffered])
def test_rows_and_lengths_are_found_by_shape(make):
    subject = make()
    ids, rows = texts(subject, rows=3), np.array([2, 0, 0, 1])
    whole = subject.full(ids)
    _, state = fed(subject, ids, [6, 5])

    gathered, _ = subject.step(subject.gather(subject.fork(state), rows), ids[rows, 11:])
    back, _ = subject.step(subject.rollback(subject.fork(state), [8] * 3), ids[:, 8:])

    assert apart(gathered, whole[rows, 11:]) < 1e-5
    assert apart(back, whole[:, 8:]) < 1e-5


def test_a_caches_own_verbs_are_used():
    subject = adapt(Summing())
    ids, rows = texts(subject), np.array([1, 0, 1])
    _, state = fed(subject, ids, [9])

    back, _ = subject.step(subject.rollback(subject.fork(state), [4, 4]), ids[:, 4:])
    gathered, _ = subject.step(subject.gather(state, rows), ids[rows, 9:])

    assert subject.info.capabilities >= {"rollback", "gather"}
    assert not {"kv", "capture"} & subject.info.capabilities
    assert apart(back, subject.full(ids)[:, 4:]) < 1e-5
    assert apart(gathered, subject.full(ids)[rows, 9:]) < 1e-5


@pytest.mark.parametrize("make", [decoder, buffered])
def test_kv_is_read_and_written_by_layer(make):
    subject = make()
    ids = texts(subject)
    _, state = fed(subject, ids, [9])

    kv = subject.kv(state, subject.info.num_layers - 1)
    same, _ = subject.step(
        subject.with_kv(subject.fork(state), 0, subject.kv(state, 0)), ids[:, 9:]
    )

    assert kv.valid_BS.sum(1).tolist() == [9, 9]
    assert kv.keys_BSKH.shape[0] == 2
    assert kv.keys_BSKH.shape[2:] == ((HEADS, WIDTH // HEADS) if make is decoder else (1, WIDTH))
    assert apart(same, subject.full(ids)[:, 9:]) < 1e-5


def test_lengths_that_differ_by_row_are_refused():
    subject = decoder()
    _, state = fed(subject, texts(subject), [9])

    with pytest.raises(Refused, match="rows keep unlike lengths"):
        subject.rollback(state, np.array([3, 4]))


def test_captures_and_notes():
    subject = decoder()

    taps = subject.capture(texts(subject))

    each = [f"layers.{i}.{part}" for i in range(2) for part in ("attn", "mlp", "resid")]
    assert list(taps) == ["embed", *each, "norm", "logits"]
    assert subject.info.notes[0].startswith("random weights, amplified")


@pytest.mark.parametrize(
    ("hints", "error", "message"),
    [
        pytest.param(
            {"call": "forward(ids, past=kv)"},
            CrosscheckError,
            r"call is 'forward\(ids, past=kv\)', expected one call such as",
            id="call",
        ),
        pytest.param(
            {"call": "forward(ids, past=cache)"},
            SubjectError,
            r"Decoder raised in a cached call: TypeError: .* Give call=\.",
            id="wrong-name",
        ),
    ],
)
def test_a_call_that_does_not_fit_is_one_sentence(hints, error, message):
    with pytest.raises(error, match=message):
        adapt(Decoder(), **hints)
