"""Requests on a prefix store: what is known of their prompts is cut off before the model runs.

Letters: B rows, S slots of the text.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from jaxkv.spec.errors import RequestError
from jaxkv.spec.identity import weights_hash
from torchkv.caches.prefix import Lease, PrefixStore
from torchkv.model import Decoder
from torchkv.planning import plan
from torchkv.request import Request
from torchkv.weights import to_arrays


def check_store(
    function: str,
    model: Decoder,
    store: PrefixStore | None,
    *,
    adapter: str,
    tenant: str,
    **own: tuple[Any, Any],
) -> None:
    """Refuse what does not go with a store, or needs one.

    Args:
        function: For messages: whose arguments these are.
        model: The decoder.
        store: None for a request without one.
        adapter: Asked for.
        tenant: Asked for.
        **own: Arguments that describe a cache of the request's own, as given and by default.

    Raises:
        RequestError: The store is for another model, or an argument contradicts it.
    """
    if store is None:
        for name, value in (("adapter", adapter), ("tenant", tenant)):
            if value:
                raise RequestError(
                    f"{function}: {name} is {value!r}, but there is no store in which it could "
                    "matter. Leave it out, or give a store."
                )
        return
    for name, (given, default) in own.items():
        if given is not default and given != default:
            raise RequestError(
                f"{function}: {name} is given beside a store, which brings its own cache. Leave "
                "out one of the two."
            )
    dtype = str(model.dtype).removeprefix("torch.")
    if store.config != model.config or store.dtype != dtype:
        raise RequestError(
            f"{function}: the store is for {store.config.family} in {store.dtype}, the model is "
            f"{model.config.family} in {dtype}, or of other sizes. Make a store with the model's "
            "config and dtype."
        )


def open_lease(
    store: PrefixStore, model: Decoder, request: Request, *, adapter: str, tenant: str
) -> tuple[Lease, Request]:
    """Return the lease for a request, and the request for what is left of its prompts.

    Raises:
        RequestError: The store is in use.
        CapacityError: The pool is too small.
    """
    found = request.plan
    prompts = [ids[:n].tolist() for ids, n in zip(found.ids_BT, found.count_B, strict=True)]
    weights = store.weights_of([*model.parameters()], lambda: weights_hash(to_arrays(model)))
    lease = store.lease(
        prompts, found.budget_B.tolist(), weights=weights, adapter=adapter, tenant=tenant
    )
    with abandoning(store, lease):
        rest = plan(
            model.config,
            [row[n:] for row, n in zip(prompts, lease.reused_B.tolist(), strict=True)],
            max_new_tokens=found.budget_B.tolist(),
            capacity=store.capacity,
            held_B=lease.reused_B,
        )
    pairs = zip(prompts, lease.reused_B.tolist(), strict=True)
    return lease, replace(request, plan=rest, known=tuple(tuple(row[:n]) for row, n in pairs))


@contextmanager
def abandoning(
    store: PrefixStore | None, lease: Lease | None, *, stopped: Callable[[], None] | None = None
) -> Iterator[None]:
    """Abandon the lease, if there is one, when what is done within fails.

    Args:
        store: Whose lease it is.
        lease: Of the request.
        stopped: Called first when a generator is closed within, which is no failure: it settles.
    """
    try:
        yield
    except BaseException as error:
        try:
            if stopped is not None and isinstance(error, GeneratorExit):
                stopped()
        finally:
            if store is not None and lease is not None:
                store.abandon(lease)
        raise


def whole_rows(lease: Lease | None, rows: Sequence[list[int]]) -> list[list[int]]:
    """Return the texts with what a lease held of them in front."""
    if lease is None:
        return list(rows)
    fronts = zip(lease.entry.prompts, lease.reused_B.tolist(), strict=True)
    return [[*prompt[:n], *row] for (prompt, n), row in zip(fronts, rows, strict=True)]
