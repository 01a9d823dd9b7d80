"""One operation alone on right inputs tells where an error arises from where it shows.

A fault is active in steps of a single token, so that the forward over a whole text is right.
"""

import numpy as np
import pytest

from crosscheck.adapters import adapt
from crosscheck.diagnosis.localize import localize
from crosscheck.programs.case import Append, Case
from crosscheck.subjects.sources import load_subject
from crosscheck.text import where
from tests.tiny import Cell, make_model, module, new_subject
from tests.tool.user_model import Decoder

CASE = Case(
    np.array([[5, 9, 14, 7, 11, 6], [8, 3, 12, 10, 4, 13]]), (Append(4), Append(1), Append(1))
)
LAYERS = 3

# Where the fault is -> layer, point, whether inherited, and the origin of what is.
PLANTED = {
    "embed_tokens": (0, "k", True, "embed"),
    "layers.0.self_attn": (0, "attn", False, None),
    "layers.0.mlp": (1, "k", True, "layers.0.mlp"),
    "layers.0.post_attention_layernorm": (1, "k", True, "layers.0.mlp_norm"),
    "layers.0": (1, "k", True, "layers.0.resid"),
    "layers.1.self_attn.k_proj": (1, "k", False, None),
    "layers.1.self_attn.v_proj": (1, "v", False, None),
    "layers.2.self_attn": (2, "attn", False, None),
    "layers.2.mlp": (2, "mlp", False, None),
    "norm": (None, "norm", False, None),
}


def found_in(candidate, reference=None, relation="cache.partition", case=CASE):
    found = localize(candidate, reference, relation, case)
    return found, (found.layer, found.point, found.inherited, found.origin)


def wrong_alone(_module, _arguments, out):
    """Shift the channels of what a module answers to one token, as a forward hook."""
    first = out[0] if isinstance(out, tuple) else out
    if first.shape[1] != 1:
        return None
    shifted = first.roll(1, -1)
    return (shifted, *out[1:]) if isinstance(out, tuple) else shifted


def llama():
    return load_subject(f"hf-tiny:llama?num_hidden_layers={LAYERS}").cast("float64")


@pytest.mark.parametrize("against", [False, True], ids=["alone", "against"])
@pytest.mark.parametrize("place", PLANTED)
def test_the_origin_of_an_error_is_told_from_where_it_shows(place, against):
    candidate = llama()
    candidate.model.model.get_submodule(place).register_forward_hook(wrong_alone)

    found, told = found_in(candidate, llama() if against else None)

    assert told == PLANTED[place], found
    assert (found.position, found.chunk) == (4, 1)


def test_positions_that_are_added_before_the_layers_are_no_layers_own():
    candidate = load_subject("hf-tiny:gpt2").cast("float64")
    candidate.model.transformer.wpe.register_forward_hook(wrong_alone)

    found, told = found_in(candidate)

    assert told == (0, "k", True, "layers.0.in")
    assert where(found).endswith(
        "layer 0, k; on right inputs what layer 0 holds is right: inherited, it begins in what "
        "enters layer 0"
    )


def plain_decoder(wrong=None):
    """Return a torch module as its author has one, with a cache that grows by concatenation."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(16, 48)

        def forward(self, x, kv):
            q, k, v = self.qkv(x).split(16, dim=-1)
            if kv is not None:
                k, v = (torch.cat([old, new], 1) for old, new in zip(kv, (k, v), strict=True))
            past = k.shape[1] - q.shape[1]
            mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(past)
            heads = [y.unflatten(-1, (2, 8)).transpose(1, 2) for y in (q, k, v)]
            o = functional.scaled_dot_product_attention(*heads, attn_mask=mask)
            return o.transpose(1, 2).flatten(2), (k, v)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.mlp = Attention(), nn.Sequential(nn.Linear(16, 16), nn.GELU())

        def forward(self, x, kv):
            read, kv = self.attention(x, kv)
            return x + read + self.mlp(x + read), kv

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(19, 16), nn.Linear(16, 19)
            self.blocks = nn.ModuleList(Block() for _ in range(3))

        def forward(self, ids, cache=None):
            x, kept = self.embed(ids), []
            for block, kv in zip(self.blocks, cache or [None] * 3, strict=True):
                x, kv = block(x, kv)
                kept.append(kv)
            return self.head(x), kept

    torch.manual_seed(0)
    model = Model().double()
    if wrong is not None:
        model.get_submodule(wrong).register_forward_hook(wrong_alone)
    return adapt(model, amplify=True)


@pytest.mark.parametrize(
    ("place", "told"),
    [
        # Its arrays of rank 3 can't be read as a cache: the captures tell alone.
        ("blocks.1.mlp", (1, "mlp", False, None)),
        ("blocks.1.attention", (1, "attn", False, None)),
        ("embed", (None, "embed", False, None)),
        ("head", (None, "logits", False, None)),
    ],
)
def test_a_module_without_a_readable_cache_is_isolated_by_its_captures(place, told):
    assert found_in(plain_decoder(place))[1] == told


@pytest.mark.parametrize(
    ("twin", "function", "told"),
    [
        ("torchkv", "_feed_forward", (1, "k", True, "layers.0.mlp")),
        ("torchkv", "_attention", (0, "attn", False, None)),
        ("jaxkv", "_feed_forward", (1, "k", True, "layers.0.mlp")),
    ],
)
def test_a_formula_of_a_twin_is_isolated(twin, function, told, monkeypatch):
    cell = Cell(twin, "llama", "contiguous")
    block = module(cell, "block")
    true = getattr(block, function)

    def wrong(p, x, *rest, **options):
        out = true(p, x, *rest, **options)
        if x.shape[1] != 1:
            return out
        return (1.5 * out[0], *out[1:]) if isinstance(out, tuple) else 1.5 * out

    monkeypatch.setattr(block, function, wrong)
    candidate = new_subject(make_model(twin, "llama"), cell)

    assert found_in(candidate)[1] == told


def test_without_captures_nothing_is_claimed_and_the_reason_is_told():
    found, told = found_in(Decoder("restarted"))

    assert told == (None, "logits", None, None)
    assert found.isolated == "the subject captures no intermediate results"
    assert where(found).endswith(
        "logits; inherited or not: the subject captures no intermediate results"
    )


def test_a_reference_without_captures_is_named():
    candidate = llama()
    candidate.model.model.layers[0].mlp.register_forward_hook(wrong_alone)

    class Bare:
        def __init__(self, inner):
            self.inner = inner
            capabilities = inner.info.capabilities - {"capture"}
            self.info = type(inner.info)(**{**vars(inner.info), "capabilities": capabilities})

        def __getattr__(self, name):
            return getattr(self.inner, name)

    found, told = found_in(candidate, Bare(llama()))

    assert told == (0, "attn", None, None)
    assert found.isolated == "the reference captures no intermediate results"
