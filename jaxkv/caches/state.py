"""The state that all layouts share.

A cache of sites, the plan of one step, and what a layout must offer.

Letters: B rows, T new tokens, S slots, K key/value heads, H head width.
"""

from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Bool, Float, Int

from jaxkv.pytree import pytree, static

Rotate = Callable[[Float[Array, "B T N H"], Int[Array, "B T"]], Float[Array, "B T N H"]]
Bias = Callable[[Int[Array, "B T"], Int[Array, "B S"]], Float[Array, "B N T S"]]
Expand = Callable[
    [Float[Array, "B S K _"]], tuple[Float[Array, "B S N _"], Float[Array, "B S N _"]]
]


@pytree
class Cache:
    """Everything that earlier tokens left behind; an argument and a result, never changed.

    Attributes:
        length_B: int32, tokens that each row holds. Positions and masks come from it.
        peak_B: int32, the longest that each row has been since its reset: what a ring has evicted
            follows from it.
        overflow_B: int32, tokens that a row was refused for want of room; above 0 the row takes no
            more tokens.
        shared: What a layout keeps once for all layers (paged: table, reference counts, free list),
            else None.
        sites: One per attention of the model, in the order of the forward pass.
        capacity: Tokens that a row can hold.
    """

    length_B: Int[Array, " B"]
    peak_B: Int[Array, " B"]
    overflow_B: Int[Array, " B"]
    shared: Any
    sites: tuple[Any, ...]
    capacity: int = static()


@pytree
class Step:
    """One step's plan, made once by `begin` and used by every layer.

    Attributes:
        length_B: int32, tokens that each row held before the step.
        count_B: int32, how many of the T tokens of each row are real; a refused row has 0.
        excess_B: int32, tokens that each row was refused in this step.
        position_BT: int32, the place of each token in its row's text.
        valid_BT: Which tokens are real.
        shared: The layout-wide state after this step's allocation, with the copies that sites must
            make.
        fresh: All rows are empty before the step, so attention can read the new keys and values
            directly.
        clean: Slots without a token hold finite numbers, so that a weight of zero silences them.
        rectangular: All rows that take tokens have one length and one count, so a write is one
            slice.
    """

    length_B: Int[Array, " B"]
    count_B: Int[Array, " B"]
    excess_B: Int[Array, " B"]
    position_BT: Int[Array, "B T"]
    valid_BT: Bool[Array, "B T"]
    shared: Any
    fresh: bool = static()
    rectangular: bool = static()
    clean: bool = static()
