"""What a tester hands in, checked and put into the form of a step: real tokens first.

Letters: B rows, T tokens, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxkv.model import Decoder
from jaxkv.spec.errors import CapacityError, RequestError, ShapeError

# Steps are padded to these widths, so that little is compiled.
BUCKETS = (1, 8, 24, 64, 256, 1024, 4096)


@dataclass(frozen=True)
class Tokens:
    """One call's tokens as given, which are real, and how the real ones come to the front.

    Attributes:
        ids_BT: int32; 0 for those that are not real.
        real_BT: Which are real.
        count_B: int32, how many; as given where a count was.
        order_BT: The place of each token once the real ones of its row stand in front.
    """

    ids_BT: np.ndarray
    real_BT: np.ndarray
    count_B: np.ndarray
    order_BT: np.ndarray

    @property
    def front_BT(self) -> np.ndarray:
        """The ids with the real ones in front, in their order."""
        return np.take_along_axis(self.ids_BT, self.order_BT, axis=1)

    def scatter(self, x_BTV: np.ndarray) -> np.ndarray:
        """Return results of `front_BT` in the places that the tokens were given in."""
        return _along(x_BTV, np.argsort(self.order_BT, axis=1))

    def collect(self, x_BTV: np.ndarray) -> np.ndarray:
        """Return results in the places that the tokens were given in, in those of `front_BT`."""
        return _along(x_BTV, self.order_BT)


def _along(x_BTV: np.ndarray, order_BT: np.ndarray) -> np.ndarray:
    order = order_BT.reshape(*order_BT.shape, *(1,) * (x_BTV.ndim - 2))
    return np.take_along_axis(x_BTV, order, axis=1)


def read_tokens(
    function: str, ids: Any, model: Decoder, *, count: Any = None, mask: Any = None
) -> Tokens:
    """Return the tokens of a call.

    Args:
        function: The caller, for messages.
        ids: Token ids [B, T]; those that are not real may be any number.
        model: Whose vocabulary they are from.
        count: How many of the first tokens of each row are real; all by default.
        mask: Which tokens are real, instead of a count.

    Raises:
        ShapeError: ids, count or mask has another shape, or mask is not boolean.
        RequestError: A real id is outside the vocabulary, the model is in training mode, or mask
            and count are both given.

    Not checked here: that a count is at most T; `caches.begin` refuses the row.
    """
    ids_BT = np.asarray(ids)
    if model.training:
        raise RequestError(
            f"{function}: the model has training=True, whose dropout no cache survives. "
            "Set training=False."
        )
    if ids_BT.ndim != 2 or 0 in ids_BT.shape:
        raise ShapeError(
            f"{function}: ids has shape {ids_BT.shape}, expected [batch, time] with at least "
            "1 token."
        )
    if count is not None and mask is not None:
        raise RequestError(f"{function}: mask and count are both given. Leave one out.")
    count_B, real_BT = _real(function, ids_BT.shape, count, mask)
    _check_vocabulary(function, ids_BT, real_BT, model.config.vocab_size)
    return Tokens(
        ids_BT=np.where(real_BT, ids_BT, 0).astype(np.int32),
        real_BT=real_BT,
        count_B=count_B.astype(np.int32),
        order_BT=np.argsort(~real_BT, axis=1, kind="stable"),
    )


def encoder_inputs(model: Decoder, batch: int, seed: int) -> np.ndarray:
    """Return the ids of texts for a model's encoder, [B, E], of unlike lengths; -1 for no token."""
    rng, longest = np.random.default_rng(seed), 7
    ids_BE = rng.integers(0, model.config.vocab_size, (batch, longest))
    short_B = (np.arange(batch) + seed) % 3
    return np.where(np.arange(longest) < longest - short_B[:, None], ids_BE, -1)


def check_room(function: str, tokens: int, model: Decoder) -> None:
    """Refuse texts longer than the model's positions.

    Raises:
        CapacityError: They are.
    """
    room = model.config.max_positions
    if tokens > room:
        raise CapacityError(
            f"{function}: {tokens} tokens exceed the model's {room} positions. "
            f"Feed {tokens - room} fewer."
        )


def check_points(function: str, points: Sequence[str] | None, num_layers: int) -> tuple[str, ...]:
    """Return the points asked for, in the order of the forward pass; all by default.

    Raises:
        RequestError: There is no such point.
    """
    parts = ("attn_norm", "v", "attn", "mlp_norm", "mlp", "resid")
    layers = [f"layers.{i}.{part}" for i in range(num_layers) for part in parts]
    known = ("embed", *layers, "norm", "logits")
    for name in points or ():
        if name not in known:
            raise RequestError(
                f"{function}: points holds {name!r}, expected some of embed, "
                f"layers.0 to layers.{num_layers - 1} with {', '.join(parts)}, norm, logits."
            )
    return known if points is None else tuple(name for name in known if name in points)


def _real(
    function: str, shape: tuple[int, int], count: Any, mask: Any
) -> tuple[np.ndarray, np.ndarray]:
    rows, tokens = shape
    if mask is not None:
        real_BT = np.asarray(mask)
        if real_BT.dtype != np.bool_ or real_BT.shape != shape:
            raise ShapeError(
                f"{function}: mask is {real_BT.dtype} {real_BT.shape}, expected bool {shape}, "
                "one a token."
            )
        return real_BT.sum(axis=1), real_BT
    count_B = np.full(rows, tokens) if count is None else np.asarray(count)
    if count_B.shape != (rows,):
        raise ShapeError(
            f"{function}: count has shape {count_B.shape}, expected ({rows},), one number a row."
        )
    return count_B, np.arange(tokens) < count_B[:, None]


def _check_vocabulary(
    function: str, ids_BT: np.ndarray, real_BT: np.ndarray, vocab_size: int
) -> None:
    outside = np.argwhere(real_BT & ((ids_BT < 0) | (ids_BT >= vocab_size)))
    if len(outside):
        row, place = outside[0].tolist()
        raise RequestError(
            f"{function}: ids[{row}][{place}] is {ids_BT[row, place]}, expected 0 to "
            f"{vocab_size - 1} (the model's vocabulary)."
        )
