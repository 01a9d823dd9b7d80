"""The encoder: a text that every token of it sees whole, read once a request.

What it leaves are the keys and values of the decoder's cross attentions, layer by layer.
Letters: B texts, E tokens of the longest with padding, D width, K key/value heads, H head width.
"""

import torch
from jaxtyping import Int
from torch import Tensor as Array

from jaxkv.spec import config as spec
from jaxkv.spec.errors import RequestError
from torchkv import caches
from torchkv.block import Dropout, Tap
from torchkv.caches import Source, cross
from torchkv.linear import linear, norm
from torchkv.model import Params
from torchkv.stack import embed, no_tap, run_layers


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
        ids_BE: Token ids; what stands beyond a text's count does not matter.
        count_B: int32, how many of the E tokens of each text are real.
        config: The model's.
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
    with torch.device(ids_BE.device):
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
        _keys_and_values(layer["cross"], x_BED, step.count_B, sizes)
        for layer, sizes in zip(params["layers"], config.layers, strict=True)
    )


def _keys_and_values(p: Params, x_BED: Array, count_B: Array, layer: spec.Layer) -> cross.CrossSite:
    assert layer.cross is not None  # the config gives every layer one beside an encoder
    k_BEKH, v_BEKH = linear(p["kv"], x_BED).unflatten(2, (2, -1, layer.cross.head_dim)).unbind(2)
    return cross.hold(k_BEKH, v_BEKH, count_B)
