"""A store of exact token prefixes: full pages of earlier texts are reused, the rest is computed."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.subjects.protocol import KV

Pages = dict[tuple[int, ...], list[tuple[NDArray, NDArray]]]


@dataclass
class PrefixStore:
    """Pages by the whole prefix that ends in them: equal pages after other tokens differ.

    Attributes:
        subject: The toy.
        pages: prefix -> each layer's keys and values of its last page.
    """

    subject: Any
    pages: Pages = field(default_factory=dict)

    def step(self, ids: NDArray) -> tuple[NDArray, NDArray]:
        """Return logits [B, T, V] of whole texts, and how many tokens of each row were reused.

        The logits of reused tokens are zeros; at least the last token is computed.
        """
        rows = [self.serve(np.asarray(row)) for row in ids]
        return np.stack([logits for logits, _ in rows]), np.array([n for _, n in rows])

    def serve(self, ids_T: NDArray) -> tuple[NDArray, int]:
        """Return one text's logits, and how many tokens were reused."""
        reused = self.match(ids_T)
        state = self.restored(ids_T, reused)
        tail, state = self.subject.step(state, ids_T[None, reused:])
        self.insert(ids_T, state)
        zeros = np.zeros((reused, tail.shape[-1]), tail.dtype)
        return np.concatenate([zeros, tail[0]]), reused

    def match(self, ids_T: NDArray) -> int:
        """Return the length of the longest stored prefix that leaves a token to compute."""
        page, n = self.subject.page, 0
        while n + page < len(ids_T) and self.key(ids_T, n + page) in self.pages:
            n += page
        return n

    def key(self, ids_T: NDArray, end: int) -> tuple[int, ...]:
        """Return what names the page that ends there."""
        return tuple(int(i) for i in ids_T[:end])

    def restored(self, ids_T: NDArray, reused: int) -> Any:
        """Return a state that holds the reused tokens."""
        toy, page = self.subject, self.subject.page
        state = toy.init(1, len(ids_T))
        if not reused:
            return state
        ends = range(page, reused + 1, page)
        for layer in range(len(toy.config.windows)):
            parts = [self.pages[self.key(ids_T, end)][layer] for end in ends]
            k, v = (np.concatenate(x)[None] for x in zip(*parts, strict=True))
            index = np.arange(reused)[None]
            state = toy.with_kv(state, layer, KV(k, v, index, index >= 0))
        state = replace(state, length_B=np.array([reused]))
        return toy.grow(state, len(ids_T))

    def insert(self, ids_T: NDArray, state: Any) -> None:
        """Keep every full page of a text."""
        page, layers = self.subject.page, range(len(self.subject.config.windows))
        held = [self.subject.kv(state, layer) for layer in layers]
        for end in range(page, len(ids_T) + 1, page):
            self.pages[self.key(ids_T, end)] = [
                (kv.keys_BSKH[0, end - page : end], kv.values_BSKH[0, end - page : end])
                for kv in held
            ]
