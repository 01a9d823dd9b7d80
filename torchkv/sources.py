"""The texts that an encoder reads, checked on the host, and what a decoder starts from then.

Letters: B rows, E tokens of the longest text with padding.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxkv.spec.config import Encoder, ModelConfig
from jaxkv.spec.errors import CapacityError, RequestError, ShapeError

SMALLEST_SOURCE = 16


@dataclass(frozen=True)
class Sources:
    """Checked texts, every one from the left.

    Attributes:
        ids_BE: int32, padded with 0 to a bucket's width.
        count_B: int32, tokens of each text.
    """

    ids_BE: np.ndarray
    count_B: np.ndarray


def plan_sources(
    config: ModelConfig, encoder: Any, mask_BE: Any, *, has_cache: bool
) -> Sources | None:
    """Return the checked texts, None where nothing is to be encoded.

    Args:
        config: The model's.
        encoder: One sequence of ids a row, of any lengths; or one array [B, E] with `mask_BE`.
        mask_BE: Which ids of an array are real; padding may stand on either side of a text.
        has_cache: Whether a cache is given, which holds what its encoder read.

    Raises:
        RequestError: Texts are missing, are not asked for, or hold something else than ids.
        ShapeError: encoder or mask_BE is not [batch, time].
        CapacityError: A text is longer than the encoder's positions.
    """
    if config.encoder is None:
        if encoder is not None or mask_BE is not None:
            raise RequestError(
                f"plan: encoder is given, expected none: family {config.family!r} has no encoder. "
                "Give the text as prompts."
            )
        return None
    if has_cache:
        if encoder is not None:
            raise RequestError(
                "plan: encoder is given beside a cache, which holds what its encoder read. Leave "
                "out one of them."
            )
        return None
    if encoder is None or len(encoder) == 0:
        raise RequestError(
            f"plan: encoder is {'None' if encoder is None else 'empty'}, expected the ids of a "
            f"text for each row: family {config.family!r} attends to what its encoder has read. "
            "Give encoder=[ids, ...]."
        )
    texts = _split(encoder) if mask_BE is None else _unpad(encoder, mask_BE)
    for b, ids_E in enumerate(texts):
        _check(b, ids_E, config.encoder, config.vocab_size)
    counts = [len(ids_E) for ids_E in texts]
    doublings = max(0, (-(-max(counts) // SMALLEST_SOURCE) - 1).bit_length())
    width = min(SMALLEST_SOURCE << doublings, config.encoder.max_positions)
    ids_BE = np.zeros((len(texts), width), np.int32)
    for into_E, ids_E in zip(ids_BE, texts, strict=True):
        into_E[: len(ids_E)] = ids_E
    return Sources(ids_BE, np.array(counts, np.int32))


def start_prompts(config: ModelConfig, prompts: Any, sources: Sources | None) -> Any:
    """Return the prompts, or where there are none what the decoder of each text starts with.

    Raises:
        RequestError: There are none, and no texts to count rows by.
        ShapeError: Their number is not that of the texts.
    """
    if prompts is None and sources is not None and config.encoder is not None:
        return [list(config.encoder.start_ids)] * len(sources.count_B)
    if prompts is None:
        raise RequestError(
            "plan: prompts is None, expected one sequence of ids a row. Only a model with an "
            "encoder, and without a cache, has something to start from."
        )
    if sources is not None and len(prompts) != len(sources.count_B):
        raise ShapeError(
            f"plan: {len(prompts)} prompts for {len(sources.count_B)} texts of encoder. Give one "
            "prompt a text."
        )
    return prompts


def _split(encoder: Any) -> list[np.ndarray]:
    texts = [np.asarray(ids) for ids in encoder]
    for b, ids_E in enumerate(texts):
        if ids_E.ndim != 1:
            raise ShapeError(
                f"plan: encoder[{b}] has {ids_E.ndim} axes, expected 1: texts are [batch, time]."
            )
    return texts


def _unpad(encoder: Any, mask_BE: Any) -> list[np.ndarray]:
    ids_BE, real_BE = np.asarray(encoder), np.asarray(mask_BE, bool)
    if ids_BE.ndim != 2 or ids_BE.shape != real_BE.shape:
        raise ShapeError(
            f"plan: encoder_mask_BE has shape {real_BE.shape}, encoder {ids_BE.shape}; both must "
            "be [batch, time]."
        )
    texts = []
    for b, (ids_E, real_E) in enumerate(zip(ids_BE, real_BE, strict=True)):
        places = np.flatnonzero(real_E).tolist()
        if places and places[-1] - places[0] >= len(places):
            raise RequestError(
                f"plan: encoder_mask_BE[{b}] has a gap after token {places[0]}. Padding must "
                "stand at the ends."
            )
        texts.append(ids_E[real_E])
    return texts


def _check(b: int, row: np.ndarray, encoder: Encoder, vocab_size: int) -> None:
    if len(row) == 0 or row.dtype.kind not in "iu":
        raise RequestError(
            f"plan: encoder[{b}] is {row.tolist()!r:.40}, expected at least 1 token id."
        )
    excess = len(row) - encoder.max_positions
    if excess > 0:
        raise CapacityError(
            f"plan: encoder[{b}] has {len(row)} tokens, expected at most {encoder.max_positions}, "
            f"the encoder's positions. Shorten it by {excess}."
        )
    outside = np.flatnonzero((row < 0) | (row >= vocab_size))
    if len(outside):
        t = int(outside[0])
        raise RequestError(
            f"plan: encoder[{b}][{t}] is {int(row[t])}, expected 0 to {vocab_size - 1} "
            "(the model's vocabulary). Was the text encoded with this model's tokenizer?"
        )
