"""A prefix store behind a tester's protocol: texts go in, logits and what was reused come out.

Letters: B rows, T tokens, V vocabulary.
"""

import numpy as np

from torchkv.caches.prefix import PrefixStore
from torchkv.testing.driver import Driver
from torchkv.testing.inputs import read_tokens


class PrefixTexts:
    """A store whose `step` serves whole texts, each from what earlier ones left behind.

    Attributes:
        store: The store, for its counts.
        computed: Tokens that went through the model so far.
    """

    def __init__(self, driver: Driver, store: PrefixStore, *, weights: str):
        self.store, self.computed = store, 0
        self._driver, self._weights = driver, weights

    def step(
        self, ids: np.ndarray, *, tenant: str = "", adapter: str = ""
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return logits [B, T, V] of whole texts, and how many tokens of each were reused.

        The logits of reused tokens are zeros; at least the last token is computed.

        Args:
            ids: Token ids [B, T]; rows are served one after the other.
            tenant: Whose texts may be reused.
            adapter: With which.

        Raises:
            CapacityError: The texts do not fit the store.
            RequestError: An id is outside the vocabulary.
        """
        rows = [self._serve(row, tenant=tenant, adapter=adapter) for row in np.asarray(ids)]
        return np.stack([logits for logits, _ in rows]), np.array([n for _, n in rows])

    def _serve(self, ids_T: np.ndarray, *, tenant: str, adapter: str) -> tuple[np.ndarray, int]:
        weights, text = self._weights, ids_T.tolist()
        lease = self.store.lease([text], [1], weights=weights, adapter=adapter, tenant=tenant)
        reused = int(lease.reused_B[0])
        try:
            tokens = read_tokens("step", ids_T[None, reused:], self._driver.model)
            tail, after = self._driver.run(lease.cache, tokens)
        except BaseException:
            self.store.abandon(lease)
            raise
        assert after is not None  # forward returns a cache for a cache
        self.store.settle(lease, after, [text])
        self.computed += len(ids_T) - reused
        return np.concatenate([np.zeros((reused, tail.shape[-1]), tail.dtype), tail[0]]), reused
