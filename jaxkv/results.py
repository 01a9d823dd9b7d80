"""What a request gave. Letters: B rows, S slots of the text."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxkv.caches import Cache
from jaxkv.caches.prefix import Lease
from jaxkv.loop import Text
from jaxkv.per_row import is_whole
from jaxkv.planning import Plan
from jaxkv.prefixed import whole_rows
from jaxkv.request import Request
from jaxkv.spec.errors import RequestError
from jaxkv.stopping import Watch


@dataclass(frozen=True)
class Generated:
    """What a request gave.

    Attributes:
        tokens: Prompt and new ids of each row.
        new_tokens: New ids of each row; an end token that stopped the row is its last.
        length_B: int32, tokens of each row, prompt and new.
        forwarded_positions_B: int32, positions of each row that went through the model; beside an
            encoder, its decoder.
        compilations: Programs traced for this call; None for a twin that compiles nothing.
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


def nothing_new(request: Request, cache: Cache | None, *, logprobs: bool, top: int) -> Generated:
    """Return the result of a request without budget.

    Args:
        request: What was asked.
        cache: To return.
        logprobs: Whether they were wanted.
        top: Of how many of the likeliest tokens too.
    """
    found = request.plan
    pairs = zip(found.ids_BT, found.count_B, strict=True)
    rows = [row[:count].tolist() for row, count in pairs]
    none = [np.zeros(0, np.float32) for _ in rows] if logprobs else None
    nothing_B = np.zeros_like(found.count_B)
    done = Generated(rows, [[] for _ in rows], found.count_B, nothing_B, 0, cache, none, nothing_B)
    if not top:
        return done
    ids = [np.zeros((0, top), np.int32) for _ in rows]
    return replace(done, top_ids=ids, top_logprobs=[each.astype(np.float32) for each in ids])


def collect(
    found: Plan, lease: Lease | None, text: Text, compilations: int, cache: Cache | None
) -> Generated:
    """Return the result of finished texts.

    Args:
        found: What was asked.
        lease: Of a request on a store.
        text: As the loop left it.
        compilations: Programs traced.
        cache: To return.
    """
    length_B = np.asarray(text.length_B)
    spans = list(zip(found.count_B.tolist(), length_B.tolist(), strict=True))

    def new(x: Any) -> list[np.ndarray]:
        # A copy: a view would keep the device array alive with the result.
        return [row[a:b].copy() for row, (a, b) in zip(np.asarray(x), spans, strict=True)]

    tokens = zip(np.asarray(text.tokens_BS), spans, strict=True)
    rows = [row[:end].tolist() for row, (_, end) in tokens]
    reused_B = np.zeros_like(found.count_B) if lease is None else lease.reused_B
    return Generated(
        whole_rows(lease, rows),
        [row[count:] for row, (count, _) in zip(rows, spans, strict=True)],
        length_B + reused_B,
        np.array(text.forwarded_B),
        compilations,
        cache,
        None if text.logprob_BS is None else new(text.logprob_BS),
        reused_B,
        None if text.top is None else new(text.top.id_BSA),
        None if text.top is None else new(text.top.logprob_BSA),
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
