"""Greedy decoding with drafts is greedy decoding, whatever the drafts are.

Letters: B rows, T tokens, V vocabulary.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.programs.case import Case
from crosscheck.relations.drive import full, refusing, start
from crosscheck.relations.entries import loose
from crosscheck.relations.registry import Sides, relation
from crosscheck.relations.texts import draw
from crosscheck.subjects.protocol import SubjectInfo, describe

NEW, PROMPTS, ROWS = 6, 12, 2
# Tokens of a text with its drafts.
LONGEST = 21
Draft = Callable[[NDArray, int], NDArray]


def _draft_cases(info: SubjectInfo, seed: int) -> Iterator[Case]:
    small = min([w for w in info.windows if w], default=99)
    ids = draw(info, seed, batch=PROMPTS, tokens=max(1, min(7, small - 3)))
    for k, kind in ((3, "mixed"), (2, "none"), (3, "all"), (1, "mixed"), (5, "mixed"), (5, "all")):
        yield Case(ids, seed=seed, meta={"k": k, "draft": kind})


def _decoder_alone(info: SubjectInfo) -> str | None:
    if "cross" in info.capabilities:
        return "drafts are not verified under an encoder"
    if info.steady is not None and info.steady < LONGEST:
        return f"from {info.steady} tokens on the steps of verifying are not those of greedy ids"
    return None


@relation(
    name="spec.greedy",
    needs={"cache", "chunk", "rollback"},
    cases=_draft_cases,
    applies=_decoder_alone,
    restepped=True,
    catches={"spec.leak", "spec.bonus"},
)
def spec_greedy(candidate: Any, reference: Any, case: Case) -> Sides:
    """Drafting and verifying gives the greedy ids, for right, wrong and mixed drafts of any k.

    Compared are the reference's logit of each id that was chosen and its largest logit there, so
    that a tie within the tolerance is one. Without a `speculate` of its own, the subject's step and
    rollback are driven.

    Raises:
        Refused: The subject raised at the rollback, as a ring may.
    """
    k, info, prompt = int(case.meta["k"]), describe(candidate), case.ids.shape[1]
    wanted = _varied(_greedy(reference, case.ids, NEW + k + 2), prompt)
    ids = wanted[:, :prompt]
    draft = _drafting(wanted, prompt, case.meta["draft"], info)
    if "speculate" in info.capabilities:
        made = refusing(
            info, f"drafts of {k}", lambda: candidate.speculate(ids.copy(), NEW, draft, k)
        )
    else:
        made = _speculate(candidate, ids, NEW, draft, k)
    new = np.asarray(made)[:, prompt:]
    logits = full(reference, np.concatenate([ids, new], axis=1))[:, prompt - 1 : -1]
    chosen = np.take_along_axis(logits, new[..., None].astype(np.int64), axis=2)
    # Places are those of the text, of the token after which an id was chosen.
    lead = ((0, 0), (prompt - 1, 0), (0, 0))
    best = logits.max(axis=2, keepdims=True)
    valid = np.broadcast_to(np.arange(prompt - 1 + NEW) >= prompt - 1, (len(ids), prompt - 1 + NEW))
    sides = Sides(
        {"logits": np.pad(chosen, lead)},
        {"logits": np.pad(best, lead)},
        valid,
        words=(f"{case.meta['draft']} drafts of {k}", "greedy"),
        meta={
            "k": k,
            "draft": case.meta["draft"],
            "ids": new.tolist(),
            "greedy": wanted[:, prompt : NEW + prompt].tolist(),
        },
    )
    return loose(candidate, reference, sides, exact_right=True)


def _greedy(reference: Any, ids: NDArray, new: int) -> NDArray:
    for _ in range(new):
        chosen = full(reference, ids)[:, -1].argmax(axis=-1)
        ids = np.concatenate([ids, chosen[:, None].astype(ids.dtype)], axis=1)
    return ids


def _varied(wanted: NDArray, prompt: int) -> NDArray:
    """Return the rows whose greedy ids change most: in a constant text no shift is seen."""
    new = wanted[:, prompt - 1 :]
    changes = (new[:, 1:] != new[:, :-1]).sum(axis=1)
    return wanted[np.argsort(-changes, kind="stable")[:ROWS]]


def _drafting(wanted: NDArray, prompt: int, kind: str, info: SubjectInfo) -> Draft:
    """Return a drafter that is right always, never, or at every third id not."""

    def draft(text: NDArray, k: int) -> NDArray:
        n = text.shape[1]
        row = int(np.argmax((wanted[:, :prompt] == text[0, :prompt]).all(axis=1)))
        right = np.resize(wanted[row, n:], k) if n < wanted.shape[1] else np.zeros(k, np.int64)
        span = info.vocab_size - info.first_id
        wrong = (right - info.first_id + 1) % span + info.first_id
        late = (np.arange(n, n + k) % 3 == 2) if kind == "mixed" else np.full(k, kind == "none")
        return np.where(late, wrong, right)[None]

    return draft


def _speculate(subject: Any, ids: NDArray, new: int, draft: Draft, k: int) -> NDArray:
    """Return ids [B, T + new]: verify k drafts a step, keep what agrees, roll the rest back."""
    return np.stack([_one(subject, row.tolist(), new, draft, k) for row in ids])


def _one(subject: Any, text: list[int], new: int, draft: Draft, k: int) -> NDArray:
    wanted = len(text) + new
    state = start(subject, 1, wanted + k + 1)
    if len(text) > 1:
        _, state = subject.step(state, np.array([text[:-1]], np.int32))
    while len(text) < wanted:
        drafted = draft(np.array([text]), k)[0].tolist()
        logits, state = subject.step(state, np.array([[text[-1], *drafted]], np.int32))
        chosen = np.argmax(logits[0], axis=-1).tolist()
        agree = next((i for i in range(k) if drafted[i] != chosen[i]), k)
        text = [*text, *drafted[:agree], chosen[agree]]
        if agree < k:
            state = _taken_back(subject, state, len(text) - 1)
    return np.array(text[:wanted])


def _taken_back(subject: Any, state: Any, keep: int) -> Any:
    return refusing(
        describe(subject),
        f"rollback to {keep}",
        lambda: subject.rollback(state, np.array([keep])),
    )
