"""One subject's weights in another, and the report of it."""

import numpy as np
import pytest
import torch
from flax import nnx

from crosscheck.adapters import adapt
from crosscheck.adapters.torch_tools import cast_copy
from crosscheck.errors import CrosscheckError
from crosscheck.subjects.tie import tie_weights
from tests.adapters.programs import apart

VOCAB = 7
IDS = np.arange(6).reshape(2, 3)


class Torch(torch.nn.Module):
    def __init__(self, *, bias=True):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCAB, VOCAB)
        self.head = torch.nn.Linear(VOCAB, VOCAB, bias=bias)

    def forward(self, ids):
        return self.head(self.embed(ids).cumsum(1))


class Flax(nnx.Module):
    def __init__(self):
        self.embed = nnx.Embed(VOCAB, VOCAB, rngs=nnx.Rngs(0))
        self.head = nnx.Linear(VOCAB, VOCAB, rngs=nnx.Rngs(1))

    def __call__(self, ids):
        return self.head(self.embed(ids).cumsum(1))


def test_a_cast_copy_keeps_ties_buffers_and_gradient_flags_and_leaves_the_model_alone():
    model = Torch(bias=False)
    model.head.weight = model.embed.weight
    model.embed.weight.requires_grad_(False)
    model.register_buffer("scale", torch.ones(2))

    twin = cast_copy(model, "float64")

    assert twin.head.weight is twin.embed.weight
    assert (twin.embed.weight.dtype, twin.scale.dtype) == (torch.float64,) * 2
    assert not twin.embed.weight.requires_grad
    assert torch.equal(twin.embed.weight, model.embed.weight.double())
    assert model.embed.weight.dtype == model.scale.dtype == torch.float32
    cast_copy(model, "float32").embed.weight.data.zero_()
    assert model.embed.weight.any()


@pytest.mark.parametrize("turn", [1, -1], ids=["torch-to-flax", "flax-to-torch"])
def test_square_kernels_are_transposed_between_frameworks(turn):
    torch.manual_seed(0)
    source, destination = (adapt(Torch()), adapt(Flax()))[::turn]

    report = tie_weights(source, destination)

    assert apart(report.subject.full(IDS), source.full(IDS)) < 1e-6
    assert [t.how for t in report.tied if t.source.startswith("head")].count("transposed") == 1
    assert str(report) == "3 weights tied, 1 transposed or reshaped."
    report.raise_for_gaps()


def test_what_took_no_part_is_said():
    report = tie_weights(adapt(Torch()), adapt(Torch(bias=False)))

    assert report.unused == ("head.bias",)
    with pytest.raises(CrosscheckError, match=r"tie_weights: .* 1 unused: head\.bias"):
        report.raise_for_gaps()


def test_two_weights_of_one_source_are_reported_as_shared():
    names = {"embed.weight": "embed.weight", "head.weight": "embed.weight"}

    report = tie_weights(adapt(Torch()), adapt(Torch()), names)

    assert report.shared == (("embed.weight", "head.weight"),)
    assert report.unfilled == ("head.bias",)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"head.bias": "bias"}, "names leads to 'bias', expected one of embed.weight"),
        ({"head.bias": "head.weight"}, r"'head.bias' has shape \[7\], 'head.weight' has \[7, 7\]"),
    ],
    ids=["name", "shape"],
)
def test_what_does_not_fit_is_one_sentence(names, message):
    with pytest.raises(CrosscheckError, match=message):
        tie_weights(adapt(Torch()), adapt(Torch()), names)


def test_a_side_without_weights_is_named():
    bare = adapt(lambda ids: np.zeros((*ids.shape, VOCAB)))

    with pytest.raises(CrosscheckError, match="src is a FunctionSubject, expected a subject with"):
        tie_weights(bare, adapt(Torch()))
