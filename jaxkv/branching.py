"""Requests whose rows branch (beams, samples of one prompt), checked and sized on the host.

Letters: B rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxkv import caches
from jaxkv.caches import LAYOUTS, Cache
from jaxkv.caches.pages import PAGE_SIZE
from jaxkv.devices import memory_bytes
from jaxkv.model import Decoder
from jaxkv.planning import Plan
from jaxkv.request import Request, check_layout
from jaxkv.spec.config import ModelConfig
from jaxkv.spec.errors import RequestError, Unsupported
from jaxkv.spec.room import check_room

# What keeps nothing has no rows to give out twice.
BRANCHING = tuple(name for name in LAYOUTS if name != "uncached")


def check_whole(function: str, name: str, value: Any, *, most: int | None, why: str) -> int:
    """Return a number of branches.

    Args:
        function: For messages: whose argument it is.
        name: Of the argument.
        value: The number.
        most: The largest one allowed; None for any.
        why: What the largest one is, and the next step.

    Raises:
        RequestError: It is no whole number, below 1, or above `most`.
    """
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_whole or value < 1:
        raise RequestError(
            f"{function}: {name} is {value!r}, expected a whole number of at least 1. "
            "`generate` gives one text a prompt."
        )
    if most is not None and value > most:
        raise RequestError(f"{function}: {name} is {value}, expected at most {most}, {why}")
    return int(value)


def check_budgets(function: str, found: Plan) -> None:
    """Refuse a row without a new token: it has nothing to branch at.

    Raises:
        RequestError: There is one.
    """
    for row in np.flatnonzero(found.budget_B < 1).tolist():
        raise RequestError(
            f"{function}: max_new_tokens is {int(found.budget_B[row])} in row {row}, expected at "
            "least 1. Leave out prompts that want no tokens."
        )


@dataclass(frozen=True)
class Form:
    """What a cache is made like, inside the program that uses it: hashable, so static there.

    An array made outside could not be donated to a program in which its rows become more.

    Attributes:
        batch: Rows.
        capacity: Tokens of a row.
        dtype: By name.
        options: The other arguments of `caches.init`.
    """

    batch: int
    capacity: int
    dtype: str
    options: tuple[tuple[str, Any], ...]

    def make(self, config: ModelConfig) -> Cache:
        """Return an empty cache for a model's layers."""
        sizes: dict[str, Any] = {"batch": self.batch, "capacity": self.capacity}
        return caches.init(config, **sizes, dtype=self.dtype, **dict(self.options))


def plan_cache(
    function: str,
    model: Decoder,
    request: Request,
    *,
    branches: int,
    layout: str,
    slack: int,
    page_size: int | None,
    options: Mapping[str, Any] | None,
) -> Form:
    """Return the form of a cache of one row a prompt, with pages enough for all branches.

    Args:
        function: For messages: whose arguments these are.
        model: The decoder.
        request: Checked.
        branches: Of each prompt.
        layout: See `caches.init`, as for `slack`.
        slack: See `caches.init`.
        page_size: Of the layout "paged"; None for its default.
        options: What the layout alone understands. `pool_pages` are those of all branches.

    Raises:
        Unsupported: The layout has no `gather`.
        RequestError: See `check_layout`.
    """
    if layout in LAYOUTS and layout not in BRANCHING:
        raise Unsupported(
            f"{function}: layout is {layout!r}, which keeps nothing to give to several rows, "
            f"expected one of {', '.join(BRANCHING)}. Choose one that has `gather`."
        )
    asked = {"layout": layout, "page_size": page_size, "options": options}
    check_layout(function, **asked, positions=model.config.max_positions)
    form: dict[str, Any] = {"layout": layout, "slack": slack, **(options or {})}
    if layout == "paged":
        size = PAGE_SIZE if page_size is None else page_size
        pages = pool_for(request.plan, branches=branches, page_size=size)
        form = {"page_size": size, "pool_pages": pages, **form}
    if request.plan.sources is not None:
        form["source_capacity"] = request.plan.sources.ids_BE.shape[1]
    return Form(
        request.plan.batch, request.plan.reach, str(model.dtype), tuple(sorted(form.items()))
    )


def check_memory(function: str, name: str, branches: int, model: Decoder, form: Form) -> None:
    """Refuse more branches than the memory holds.

    Args:
        function: For messages.
        name: Of the argument.
        branches: Its number, of each prompt.
        model: The decoder.
        form: Of the cache that they begin with.

    Raises:
        CapacityError: They are more.
    """
    check_room(
        function,
        f"{name} is {branches}",
        model.config,
        rows=branches * form.batch,
        tokens=form.capacity,
        dtype=form.dtype,
        options=dict(form.options),
        room_bytes=memory_bytes(),
        advice=f"Lower {name} or max_new_tokens",
    )


def pool_for(found: Plan, *, branches: int, page_size: int) -> int:
    """Return how many pages suffice, whatever the branches do; rounded up to a power of two.

    All branches of a row share the pages that its prompt fills; every other page of a branch can
    come to be its own.

    Args:
        found: The request's sizes.
        branches: Of each prompt.
        page_size: Tokens of a page.
    """
    size = max(page_size, 1)  # what is below is refused by `caches.init`
    filled_B = found.count_B.astype(np.int64) // size
    all_B = -(-(found.count_B.astype(np.int64) + found.budget_B - 1) // size)
    need = int((filled_B + branches * (all_B - filled_B)).sum())
    columns = -(-found.reach // size)
    pages = columns
    while pages < need:
        pages *= 2
    return max(min(pages, branches * found.batch * columns), columns)
