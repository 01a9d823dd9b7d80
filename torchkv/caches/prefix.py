"""The prefix store: exact prefixes of earlier texts, kept in a pool of pages and handed out again.

A host object, no layout. Its books (`jaxkv.spec.prefix_book`) say which page holds which tokens of
whom; the pool is that of a paged cache. A request leases a cache whose rows begin with the pages of
what is known of their prompts, and gives it back; the whole pages of its texts then belong to the
store. Those are never written to: a row that goes on inside one copies it first (`pages`).

Letters: B rows, C columns of the table, A pages of the pool with the trash page, M pages to wipe.
"""

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor as Array

from jaxkv.spec.config import ModelConfig
from jaxkv.spec.errors import RequestError, Unsupported
from jaxkv.spec.identity import Identity
from jaxkv.spec.prefix_book import Counts, Entry, PrefixBook, Usage
from torchkv.caches.pages import with_table
from torchkv.caches.state import Cache
from torchkv.caches.verbs import init


@dataclass(frozen=True)
class Lease:
    """A request's cache, and what of its prompts it holds already.

    Attributes:
        cache: Paged, one row a prompt; the request's own until it is settled.
        reused_B: int32, tokens of each prompt that the cache holds, always fewer than the prompt.
        entry: In the store's books.
        page_M: Pages that its rows may write to.
    """

    cache: Cache
    reused_B: np.ndarray
    entry: Entry
    page_M: np.ndarray


