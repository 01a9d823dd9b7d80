"""Logits -> logits that know the text so far. Letters: B rows, S slots, V vocabulary, J biases.

Rules and order are those of transformers 5.24 (generation/logits_process.py, and
`_get_logits_processor` of generation/utils.py): bias, repetition penalty, minimum length. The two
penalties that it lacks come after its own, as in vLLM (model_executor/layers/utils.py,
`apply_penalties`), by the formula of the OpenAI API reference: over the new tokens alone,
logit - frequency * count - presence * (count > 0).
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxkv.processor_settings import ProcessorSettings
from jaxkv.pytree import pytree


@pytree
class Processors:
    """Of each row what its own text does to its logits; all traced.

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
    batch, vocabulary = len(settings.bias), settings.vocab_size
    longest = max(map(len, settings.bias))
    # Padded to a power of 2, so that another number of biases rarely means another program.
    width = max(4, 1 << (longest - 1).bit_length()) if longest else 4
    id_BJ = np.full((batch, width), vocabulary, np.int32)
    bias_BJ = np.zeros((batch, width), np.float32)
    for b, row in enumerate(settings.bias):
        id_BJ[b, : len(row)], bias_BJ[b, : len(row)] = list(row), list(row.values())
    known_BV = None
    if known is not None:
        known_BV = np.zeros((batch, vocabulary), bool)
        for b, row in enumerate(known):
            known_BV[b, list(row)] = True
    return Processors(
        jnp.asarray(settings.repetition_B),
        jnp.asarray(settings.presence_B),
        jnp.asarray(settings.frequency_B),
        jnp.asarray(settings.min_new_B),
        jnp.asarray(id_BJ),
        jnp.asarray(bias_BJ),
        None if known_BV is None else jnp.asarray(known_BV),
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

    Cost: counts S tokens into two rows of V a row.
    """
    logits_BV = logits_BV.astype(jnp.promote_types(logits_BV.dtype, jnp.float32))
    batch, vocabulary = logits_BV.shape
    row_B1 = jnp.arange(batch, dtype=jnp.int32)[:, None]
    place_1S = jnp.arange(tokens_BS.shape[1], dtype=jnp.int32)[None]
    is_text_BS = place_1S < length_B[:, None]
    is_new_BS = is_text_BS & (place_1S >= (length_B - new_B)[:, None])

    def own(x_B: Array) -> Array:
        return x_B[:, None].astype(logits_BV.dtype)

    seen_BV = _count(tokens_BS, is_text_BS, vocabulary) > 0
    seen_BV = seen_BV if processors.known_BV is None else seen_BV | processors.known_BV
    count_BV = _count(tokens_BS, is_new_BS, vocabulary).astype(logits_BV.dtype)
    biased_BV = logits_BV.at[row_B1, processors.bias_id_BJ].add(
        processors.bias_BJ.astype(logits_BV.dtype), mode="drop"
    )
    repeated = own(processors.repetition_B)
    less_BV = jnp.where(biased_BV > 0, biased_BV / repeated, biased_BV * repeated)
    left_BV = jnp.where(seen_BV, less_BV, biased_BV)
    left_BV -= own(processors.frequency_B) * count_BV
    left_BV -= own(processors.presence_B) * (count_BV > 0)
    # An index of -1 would mean the last token.
    is_end_V = (
        jnp.zeros(vocabulary, bool)
        .at[jnp.where(end_E < 0, vocabulary, end_E)]
        .set(True, mode="drop")
    )
    is_barred_BV = (new_B < processors.min_new_B)[:, None] & is_end_V
    return jnp.where(is_barred_BV, jnp.array(-jnp.inf, logits_BV.dtype), left_BV)


def _count(tokens_BS: Array, counts_BS: Array, vocabulary: int) -> Array:
    """Return int32 [B, V]: how often each row has each token among those that count."""
    row_B1 = jnp.arange(tokens_BS.shape[0], dtype=jnp.int32)[:, None]
    none_BV = jnp.zeros((tokens_BS.shape[0], vocabulary), jnp.int32)
    return none_BV.at[row_B1, tokens_BS].add(counts_BS.astype(jnp.int32))
