"""The encoder: a text that every token of it sees whole, read once a request.

What it leaves are the keys and values of the decoder's cross attentions, layer by layer.
Letters: B texts, E tokens of the longest with padding, D width, K key/value heads, H head width.
"""

import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxkv import caches
from jaxkv.block import Dropout, Tap
from jaxkv.caches import Source, cross
from jaxkv.linear import linear, norm
from jaxkv.model import Params
from jaxkv.spec import config as spec
from jaxkv.spec.errors import RequestError
from jaxkv.stack import embed, no_tap, run_layers


def encode(
    params: Params,
    ids_BE: Int[Array, "B E"],
    count_B: Int[Array, " B"],
    *,
    config: spec.ModelConfig,
    tap: Tap = no_tap,
) -> Source:
    """Return the keys and values of each text for the decoder's cross attentions.

    For `forward`, or for `caches.fill`. A text's result does not depend on its padding.

    Args:
        params: From `params_of`.
        ids_BE: int32 token ids; what stands beyond a text's count does not matter.
        count_B: int32, how many of the E tokens of each text are real.
        config: The model's; static.
        tap: Called with the name and value of intermediate results, in the order of the
            computation; what it returns goes on in their place.

    Raises:
        RequestError: The model has no encoder.
        CapacityError: E exceeds the encoder's positions.

    Not checked here: that ids lie inside the vocabulary; `generation.plan` does on the host.
    Cost: one forward of the encoder, and two products a decoder layer.
    """
    encoder = config.encoder
    if encoder is None:
        raise RequestError("encode: the model has no encoder. Leave out the text to encode.")
    p, (rows, tokens) = params["encoder"], ids_BE.shape
    held = caches.init(
        encoder, batch=rows, capacity=tokens, dtype=params["embed"].dtype, layout="uncached"
    )
    held, step = caches.begin(held, count_B, T=tokens, fresh=True)

    def named(name: str, x: Array) -> Array:
        return tap(f"encoder.{name}", x)

    x_BED = named("embed", embed(params, p, ids_BE, step, config))

    drop = Dropout(0.0, None)
    x_BED, _ = run_layers(p, x_BED, held.sites, step, encoder.layers, config, drop, named)
    if config.final_norm:
        x_BED = norm(p["norm"], x_BED, config.norm)
    x_BED = named("norm", x_BED)
    return tuple(
        _keys_and_values(params["layers"][i]["cross"], x_BED, step.count_B, layer)
        for i, layer in enumerate(config.layers)
    )


def _keys_and_values(p: Params, x_BED: Array, count_B: Array, layer: spec.Layer) -> cross.CrossSite:
    assert layer.cross is not None  # the config gives every layer one beside an encoder
    kv_BEF = linear(p["kv"], x_BED)
    k_BEF, v_BEF = jnp.split(kv_BEF, 2, axis=-1)
    shape = (*k_BEF.shape[:2], layer.cross.num_kv_heads, layer.cross.head_dim)
    return cross.hold(k_BEF.reshape(shape), v_BEF.reshape(shape), count_B)
