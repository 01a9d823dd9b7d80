"""Scoring: how well a model predicts given texts. Letters: B rows, T tokens, V vocabulary."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor as Array

from jaxkv.spec.config import ModelConfig
from jaxkv.spec.errors import CapacityError, RequestError
from torchkv.encoder import encode
from torchkv.loop import Sources
from torchkv.model import Decoder, Params, forward, params_of
from torchkv.planning import Plan, plan


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

    Cost: the logits of one text at a time, T * V numbers.
    """
    total, predictions, device = 0.0, 0, model.embed.device
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
        ids_BT = torch.tensor([list(text)], dtype=torch.int32, device=device)
        count_B = torch.tensor([count], dtype=torch.int32, device=device)
        nats_BT = nats_of(
            params_of(model), ids_BT, count_B, _on_device(found, device), config=model.config
        )
        total += float(nats_BT.double().sum())
        predictions += count - 1
    if predictions == 0:
        raise RequestError("score: texts_ids is empty, expected at least 1 text.")
    return Score(total / predictions, predictions)


def _on_device(found: Plan, device: torch.device) -> Sources | None:
    if found.sources is None:
        return None
    ids_BE, count_B = found.sources.ids_BE, found.sources.count_B
    return torch.tensor(ids_BE, device=device), torch.tensor(count_B, device=device)


@torch.no_grad()
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
        config: The model's.
    """
    source = None if sources is None else encode(params, *sources, config=config)
    logits_BTV, _ = forward(params, ids_BT, None, count_B, config=config, source=source)
    logits_BTV = logits_BTV[:, :-1]
    wide = torch.promote_types(logits_BTV.dtype, torch.float32)
    # Over the last axis: along another one torch adds up the vocabulary one by one, in float32,
    # which moved the loss of 49,152 tokens by 1e-4.
    logprob_BTV = logits_BTV.to(wide).log_softmax(-1)
    return -logprob_BTV.gather(2, ids_BT[:, 1:, None].long()).squeeze(2)
