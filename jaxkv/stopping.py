"""Stop strings of a request: the host's look at the texts between two programs.

Letters: B rows.
"""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxkv import caches
from jaxkv.caches import Cache
from jaxkv.loop import Text
from jaxkv.spec.stop import Certain, Stops


class Watch:
    """What is certain of each row's new text.

    Attributes:
        stops: What ends a text; None for nothing, then all of it is certain.
        found: Of each row, as of the newest look; none before, and none without stop strings.
    """

    def __init__(self, stops: Stops | None):
        self.stops = stops
        self.found: tuple[Certain, ...] = ()

    def look(self, text: Text) -> list[int]:
        """Return how many tokens of each row, prompt and new, are certain."""
        ends = np.asarray(text.length_B).tolist()
        if self.stops is None:
            return ends
        starts = np.asarray(text.length_B - text.new_B).tolist()
        active, rows = np.asarray(text.active_B).tolist(), np.asarray(text.tokens_BS).tolist()
        self.found = tuple(
            self.stops.look(row[start:end], is_last=not goes_on)
            for row, start, end, goes_on in zip(rows, starts, ends, active, strict=True)
        )
        return [start + each.count for start, each in zip(starts, self.found, strict=True)]

    def halt(self, text: Text) -> Text:
        """Return the texts, of which those with a stop string want no further token."""
        stopped = [each.stop is not None for each in self.found]
        if not any(stopped):
            return text
        return replace(text, active_B=text.active_B & ~jnp.asarray(stopped))

    def cut(self, text: Text) -> Text:
        """Return the texts without the tokens from each stop string on."""
        length_B = jnp.asarray(self.look(text), jnp.int32)
        new_B = text.new_B - (text.length_B - length_B)
        return replace(text, length_B=length_B, new_B=new_B)


def take_back(cache: Cache, text: Text, held_B: Int[Array, " B"], *, like: Cache) -> Cache:
    """Return the cache without what a stop string cut off: all tokens of such a row but the last.

    Args:
        cache: After the last forward.
        text: Cut.
        held_B: int32, tokens that the cache held before the text.
        like: The cache that it was narrowed from, if it is smaller: in its buffers it returns.

    Raises:
        RollbackError: A ring does not hold what it would have to go back to.
    """
    cache = caches.widen(cache, like)
    length_B = jnp.minimum(cache.length_B, held_B + text.length_B - 1)
    if (np.asarray(length_B) == np.asarray(cache.length_B)).all():
        return cache
    return caches.rollback(cache, length_B)
