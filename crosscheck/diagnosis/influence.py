"""Which fed token moves which cached logits: visibility measured from outside, with no access.

Every row of one batch has one token changed; what moves against the unchanged row was read. The
rules of the faults of masks and windows, followed through the layers, predict the same table.
Letters: T tokens of the text, L layers; p tokens held, w of a step.
"""

from collections.abc import Callable, Iterator
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from crosscheck.diagnosis.trial import Trial
from crosscheck.results import Diagnosis

TOKENS = 6
# A change that moves a logit by less than this share of the largest is rounding.
RTOL = 1e-7

Rule = Callable[[NDArray, NDArray, int], NDArray]


def _causal(query_w1: NDArray, key_S: NDArray, held: int) -> NDArray:
    return key_S <= query_w1


RULES: tuple[tuple[str, Rule], ...] = (
    ("", _causal),
    ("mask.top_left", lambda q, k, p: k <= q - p),
    # is_causal=T > 1: a step of one token reads everything.
    ("mask.top_left", lambda q, k, p: (k <= q - p) if len(q) > 1 else k <= q),
    ("mask.none", lambda q, k, p: k >= 0 * q),
    ("mask.none.later", lambda q, k, p: (k >= 0 * q) if p else k <= q),
    ("mask.off_by_one", lambda q, k, p: k <= q + bool(p)),
    ("mask.prompt_hidden", lambda q, k, p: (k <= q) & (k >= p)),
)


def influenced(trial: Trial) -> Iterator[Diagnosis]:
    """Name the rule whose table is the one that is measured, and not that of a right cache."""
    info = trial.info
    # Within every window, so that no rule leaves a token without anything to read.
    t = min([TOKENS, *(window for window in info.windows if window)])
    if "cache" not in info.capabilities or info.num_layers < 1 or t < 4:
        return
    cuts = [(1,) * t]
    if "chunk" in info.capabilities:
        cuts += [(2, 1, t - 3), (1, t - 1), (t - 2, 2)]
    if (
        trial.right.can_tell
        and info.num_layers > 1
        and (trial.first is None or not trial.first.layer)
    ):
        # A wrong mask leaves the entries of layer 0 right, and those of layer 1 wrong.
        return
    measured = [_measured(trial, cut) for cut in cuts]
    fits = [
        name
        for name, rule in RULES
        if all(
            np.array_equal(_predicted(trial, rule, c), m)
            for c, m in zip(cuts, measured, strict=True)
        )
    ]
    if not fits or "" in fits:
        return
    words = "measured from outside, each token reads what this rule lets it read, in every step"
    for name in fits:
        yield Diagnosis(name, 0.85 if len(fits) == 1 else 0.7, words)


def overrun(trial: Trial) -> Iterator[Diagnosis]:
    """A step that wraps a ring reads all of it: its own later tokens, not what they displaced."""
    info, windows = trial.info, set(trial.info.windows)
    window = next(iter(windows)) if len(windows) == 1 else None
    if not window or window < 3 or not info.capabilities >= {"cache", "chunk"}:
        return

    def whole_ring(query_w1: NDArray, key_S: NDArray, held: int) -> NDArray:
        first = held + len(query_w1) - window
        return (key_S >= first + 0 * query_w1) if first > 0 else key_S <= query_w1

    cut = (window - 1, 2, 1)
    if np.array_equal(_predicted(trial, whole_ring, cut), _measured(trial, cut)):
        words = f"a step that wraps the ring of {window} reads all of it, its own later tokens too"
        yield Diagnosis("mask.none.later", 0.9, words)


def _measured(trial: Trial, cut: tuple[int, ...]) -> NDArray:
    """Return bool [T, T]: whether changing token j moves the logits of token i."""
    info, t = trial.info, sum(cut)
    span = info.vocab_size - info.first_id
    text_T = (np.arange(t) * 7 + trial.case.seed) % span
    ids_BT = np.tile(text_T, (t + 1, 1))
    ids_BT[np.arange(t), np.arange(t)] += 1 + span // 2
    ids_BT = (ids_BT % span + info.first_id).astype(np.int32)
    state, parts = trial.candidate.init(t + 1, 32), []
    for start, size in zip((0, *accumulate(cut)), cut, strict=False):
        logits, state = trial.candidate.step(state, ids_BT[:, start : start + size].copy())
        parts.append(np.array(logits))
    logits_BTV = np.concatenate(parts, axis=1)
    moved_JT = np.abs(logits_BTV[:t] - logits_BTV[t]).max(axis=2)
    return (moved_JT > RTOL * np.abs(logits_BTV[t]).max()).T


def _predicted(trial: Trial, rule: Rule, cut: tuple[int, ...]) -> NDArray:
    """Return the table that a rule gives, through all layers and their windows."""
    t, windows = sum(cut), trial.info.windows or (None,) * trial.info.num_layers
    table_TT = np.eye(t, dtype=np.bool_)
    for window in windows:
        below_TT = table_TT.copy()
        for held, size in zip((0, *accumulate(cut)), cut, strict=False):
            query_w1 = held + np.arange(size)[:, None]
            key_S = np.arange(held + size)
            sees_wS = np.broadcast_to(rule(query_w1, key_S, held), (size, held + size))
            if window is not None:
                sees_wS = sees_wS & (key_S > query_w1 - window)
            read_wT = (sees_wS.astype(int) @ below_TT[: held + size].astype(int)) > 0
            table_TT[held : held + size] |= read_wT
    return table_TT
