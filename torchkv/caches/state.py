"""The state that all layouts share.

A cache of sites, the plan of one step, and whose contents the buffers hold.

Letters: B rows, T new tokens, S slots, N query heads, K key/value heads, H head width, P real
tokens of all rows.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor as Array

from jaxkv.spec.errors import RequestError

Rotate = Callable[[Float[Array, "B T N H"], Int[Array, "B T"]], Float[Array, "B T N H"]]
Bias = Callable[[Int[Array, "B T"], Int[Array, "B S"]], Float[Array, "B N T S"]]
Expand = Callable[
    [Float[Array, "B S K _"]], tuple[Float[Array, "B S N _"], Float[Array, "B S N _"]]
]


@dataclass
class Ledger:
    """Which contents one set of buffers holds now, by number.

    All caches that share the buffers share it.
    """

    now: int = 0
    issued: int = 0


@dataclass(frozen=True)
class Epoch:
    """The contents that a cache or a step stands for.

    It is current as long as nobody else wrote to the buffers.
    """

    ledger: Ledger = field(default_factory=Ledger)
    before: int = 0
    after: int = 0

    def is_current(self) -> bool:
        """Return whether the buffers hold what this epoch starts from or what it has written."""
        return self.ledger.now in (self.before, self.after)

    def check(self, function: str, held: str) -> None:
        """Raise if somebody else wrote to the buffers.

        Raises:
            RequestError: They did.
        """
        if not self.is_current():
            raise RequestError(
                f"{function}: {held} was consumed, a later step wrote to its buffers in place; "
                "expected the newest. Go on with the cache that step returned, or `fork` the cache "
                "before it."
            )

    def next(self) -> "Epoch":
        """Return the epoch of a step that starts from these contents; nothing is written yet."""
        self.ledger.issued += 1
        return Epoch(self.ledger, self.after, self.ledger.issued)

    def write(self) -> None:
        """Note that the buffers hold this epoch's contents from now on."""
        self.ledger.now = self.after

    def settle(self) -> "Epoch":
        """Return the epoch of the cache that a step leaves behind."""
        self.write()
        return Epoch(self.ledger, self.after, self.after)


@dataclass(frozen=True)
class Cache:
    """Everything that earlier tokens left behind; an argument, then consumed, and a result.

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
        epoch: Whether the buffers still hold this cache; no data.
    """

    length_B: Int[Array, " B"]
    peak_B: Int[Array, " B"]
    overflow_B: Int[Array, " B"]
    shared: Any
    sites: tuple[Any, ...]
    capacity: int
    epoch: Epoch = field(default_factory=Epoch, repr=False, compare=False)


@dataclass(frozen=True)
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
        rectangular: The promise given to `begin`; not relied on, `start` is read from the lengths.
        epoch: Whether the buffers still hold what the step starts from; no data.
    """

    length_B: Int[Array, " B"]
    count_B: Int[Array, " B"]
    excess_B: Int[Array, " B"]
    position_BT: Int[Array, "B T"]
    valid_BT: Bool[Array, "B T"]
    shared: Any
    fresh: bool
    rectangular: bool
    clean: bool
    epoch: Epoch = field(default_factory=Epoch, repr=False, compare=False)

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """Each row's length before and after the step, read from the device once a step."""
        lengths, counts = torch.stack((self.length_B, self.count_B)).tolist()
        return [(length, length + count) for length, count in zip(lengths, counts, strict=True)]

    @cached_property
    def start(self) -> int | None:
        """The length of all rows, if all T tokens of all rows are real; None for a ragged step."""
        first, tokens = self.spans[0][0], self.position_BT.shape[1]
        alike = all(span == (first, first + tokens) for span in self.spans)
        return first if alike else None

    @cached_property
    def used(self) -> int:
        """The longest length after the step: no slot from there on is read."""
        return max(end for _, end in self.spans)

    @cached_property
    def oldest(self) -> int:
        """The lowest position of a real token, or `used` if there is none."""
        return min((length for length, end in self.spans if end > length), default=self.used)

    @cached_property
    def real(self) -> tuple[Int[Array, " P"], Int[Array, " P"]]:
        """Row and token number of every real token."""
        row_P, token_P = self.valid_BT.nonzero(as_tuple=True)
        return row_P, token_P

    @cached_property
    def rooms(self) -> dict[torch.dtype, Array]:
        """Room for what one layer after the other computes and forgets, by dtype."""
        return {}

    def room(self, *shape: int, dtype: torch.dtype) -> Array:
        """Return an array that holds anything, the same memory at each call.

        Allocated anew, a layer's megabyte costs as much in page faults as what is written to it.
        """
        size, held = math.prod(shape), self.rooms.get(dtype)
        if held is None or held.numel() < size:
            held = torch.empty(size, dtype=dtype, device=self.length_B.device)
            self.rooms[dtype] = held
        return held[:size].view(shape)
