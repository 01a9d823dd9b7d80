"""Build the clean models and the edited ones; equal seeds give equal weights."""

import numpy as np

from tests.faulty.source_edits import edited, load, text_of
from tests.faulty.subjects import FlaxSubject, TorchSubject


def amplified(shape, generator, *, fan_in):
    """Return peaked weights: with usual initialization a fault may vanish in the noise."""
    if len(shape) > 1:
        return generator.normal(size=shape) * 1.2 / fan_in**0.5
    return generator.normal(size=shape) * 0.15


def torch_subject(edits=(), *, name="torch", seed=0):
    """Return the torch decoder with these edits in its source."""
    module = load(edited(text_of("tests.faulty.torch_decoder"), edits), name="torch_decoder")
    return TorchSubject(module, seeded(module.Decoder().double().eval(), seed), name)


def seeded(model, seed):
    """Return a torch model with amplified weights drawn from numpy."""
    import torch

    generator = np.random.default_rng(seed)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            noise = amplified(tuple(weight.shape), generator, fan_in=weight.shape[-1])
            noise = torch.tensor(noise, dtype=weight.dtype)
            is_gain = weight.dim() == 1 and name.endswith("weight")
            weight.copy_(1 + noise if is_gain else noise)
    return model


def flax_subject(edits=(), *, name="flax", seed=0):
    """Return the Linen decoder with these edits in its source."""
    import jax
    import jax.numpy as jnp

    module = load(edited(text_of("tests.faulty.flax_decoder"), edits), name="flax_decoder")
    model = module.Decoder()
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((1, 2), int)))
    generator = np.random.default_rng(seed)

    def draw(path, leaf):
        noise = amplified(leaf.shape, generator, fan_in=_fan_in(path, leaf.shape))
        return jnp.asarray(noise + (path[-1].key == "scale"), leaf.dtype)

    params = jax.tree_util.tree_map_with_path(draw, shapes["params"])
    return FlaxSubject(module, model, params, name)


def _fan_in(path, shape):
    if path[-1].key == "embedding":
        return 1
    return int(np.prod(shape[:-1])) if path[-2].key == "out_proj" else shape[0]
