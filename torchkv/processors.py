"""Logits -> logits that know the text so far. Letters: B rows, S slots, V vocabulary, J biases.

Rules and order are those of transformers 5.24 (generation/logits_process.py, and
`_get_logits_processor` of generation/utils.py): bias, repetition penalty, minimum length. The two
penalties that it lacks come after its own, as in vLLM (model_executor/layers/utils.py,
`apply_penalties`), by the formula of the OpenAI API reference: over the new tokens alone,
logit - frequency * count - presence * (count > 0).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor as Array

from torchkv.processor_settings import ProcessorSettings


@dataclass(frozen=True)
class Processors:
    """Of each row what its own text does to its logits.

    Attributes:
        repetition_B: float32; 1 changes nothing.
        presence_B: float32; 0 changes nothing.
        frequency_B: float32; 0 changes nothing.
        min_new_B: int32, new tokens before any end token.
        bias_id_BJ: int32, V for none.
        bias_BJ: float32, added to those; -inf bars a token.
        known_BV: Tokens of a prompt that a prefix store knew, which the text lacks; None without
            one.
    """

    repetition_B: Float[Array, " B"]
    presence_B: Float[Array, " B"]
    frequency_B: Float[Array, " B"]
    min_new_B: Int[Array, " B"]
    bias_id_BJ: Int[Array, "B J"]
    bias_BJ: Float[Array, "B J"]
    known_BV: Bool[Array, "B V"] | None


def place(settings: ProcessorSettings, known: Sequence[Sequence[int]] | None = None) -> Processors:
    """Return the settings as arrays.

    Args:
        settings: Of each row.
        known: Of each row, tokens of its prompt that the text will lack; None without a store.
    """
    longest = max(len(row) for row in settings.bias)
    padded = [
        [*row.items(), *[(settings.vocab_size, 0.0)] * (longest - len(row))]
        for row in settings.bias
    ]
    ids = [[token for token, _ in row] for row in padded]
    known_BV = None
    if known is not None:
        known_BV = torch.zeros((len(known), settings.vocab_size), dtype=torch.bool)
        for known_V, row in zip(known_BV, known, strict=True):
            known_V[torch.tensor(row, dtype=torch.int64)] = True
    return Processors(
        torch.tensor(settings.repetition_B),
        torch.tensor(settings.presence_B),
        torch.tensor(settings.frequency_B),
        torch.tensor(settings.min_new_B),
        torch.tensor(ids, dtype=torch.int32),
        torch.tensor([[bias for _, bias in row] for row in padded], dtype=torch.float32),
        known_BV,
    )


def process(
    logits_BV: Float[Array, "B V"],
    processors: Processors,
    tokens_BS: Int[Array, "B S"],
    length_B: Int[Array, " B"],
    new_B: Int[Array, " B"],
    end_E: Int[Array, " E"],
) -> Float[Array, "B V"]:
    """Return the logits that tokens are taken from, in at least float32.

    A function of each row's own text, so that neighbours, padding and the steps before do not
    matter, and a text that was cut or copied needs nothing but itself.

    Args:
        logits_BV: The model's.
        processors: What each row wants.
        tokens_BS: int32 texts from the left; what stands beyond a length is not counted.
        length_B: int32, tokens of each text.
        new_B: int32, the last of them that are new.
        end_E: int32, end tokens; -1 for none.
    """
    wide_BV = logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32), copy=True)
    end_E = end_E[end_E >= 0].long()
    for b, logits_V in enumerate(wide_BV):
        text_T = tokens_BS[b, : int(length_B[b])].long()
        new_T = text_T[len(text_T) - int(new_B[b]) :]
        seen_T = text_T.unique()
        if processors.known_BV is not None:
            seen_T = torch.cat([text_T, processors.known_BV[b].nonzero().flatten()]).unique()
        is_bias_J = processors.bias_id_BJ[b] < len(logits_V)
        id_J, bias_J = processors.bias_id_BJ[b][is_bias_J], processors.bias_BJ[b][is_bias_J]
        logits_V[id_J.long()] += bias_J.to(logits_V.dtype)
        _penalize(logits_V, seen_T, float(processors.repetition_B[b]))
        used_T, count_T = new_T.unique(return_counts=True)
        logits_V[used_T] -= float(processors.frequency_B[b]) * count_T.to(logits_V.dtype)
        logits_V[used_T] -= float(processors.presence_B[b])
        if len(new_T) < int(processors.min_new_B[b]):
            logits_V[end_E] = -torch.inf
    return wide_BV


def _penalize(logits_V: Array, seen_T: Array, penalty: float) -> None:
    """Make seen tokens less likely, in place, whichever sign their logits have."""
    seen = logits_V[seen_T]
    logits_V[seen_T] = torch.where(seen < 0, seen * penalty, seen / penalty)
