"""One function in two forms: heads grouped, latents absorbed, a layout, a compiled step."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from crosscheck.programs.case import Case
from crosscheck.relations.drive import encoder_of, full, run, sizes_of
from crosscheck.relations.entries import entries, loose, pair
from crosscheck.relations.registry import Sides, relation
from crosscheck.relations.texts import appends, draw, some_partitions
from crosscheck.subjects.protocol import SubjectInfo, describe


def _form_cases(info: SubjectInfo, seed: int) -> Iterator[Case]:
    ids = draw(info, seed)
    for sizes in some_partitions(info, ids.shape[1]):
        yield Case(ids, appends(sizes), seed=seed)


def _variant(subject: Any, other: Any, name: str) -> Any:
    """Return the subject's variant, or the other's where the subject has none of this name."""
    return (subject if name in describe(subject).variants else other).variant(name)


def _same(left: Any, right: Any, case: Case, candidate: Any, words: tuple[str, str]) -> Sides:
    encoder, sizes = encoder_of(candidate, len(case.ids), case.seed), sizes_of(case)
    fed = run(left, case.ids, sizes, encoder=encoder)
    sides = Sides(
        {"full": full(left, case.ids, encoder=encoder), "logits": fed.logits_BTV},
        {
            "full": full(right, case.ids, encoder=encoder),
            "logits": run(right, case.ids, sizes, encoder=encoder).logits_BTV,
        },
        chunks=fed.starts,
        words=words,
        meta={"sizes": sizes},
    )
    return loose(candidate, right, sides)


@relation(
    name="gqa.mha",
    needs={"cache", "gqa"},
    cases=_form_cases,
    catches={"gqa.tile"},
)
def gqa_mha(candidate: Any, reference: Any, case: Case) -> Sides:
    """Grouped heads give what the same heads give repeated: group g of head n is n // G."""
    right = _variant(reference, candidate, "gqa_as_mha")
    return _same(candidate, right, case, candidate, ("grouped", "repeated"))


@relation(
    name="mla.absorbed",
    needs={"cache", "mla"},
    cases=_form_cases,
    catches={"mla.scale"},
)
def mla_absorbed(candidate: Any, reference: Any, case: Case) -> Sides:
    """Latent attention with absorbed projections gives what the expanded keys and values give."""
    right = _variant(reference, candidate, "mla_naive")
    return _same(candidate, right, case, candidate, ("absorbed", "expanded"))


def _layout_cases(info: SubjectInfo, seed: int) -> Iterator[Case]:
    for name in (name for name in info.variants if name.startswith("layout_")):
        for case in _form_cases(info, seed):
            yield Case(case.ids, case.ops, seed=seed, meta={"layout": name})


@relation(
    name="layout.equal",
    needs={"cache", "layouts"},
    cases=_layout_cases,
    catches={"layout.transposed"},
)
def layout_equal(candidate: Any, reference: Any, case: Case) -> Sides:
    """Every layout of the cache holds the same entries and gives the same logits."""
    name, (batch, t), sizes = case.meta["layout"], case.ids.shape, sizes_of(case)
    encoder = encoder_of(candidate, batch, case.seed)
    other = reference if "cache" in describe(reference).capabilities else candidate
    subject = candidate.variant(name)
    left = run(subject, case.ids, sizes, encoder=encoder)
    right = run(other, case.ids, sizes, encoder=encoder)
    points = pair(
        entries(subject, left.state, t), entries(other, right.state, t), describe(subject), t
    )
    sides = Sides(
        {**points[0], "logits": left.logits_BTV},
        {**points[1], "logits": right.logits_BTV},
        chunks=left.starts,
        words=(name, describe(other).name),
        meta={"layout": name, "sizes": sizes},
    )
    return loose(candidate, reference, sides)


@relation(
    name="jit.equal",
    needs={"cache", "jit"},
    cases=_form_cases,
    catches={"jit.stale"},
)
def jit_equal(candidate: Any, reference: Any, case: Case) -> Sides:
    """The compiled form gives the logits of the eager one, and the same steps compile nothing anew.

    The second half is checked where the compiled variant has `compilations() -> int`.
    """
    compiled = candidate.variant("jit")
    eager = _variant(reference, candidate, "eager")
    encoder, sizes = encoder_of(candidate, len(case.ids), case.seed), sizes_of(case)
    count: Callable[[], int] = getattr(compiled, "compilations", lambda: 0)
    left = {"full": full(compiled, case.ids, encoder=encoder)}
    fed = run(compiled, case.ids, sizes, encoder=encoder)
    before = count()
    again = run(compiled, case.ids, sizes, encoder=encoder)
    right = run(eager, case.ids, sizes, encoder=encoder).logits_BTV
    sides = Sides(
        {
            **left,
            "compilations": np.full((1, 1), float(count())),
            "first": fed.logits_BTV,
            "logits": again.logits_BTV,
        },
        {
            "full": full(eager, case.ids, encoder=encoder),
            "compilations": np.full((1, 1), float(before)),
            "first": right,
            "logits": right,
        },
        chunks=fed.starts,
        words=("compiled", "eager"),
        meta={"sizes": sizes},
    )
    return loose(candidate, reference, sides)