class PrefixStore:
    """A pool of pages that requests lease caches from; one request at a time.

    Attributes:
        config: Of the models whose keys and values it holds.
        capacity: Tokens that a row of a leased cache can hold.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        dtype: Any,
        capacity: int,
        pool_pages: int,
        page_size: int = 16,
    ):
        """Allocate the pool on PyTorch's default device.

        Args:
            config: Of the models that will use it.
            dtype: Of keys and values; the models' own.
            capacity: Tokens that a row of a leased cache can hold.
            pool_pages: Pages for prefixes and for the request under way.
            page_size: Tokens of a page: what is shared is a multiple of it.

        Raises:
            Unsupported: The model has an encoder: what its decoder holds depends on the source too.
            RequestError: See `init`.
            CapacityError: See `init`: the pool has to hold one row.
        """
        if getattr(config, "encoder", None) is not None:
            raise Unsupported(
                "PrefixStore: the model has an encoder, so equal tokens of two sources have other "
                "keys and values. Keep a cache of your own for each source."
            )
        sizes = {"capacity": capacity, "page_size": page_size, "pool_pages": pool_pages}
        self.config, self.capacity = config, capacity
        self._form = {**sizes, "batch": 1, "dtype": dtype, "layout": "paged"}
        self._pool = init(config, **self._form)
        self._book = PrefixBook(**sizes)
        self._hashes: dict[tuple[Any, ...], tuple[tuple[Any, ...], str]] = {}
        self._gate = threading.Lock()
        self._entry: Entry | None = None

    @property
    def dtype(self) -> str:
        """Of keys and values, by name."""
        return str(self._form["dtype"]).removeprefix("torch.")

    @property
    def usage(self) -> Usage:
        """The pages by who needs them: for whoever owns the store, all tenants together."""
        return self._book.usage

    def counts(self, tenant: str = "") -> Counts:
        """Return a tenant's own counts; of others they tell what misses tell in a full pool."""
        return self._book.counts(tenant)

    def lease(
        self,
        prompts: Sequence[Sequence[int]],
        budgets: Sequence[int],
        *,
        weights: str,
        adapter: str = "",
        tenant: str = "",
    ) -> Lease:
        """Return a paged cache whose rows hold what is known of their prompts.

        At least one token of each prompt is left to be computed. Prefixes that were used longest
        ago are evicted as far as the request needs their pages. A row without budget gets nothing.

        Args:
            prompts: Token ids of each row.
            budgets: New tokens of each row at most.
            weights: The parameters' hash, see `weights_of`.
            adapter: What else changes the function, in the caller's words.
            tenant: The caller's salt: of another salt's texts nothing is found.

        Raises:
            RequestError: Another request has not been settled yet.
            CapacityError: A row does not fit its capacity, or all rows the pool.

        Not checked here: ids and budgets; `planning.plan` does.
        Cost: walks the tree; wipes as many pages as the request may take.
        """
        self._enter("lease")
        try:
            entry = self._book.open(
                tuple(tuple(int(token) for token in row) for row in prompts),
                [int(budget) for budget in budgets],
                Identity(self.config, weights, self.dtype, "paged", adapter, tenant),
            )
        except BaseException:
            self._gate.release()
            raise
        self._entry = entry
        # The lowest free pages are the next to be handed out (`pages`).
        page_M = np.flatnonzero(~self._book.held_A[1:])[: entry.need].astype(np.int32) + 1
        lease = Lease(self._pool, np.array(entry.reused, np.int32), entry, page_M)
        try:
            self._pool = self._cache(entry, page_M)
        except BaseException:
            self.abandon(lease)
            raise
        return replace(lease, cache=self._pool)

    def settle(self, lease: Lease, cache: Cache, texts: Sequence[Sequence[int]]) -> None:
        """Take a lease's cache back, and keep the whole pages of its texts.

        Pages with a number that is not finite are wiped and nothing is kept: steps may read the
        whole pool, and a weight of 0 does not silence NaN.

        Args:
            lease: The one under way.
            cache: What became of its cache; not to be used again.
            texts: Each row's tokens from the first prompt token on, at least as many as the cache
                holds.

        Raises:
            RequestError: A text does not begin with its prompt, or has fewer tokens than its row.
                The lease is still under way: settle it rightly, or abandon it.

        Not checked here: that the tokens after the prompt are those that entered the model.
        Cost: reads the table, and the pages that the request may have written.
        """
        tables = cache.shared.table_BC.tolist()
        lengths = cache.length_B.tolist()
        if not _are_finite(cache.sites, lease.page_M):
            lengths = [0] * len(lengths)
            _wipe(cache.sites, lease.page_M)
        # Before the books: a prefix that is kept must stand in the pool, whatever fails next.
        self._pool = cache
        self._book.keep(lease.entry, texts, tables, lengths)
        self._end(lease.entry)

    def abandon(self, lease: Lease) -> None:
        """End a lease whose request failed: nothing of its texts is kept.

        What it has written stands in pages that no prefix holds, and is wiped. A lease that has
        ended is left alone.
        """
        if self._entry is not lease.entry:
            return
        _wipe(self._pool.sites, lease.page_M[~self._book.held_A[lease.page_M]])
        self._end(lease.entry)

    def forget(self, tenant: str) -> int:
        """Return how many pages a tenant's prefixes had; they and its counts are gone.

        Raises:
            RequestError: A request is under way.
        """
        self._enter("forget")
        try:
            return self._book.forget(tenant)
        finally:
            self._gate.release()

    def weights_of(self, arrays: Sequence[Array], compute: Callable[[], str]) -> str:
        """Return the hash of parameters, computed once for the same unchanged tensors.

        Args:
            arrays: All parameters; written in place they count as others, except through `.data`.
            compute: Computes it.
        """
        key = tuple((id(x), x._version) for x in arrays)
        alive, found = self._hashes.get(key, ((), ""))
        if not found or any(ref() is not x for ref, x in zip(alive, arrays, strict=True)):
            found = compute()
            old = self._hashes.items()
            self._hashes = {k: v for k, v in old if all(ref() is not None for ref in v[0])}
            self._hashes[key] = (tuple(weakref.ref(x) for x in arrays), found)
        return found

    def _enter(self, function: str) -> None:
        if not self._gate.acquire(blocking=False):
            raise RequestError(
                f"{function}: the store is in use by another request. Settle or abandon that one "
                "first, or give each thread a store of its own."
            )

    def _end(self, entry: Entry) -> None:
        self._entry = None
        try:
            self._book.close(entry)
        finally:
            self._gate.release()

    def _cache(self, entry: Entry, page_M: np.ndarray) -> Cache:
        """Return the pool's cache with one row a prompt, and the pages that it may take wiped."""
        columns = self._pool.shared.table_BC.shape[1]
        table_BC = np.zeros((len(entry.tables), columns), np.int32)
        for row, table in enumerate(entry.tables):
            table_BC[row, : len(table)] = table
        device = self._pool.length_B.device
        held_A = torch.from_numpy(self._book.held_A.astype(np.int32)).to(device)
        length_B = torch.tensor(entry.reused, dtype=torch.int32, device=device)
        _wipe(self._pool.sites, page_M)
        return replace(
            self._pool,
            length_B=length_B,
            peak_B=length_B.clone(),
            overflow_B=torch.zeros_like(length_B),
            shared=with_table(self._pool.shared, torch.from_numpy(table_BC).to(device), held_A),
            epoch=self._pool.epoch.next().settle(),
        )


def _wipe(sites: Sequence[Any], page_M: np.ndarray) -> None:
    """Write zeros to the pages named, in place; pages lead in every buffer of a pool."""
    for x in (x for site in sites for x in vars(site).values() if isinstance(x, Array)):
        x[torch.from_numpy(page_M).long()] = 0


def _are_finite(sites: Sequence[Any], page_M: np.ndarray) -> bool:
    """Return whether the pages named hold finite numbers alone."""
    held = (x for site in sites for x in vars(site).values() if isinstance(x, Array))
    return all(bool(torch.isfinite(x[torch.from_numpy(page_M).long()]).all()) for x in held)
