"""Scoring: how well a model predicts given texts. Letters: B rows, T tokens, V vocabulary."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxkv import programs
from jaxkv.encoder import encode
from jaxkv.loop import Sources
from jaxkv.model import Decoder, Params, forward, params_of
from jaxkv.planning import Plan, plan
from jaxkv.spec.config import ModelConfig
from jaxkv.spec.errors import CapacityError, RequestError


class Score(NamedTuple):
    """What `score` found.

    Attributes:
        loss: Mean over all predictions, in nats.
        predictions: How many: of each text all tokens but the first.
    """

    loss: float
    predictions: int


def score(
    model: Decoder,
    texts_ids: Sequence[Sequence[int]],
    *,
    encoder: Sequence[Sequence[int]] | None = None,
) -> Score:
    """Return the mean of -ln p(token | the tokens before it) over all texts, and their number.

    Each text is one forward without a cache. Nats are computed in the model's dtype, in float32 at
    least, and summed in float64.

    Args:
        model: In evaluation mode.
        texts_ids: Token ids of each text, at least 2. Of a model with an encoder the decoder's,
            from the start ids on.
        encoder: What the encoder read before each of them, for such a model.

    Raises:
        RequestError: There is nothing to predict, or an id is outside the vocabulary.
        CapacityError: A text is longer than the model's positions.
        ShapeError: texts_ids is not a list of texts.

    Cost: the logits of one text at a time, T * V numbers. Compiles once for each bucket of T.
    """
    nats = []
    run = programs.PROGRAMS.jitted(nats_of)
    for i, text in enumerate(texts_ids):
        if len(text) > model.config.max_positions:
            raise CapacityError(
                f"score: texts_ids[{i}] has {len(text)} tokens, expected at most "
                f"{model.config.max_positions}, the model's positions. Score it in pieces."
            )
        read = None if encoder is None else encoder[i : i + 1]
        found = plan(model.config, [text], max_new_tokens=1, encoder=read)
        count = int(found.count_B[0])
        if count < 2:
            raise RequestError(
                f"score: texts_ids[{i}] has {count} token, expected at least 2: the first is never "
                "predicted."
            )
        ids_BT, count_B = jnp.asarray(found.ids_BT), jnp.asarray(found.count_B)
        nats_BT = run(params_of(model), ids_BT, count_B, _on_device(found), config=model.config)
        nats.append(np.asarray(nats_BT[0, : count - 1], np.float64))
    if not nats:
        raise RequestError("score: texts_ids is empty, expected at least 1 text.")
    every = np.concatenate(nats)
    return Score(float(every.mean()), len(every))


def _on_device(found: Plan) -> Sources | None:
    sources = found.sources
    return sources and (jnp.asarray(sources.ids_BE), jnp.asarray(sources.count_B))


def nats_of(
    params: Params,
    ids_BT: Int[Array, "B T"],
    count_B: Int[Array, " B"],
    sources: Sources | None = None,
    *,
    config: ModelConfig,
) -> Float[Array, "B T-1"]:
    """Return -ln p of each row's tokens from the second on, T - 1 of them; padding's mean nothing.

    Args:
        params: The model's.
        ids_BT: int32 texts from the left.
        count_B: int32, how many of the tokens are real.
        sources: What the encoder read before each; None without one.
        config: Static.
    """
    source = None if sources is None else encode(params, *sources, config=config)
    logits_BTV, _ = forward(params, ids_BT, None, count_B, config=config, source=source)
    logits_BTV = logits_BTV.astype(jnp.promote_types(logits_BTV.dtype, jnp.float32))[:, :-1]
    own_BT = jnp.take_along_axis(logits_BTV, ids_BT[:, 1:, None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits_BTV, axis=-1) - own_BT
