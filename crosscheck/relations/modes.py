"""The subject is one function: the same answer twice, and the same function as its twin."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.errors import Refused
from crosscheck.programs.case import Case
from crosscheck.relations.drive import encoder_of, full, run, sizes_of
from crosscheck.relations.entries import entries, pair
from crosscheck.relations.registry import Sides, relation
from crosscheck.relations.texts import appends, draw, some_partitions
from crosscheck.subjects.protocol import SubjectInfo, describe
from crosscheck.tolerance import bitwise


def _two_texts(info: SubjectInfo, seed: int) -> Iterator[Case]:
    ids = draw(info, seed, batch=4)
    sizes = some_partitions(info, ids.shape[1])[0] if "cache" in info.capabilities else ()
    yield Case(ids, appends(sizes or (ids.shape[1],)), seed=seed)


@relation(
    name="mode.stale",
    needs=(),
    cases=_two_texts,
    level=bitwise(),
    catches={"model.stale", "train.dropout"},
)
def mode_stale(candidate: Any, _reference: Any, case: Case) -> Sides:
    """A text gives the same bits again after another one, and its ids stay as they were given."""
    half = len(case.ids) // 2
    ids, other = case.ids[:half], case.ids[half:]
    encoder, given = encoder_of(candidate, half, case.seed), ids.copy()
    first = _answers(candidate, given, case, encoder)
    _answers(candidate, other.copy(), case, encoder)
    again = _answers(candidate, ids.copy(), case, encoder)
    return Sides(
        {"ids": given, **again},
        {"ids": ids, **first},
        words=("again", "at first"),
        meta={"sizes": sizes_of(case)},
    )


def _answers(subject: Any, ids: NDArray, case: Case, encoder: NDArray | None) -> dict[str, NDArray]:
    """Return copies: a subject may hand out the buffer that its next call overwrites."""
    options = {} if encoder is None else {"encoder": encoder.copy()}
    answers = {"full": np.array(subject.full(ids, **options))}
    if "cache" not in describe(subject).capabilities:
        return {"logits": answers["full"]}
    return {**answers, "logits": run(subject, ids, sizes_of(case), encoder=encoder).logits_BTV}


def _one_text(info: SubjectInfo, seed: int) -> Iterator[Case]:
    ids = draw(info, seed)
    yield Case(ids, appends((ids.shape[1],)), seed=seed)


@relation(
    name="weights.tied",
    needs=(),
    cases=_one_text,
    parity=True,
    catches={"weights.untied"},
)
def weights_tied(candidate: Any, reference: Any, case: Case) -> Sides:
    """Two subjects with the same weights agree at every point that both can show, layer by layer.

    Raises:
        Refused: Their vocabularies differ in size: they are no twins.
    """
    infos = describe(candidate), describe(reference)
    if infos[0].vocab_size != infos[1].vocab_size:
        raise Refused(
            f"weights.tied: {infos[0].name} has {infos[0].vocab_size} ids, "
            f"{infos[1].name} {infos[1].vocab_size}."
        )
    encoder, t = encoder_of(candidate, len(case.ids), case.seed), case.ids.shape[1]
    points: list[dict[str, NDArray]] = [{}, {}]
    if all("capture" in info.capabilities for info in infos) and encoder is None:
        seen = [subject.capture(case.ids.copy()) for subject in (candidate, reference)]
        names = [name for name in seen[0] if name in seen[1] and name != "logits"]
        points = [{name: np.asarray(side[name]) for name in names} for side in seen]
    elif all({"cache", "kv"} <= info.capabilities for info in infos):
        held = [
            entries(subject, run(subject, case.ids, (t,), encoder=encoder).state, t)
            for subject in (candidate, reference)
        ]
        points = list(pair(held[0], held[1], infos[0], t))
    left, right = (
        {**side, "logits": full(subject, case.ids, encoder=encoder)}
        for side, subject in zip(points, (candidate, reference), strict=True)
    )
    return Sides(left, right, words=(infos[0].name, infos[1].name))
