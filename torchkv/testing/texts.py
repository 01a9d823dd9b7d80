"""What a subject does with whole texts: it continues them, and serves them from known prefixes."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxkv.spec.errors import Unsupported
from jaxkv.spec.identity import weights_hash
from torchkv.caches.prefix import PrefixStore
from torchkv.generation import Generated, generate
from torchkv.model import Decoder
from torchkv.streaming import stream
from torchkv.testing.drafted import Draft, continue_with
from torchkv.testing.driver import Driver
from torchkv.testing.prefixed import PrefixTexts
from torchkv.weights import to_arrays


class Texts:
    """A subject's generation and prefixes, on its own layout.

    Attributes:
        model: The decoder.
        compiled: Whether its steps are.
        forwarded_positions: Real tokens that went through the model so far.
        layout: Of the cache.
        slack: Tokens that a ring can take back.
        page_size: Tokens of a page; None for the layout's own.
        layout_options: What the layout alone understands.
    """

    model: Decoder
    compiled: bool
    forwarded_positions: int
    layout: str
    slack: int
    page_size: int | None
    layout_options: dict[str, Any]
    _driver: Driver

    def generate(
        self, prompts: Any, max_new_tokens: int | Sequence[int], **options: Any
    ) -> Generated:
        """Return the prompts continued on this subject's layout."""
        return generate(self.model, prompts, max_new_tokens=max_new_tokens, **self._on, **options)

    def stream(
        self, prompts: Any, max_new_tokens: int | Sequence[int], **options: Any
    ) -> Iterator[list[list[int]]]:
        """Return an iterator over the same tokens as they come."""
        return stream(self.model, prompts, max_new_tokens=max_new_tokens, **self._on, **options)

    def speculate(self, ids: np.ndarray, new: int, draft: Draft, k: int) -> np.ndarray:
        """Return greedy ids [B, T + new] by the real verifying steps, whatever the drafts.

        Args:
            ids: Prompts [B, T].
            new: How many ids each row gets.
            draft: (text so far [1, n], k) -> ids [1, k].
            k: Drafts of a row and step at most.

        Raises:
            Unsupported: The layout or the model does not serve drafts.
            CapacityError: The texts are longer than the model's positions.
        """
        made, forwarded = continue_with(
            self.model, ids, new, draft, k, on=self._on, compiled=self.compiled
        )
        self.forwarded_positions += forwarded
        return made

    @property
    def _on(self) -> dict[str, Any]:
        return {
            "layout": self.layout,
            "page_size": self.page_size,
            "layout_options": self.layout_options,
            "slack": self.slack,
        }

    def prefix_store(self, *, pool_pages: int | None = None) -> PrefixTexts:
        """Return a new prefix store on pages of this subject's size, 4 tokens unless told.

        Args:
            pool_pages: Of the store; by default room for eight texts of 64 tokens.

        Raises:
            Unsupported: The layout has no pages.
        """
        if self.layout != "paged":
            raise Unsupported(
                f"prefix_store: the {self.layout} layout has no pages to share. Make the subject "
                "with layout=paged."
            )
        size, capacity = self.page_size or 4, min(self.model.config.max_positions, 64)
        store = PrefixStore(
            self.model.config,
            dtype=self.model.dtype,
            capacity=capacity,
            pool_pages=pool_pages or 8 * -(-capacity // size),
            page_size=size,
        )
        return PrefixTexts(self._driver, store, weights=weights_hash(to_arrays(self.model)))
