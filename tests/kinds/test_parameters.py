"""The nested dict that jaxkv's functions take is what Flax gives, for all kinds of parts."""

import jax
import pytest
from flax import nnx

from jaxkv.model import params_of
from jaxkv.spec.tiny import open_subject
from jaxkv.weights import from_arrays


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3", "mixtral", "deepseek_v3", "t5"])
def test_parameters_are_those_that_flax_finds(name):
    checkpoint, _ = open_subject(name)
    model = from_arrays(checkpoint.config, checkpoint.weights)

    found = params_of(model)
    expected = nnx.to_pure_dict(nnx.state(model, nnx.Param))

    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert ours is theirs or (ours == theirs).all()
