"""Where pages lie and whose they were changes nothing: page tables and shared prefixes."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from crosscheck.errors import Refused
from crosscheck.programs.case import Append, Case, PermutePages
from crosscheck.relations.drive import (
    cached_or_full,
    encoder_of,
    full,
    sizes_of,
    start,
)
from crosscheck.relations.entries import entries, loose, pair
from crosscheck.relations.levels import stateful
from crosscheck.relations.registry import Sides, relation
from crosscheck.relations.texts import appends, draw, some_partitions
from crosscheck.subjects.protocol import SubjectInfo, describe

PAGE_SIZES = (1, 3, 4, 16)


def _page_cases(info: SubjectInfo, seed: int) -> Iterator[Case]:
    ids = draw(info, seed, batch=3)
    t = ids.shape[1]
    for sizes in some_partitions(info, t):
        for order in range(2):
            ops = [op for n in sizes for op in (Append(n), PermutePages(seed + order))]
            yield Case(ids, tuple(ops), seed=seed)
    for page_size in PAGE_SIZES:
        sizes = some_partitions(info, t)[0]
        yield Case(ids, appends(sizes), seed=seed, meta={"page_size": page_size})


@relation(
    name="page.permute",
    needs={"cache", "chunk", "paged"},
    cases=_page_cases,
    level=stateful(),
    catches={"page.table"},
)
def page_permute(candidate: Any, reference: Any, case: Case) -> Sides:
    """Any order of the pages and any page size give the same keys, values and logits."""
    size, info = case.meta.get("page_size"), describe(candidate)
    subject = candidate if size is None else candidate.variant(f"page_size={size}")
    (batch, t), sizes = case.ids.shape, sizes_of(case)
    encoder = encoder_of(candidate, batch, case.seed)
    state, logits, fed = start(subject, batch, t, encoder=encoder), [], 0
    lefts: dict[str, np.ndarray] = {}
    rights: dict[str, np.ndarray] = {}
    for op in case.ops:
        if isinstance(op, Append):
            out, state = subject.step(state, case.ids[:, fed : fed + op.n].copy())
            logits.append(out)
            fed += op.n
        elif isinstance(op, PermutePages):
            before = entries(subject, state, fed)
            state = subject.permute_pages(state, op.seed)
            lefts, rights = pair(entries(subject, state, fed), before, info, fed)
    sides = Sides(
        {**lefts, "logits": np.concatenate(logits, axis=1)},
        {**rights, "logits": cached_or_full(reference, case.ids, sizes, encoder=encoder)},
        words=("pages permuted" if size is None else f"pages of {size}", "as they lay"),
        meta={"page_size": size, "sizes": sizes},
    )
    return loose(candidate, reference, sides)


def _prefix_cases(info: SubjectInfo, seed: int) -> Iterator[Case]:
    """Yield: how many tokens the second text shares with the first, around every page's edge."""
    ids = draw(info, seed, batch=3)
    t = ids.shape[1]
    for shared in dict.fromkeys((t - 3, 8, 7, 9, 5, 1, 0, t)):
        yield Case(ids, seed=seed, meta={"shared": shared})


@relation(
    name="prefix.share",
    needs={"prefix"},
    cases=_prefix_cases,
    catches={"prefix.off_by_one", "prefix.by_length"},
)
def prefix_share(candidate: Any, reference: Any, case: Case) -> Sides:
    """A text served from another's cached prefix has the logits of computing it anew.

    Three texts are served one after the other, and the second and third again: the second shares a
    prefix with the first; the third begins otherwise and then repeats it.
    """
    shared, store = int(case.meta["shared"]), candidate.prefix_store()
    first, second, third = (case.ids[i : i + 1].copy() for i in range(3))
    second[:, :shared] = first[:, :shared]
    third[:, 1:shared] = first[:, 1:shared]
    texts = [first, second, third, second, third]
    served, reused = [], []
    for text in texts:
        logits, n = store.step(text.copy())
        served.append(logits)
        reused.append(int(np.asarray(n).reshape(-1)[0]))
    encoder = encoder_of(candidate, 1, case.seed)
    right = np.concatenate([full(reference, text, encoder=encoder) for text in texts])
    # At least the last token is computed: its logits are what was asked for.
    last = case.ids.shape[1] - 1
    valid = np.arange(last + 1) >= np.minimum(reused, last)[:, None]
    sides = Sides(
        {"logits": np.concatenate(served)},
        {"logits": right},
        valid,
        words=(f"{shared} tokens shared", "computed anew"),
        meta={"shared": shared, "reused": reused},
    )
    if not any(reused):
        raise Refused(f"{describe(candidate).name} reused no token of {reused}.")
    return loose(candidate, reference, sides, exact_right=True)
