"""What a request gave. Letters: B rows, S slots of the text."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from jaxkv.spec.errors import RequestError
from torchkv.caches import Cache
from torchkv.caches.prefix import Lease
from torchkv.loop import Text
from torchkv.per_row import is_whole
from torchkv.planning import Plan
from torchkv.prefixed import whole_rows
from torchkv.request import Request
from torchkv.stopping import Watch


@dataclass(frozen=True)
class Generated:
    """What a request gave.

    Attributes:
        tokens: Prompt and new ids of each row.
        new_tokens: New ids of each row; an end token that stopped the row is its last.
        length_B: int32, tokens of each row, prompt and new.
        forwarded_positions_B: int32, positions of each row that went through the model; beside an
            encoder, its decoder.
        compilations: None, nothing is compiled.
        cache: The cache after the last forward, with `keep_cache`. It holds all tokens but the last
            new one.
        logprobs: With `logprobs`, float32 for each new id: the natural logarithm of its probability
            under the model's own distribution, before temperature and filters.
        reused_B: int32, prompt tokens of each row that a prefix store knew already.
        top_ids: With `logprobs` of N, int32 [new, N] a row: the likeliest ids at each new token's
            place, the likeliest first.
        top_logprobs: Their log-probabilities, float32 [new, N] a row.
        texts: With `stop`, each row's new text, up to its stop string; the last characters may lack
            an id, which reached into the stop string.
        stopped: With `stop`, the string that ended each row, or None.
    """

    tokens: list[list[int]]
    new_tokens: list[list[int]]
    length_B: np.ndarray
    forwarded_positions_B: np.ndarray
    compilations: int | None
    cache: Cache | None
    logprobs: list[np.ndarray] | None
    reused_B: np.ndarray
    top_ids: list[np.ndarray] | None = None
    top_logprobs: list[np.ndarray] | None = None
    texts: list[str] | None = None
    stopped: list[str | None] | None = None


@torch.no_grad()
def nothing_new(request: Request, cache: Cache | None, *, logprobs: bool, top: int) -> Generated:
    """Return the result of a request without budget.

    Args:
        request: What was asked.
        cache: To return.
        logprobs: Whether they were wanted.
        top: Of how many of the likeliest tokens too.
    """
    found = request.plan
    counts = found.count_B.tolist()
    rows = [ids[:count] for ids, count in zip(found.ids_BT.tolist(), counts, strict=True)]
    nothing_B = np.zeros_like(found.count_B)
    return Generated(
        rows,
        [[] for _ in rows],
        found.count_B,
        nothing_B,
        None,
        cache,
        [np.zeros(0, np.float32) for _ in rows] if logprobs else None,
        nothing_B,
        top_ids=[np.zeros((0, top), np.int32) for _ in rows] if top else None,
        top_logprobs=[np.zeros((0, top), np.float32) for _ in rows] if top else None,
    )


def collect(
    found: Plan, lease: Lease | None, text: Text, compilations: int | None, cache: Cache | None
) -> Generated:
    """Return the result of finished texts.

    Args:
        found: What was asked.
        lease: Of a request on a store.
        text: As the loop left it.
        compilations: None: nothing is compiled here.
        cache: To return.
    """
    lengths, counts = text.length_B.tolist(), found.count_B.tolist()
    rows = [ids[:n] for ids, n in zip(text.tokens_BS.tolist(), lengths, strict=True)]

    def of_new(x: torch.Tensor) -> list[np.ndarray]:
        # Copies: a view would keep the tensor alive with the result.
        each = zip(x.cpu().numpy(), counts, lengths, strict=True)
        return [row[count:length].copy() for row, count, length in each]

    both = (text.length_B, text.forwarded_B)
    length_B, forwarded_B = (x_B.cpu().numpy().copy() for x_B in both)
    reused_B = np.zeros_like(found.count_B) if lease is None else lease.reused_B
    return Generated(
        whole_rows(lease, rows),
        [row[count:] for row, count in zip(rows, counts, strict=True)],
        length_B + reused_B,
        forwarded_B,
        compilations,
        cache,
        of_new(text.logprob_BS) if text.logprob_BS is not None else None,
        reused_B,
        top_ids=of_new(text.top.id_BSA) if text.top is not None else None,
        top_logprobs=of_new(text.top.logprob_BSA) if text.top is not None else None,
    )


def named(watch: Watch, done: Generated) -> Generated:
    """Return the result with its texts and the stop strings that ended them, if there are any."""
    if watch.stops is None:
        return done
    found = watch.found or [watch.stops.look(row, is_last=True) for row in done.new_tokens]
    texts, stopped = [each.text for each in found], [each.stop for each in found]
    return replace(done, texts=texts, stopped=stopped)


def plan_logprobs(function: str, logprobs: Any, vocab_size: int) -> tuple[bool, int]:
    """Return whether log-probabilities are wanted, and of how many of the likeliest tokens too.

    Args:
        function: For messages: whose argument it is.
        logprobs: False, True for the tokens taken alone, or a number.
        vocab_size: V.

    Raises:
        RequestError: The number is out of range.
    """
    if isinstance(logprobs, bool):
        return logprobs, 0
    if not is_whole(logprobs) or not 1 <= logprobs <= vocab_size:
        raise RequestError(
            f"{function}: logprobs is {logprobs!r}, expected True, False or a whole number from 1 "
            f"to {vocab_size}, the vocabulary."
        )
    return True, int(logprobs)
