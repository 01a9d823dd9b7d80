"""A quantized cache stays within its bound, and what it has not yet quantized is exact."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from crosscheck.errors import Refused
from crosscheck.programs.case import Case
from crosscheck.relations.drive import encoder_of, full, run, sizes_of
from crosscheck.relations.entries import bound_of, entries, is_invariant, loose
from crosscheck.relations.registry import Sides, relation
from crosscheck.relations.texts import appends, draw, partitions, some_partitions
from crosscheck.subjects.protocol import SubjectInfo, describe
from crosscheck.tolerance import bounded, semantic


def _quant_cases(info: SubjectInfo, seed: int) -> Iterator[Case]:
    ids = draw(info, seed)
    for sizes in partitions(info, ids.shape[1])[:6]:
        yield Case(ids, appends(sizes), seed=seed, meta={"part": "bound"})
    yield Case(ids, appends((ids.shape[1],)), seed=seed, meta={"part": "residual"})
    if "quant_invariant" in info.capabilities:
        for sizes in some_partitions(info, ids.shape[1]):
            yield Case(ids, appends(sizes), seed=seed, meta={"part": "own"})


@relation(
    name="quant.bound",
    needs={"cache", "quant"},
    cases=_quant_cases,
    level=bounded(1.0),
    catches={"quant.zero_point", "quant.axis"},
)
def quant_bound(candidate: Any, reference: Any, case: Case) -> Sides:
    """A quantized cache is within its bound of the exact one; its residual tokens are exact.

    Both sides are divided by the bound of their point, so that 1 is what is allowed. Few bits have
    a bound too wide to tell some faults of codes: where every cut of a text gives one function, the
    codes are held to that too.

    Raises:
        Refused: The case asks for the residual and the subject has no `quant_residual`.
    """
    exact = reference.variant("exact") if _quantized(reference) else reference
    if case.meta["part"] == "residual":
        return _residual(candidate, exact, case)
    if case.meta["part"] == "own":
        return _own(candidate, reference if is_invariant(reference) else candidate, case)
    (batch, t), sizes = case.ids.shape, sizes_of(case)
    encoder = encoder_of(candidate, batch, case.seed)
    sides = []
    for subject in (candidate, exact):
        fed = run(subject, case.ids, sizes, encoder=encoder)
        sides.append({**entries(subject, fed.state, t).points, "logits": fed.logits_BTV})
    left, right = (
        {name: side[name] / eps for name, eps in bound_of(candidate).items() if name in sides[1]}
        for side in sides
    )
    return Sides(
        left,
        right,
        words=("quantized, in units of its bound", "exact"),
        meta={"sizes": sizes, "bound": bound_of(candidate)},
    )


def _quantized(subject: Any) -> bool:
    return "quant" in describe(subject).capabilities


def _residual(candidate: Any, exact: Any, case: Case) -> Sides:
    residual = getattr(candidate, "quant_residual", None)
    if residual is None:
        raise Refused(f"{describe(candidate).name} does not say how many tokens stay exact.")
    n = min(int(residual()), case.ids.shape[1])
    if not n:
        raise Refused(f"{describe(candidate).name} keeps no token exact.")
    encoder = encoder_of(candidate, len(case.ids), case.seed)
    left, right = (
        run(subject, case.ids[:, :n], (1,) * n, encoder=encoder).logits_BTV
        for subject in (candidate, exact)
    )
    exactly = semantic() if left.dtype == np.float64 else None
    return Sides({"logits": left}, {"logits": right}, words=("residual", "exact"), level=exactly)


def _own(candidate: Any, reference: Any, case: Case) -> Sides:
    sizes, encoder = sizes_of(case), encoder_of(candidate, len(case.ids), case.seed)
    fed = run(candidate, case.ids, sizes, encoder=encoder)
    sides = Sides(
        {"logits": fed.logits_BTV},
        {"logits": full(reference, case.ids, encoder=encoder)},
        chunks=fed.starts,
        words=(f"chunks {','.join(map(str, sizes))}", "one step"),
        meta={"sizes": sizes},
        level=semantic(),
    )
    return loose(candidate, reference, sides)
