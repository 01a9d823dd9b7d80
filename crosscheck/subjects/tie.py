"""Give one subject the weights of another, and say what was done with each of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosscheck.errors import CrosscheckError

Names = Mapping[str, str] | Callable[[str], str | None]
# Endings that mean the same weight in torch and in flax.
SYNONYMS = {"kernel": "weight", "embedding": "weight", "scale": "weight", "gamma": "weight"}
SYNONYMS |= {"beta": "bias"}


@dataclass(frozen=True)
class Tied:
    """One weight that was copied, and how: "as it is", "transposed" or "reshaped"."""

    destination: str
    source: str
    how: str


@dataclass(frozen=True)
class TieReport:
    """What `tie_weights` did.

    Attributes:
        subject: The destination with the source's weights.
        tied: What was copied.
        unused: Weights of the source that nobody took.
        unfilled: Weights of the destination that kept their values.
        shared: Destination weights that took the same source weight (tied heads).
    """

    subject: Any
    tied: tuple[Tied, ...]
    unused: tuple[str, ...]
    unfilled: tuple[str, ...]
    shared: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        turned = [t.destination for t in self.tied if t.how != "as it is"]
        parts = [
            f"{len(self.tied)} weights tied, {len(turned)} transposed or reshaped",
            f"{len(self.unused)} unused: {', '.join(self.unused[:5])}",
            f"{len(self.unfilled)} unfilled: {', '.join(self.unfilled[:5])}",
            f"shared: {'; '.join(' = '.join(group) for group in self.shared)}",
        ]
        return ". ".join(p for p in parts if not p.endswith(": ")) + "."

    def raise_for_gaps(self) -> None:
        """Raise unless every weight of both sides took part.

        Raises:
            CrosscheckError: Some are unused or unfilled.
        """
        if self.unused or self.unfilled:
            raise CrosscheckError(f"tie_weights: {self}")


def tie_weights(src: Any, dst: Any, names: Names | None = None) -> TieReport:
    """Return the destination with the source's weights, and what was done.

    Args:
        src: A subject with `weights()`.
        dst: A subject with `weights()` and `with_weights(arrays)`.
        names: Destination name -> source name, as a mapping or a function (None: leave it). None
            matches equal names, where `kernel`, `scale` and `embedding` are `weight`.

    Raises:
        CrosscheckError: A side has no weights, a name is unknown, or shapes can't be matched.
    """
    have, want = _weights(src, "src"), _weights(dst, "dst")
    chosen = _chosen(want, have, names)
    tied, arrays = [], {}
    for destination, source in chosen.items():
        array, how = _fitted(destination, source, want[destination], have[source])
        arrays[destination] = array
        tied.append(Tied(destination, source, how))
    used = set(chosen.values())
    return TieReport(
        subject=dst.with_weights(arrays),
        tied=tuple(tied),
        unused=tuple(n for n in have if n not in used),
        unfilled=tuple(n for n in want if n not in chosen),
        shared=_shared(chosen),
    )


def _weights(subject: Any, side: str) -> dict[str, NDArray]:
    read = getattr(subject, "weights", None)
    if read is None or (side == "dst" and not hasattr(subject, "with_weights")):
        raise CrosscheckError(
            f"tie_weights: {side} is a {type(subject).__name__}, expected a subject with weights() "
            "and with_weights(arrays)."
        )
    return read()


def _chosen(
    want: Mapping[str, NDArray], have: Mapping[str, NDArray], names: Names | None
) -> dict[str, str]:
    """Return destination name -> source name."""
    if names is None:
        known = {plain(name): name for name in have}
        return {name: known[plain(name)] for name in want if plain(name) in known}
    ask = names.get if isinstance(names, Mapping) else names
    chosen = {name: source for name in want if (source := ask(name)) is not None}
    wrong = [source for source in chosen.values() if source not in have]
    if wrong:
        raise CrosscheckError(
            f"tie_weights: names leads to {wrong[0]!r}, expected one of {', '.join(have)}."
        )
    return chosen


def plain(name: str) -> str:
    """Return a weight's name in one spelling for all frameworks."""
    parts = name.replace("/", ".").split(".")
    return ".".join([*parts[:-1], SYNONYMS.get(parts[-1], parts[-1])])


def _fitted(destination: str, source: str, want: NDArray, have: NDArray) -> tuple[NDArray, str]:
    """Return the source's array in the destination's shape.

    A flax kernel is (in, out), a torch weight (out, in): between the two a matrix is transposed
    even where it is square and its shape would fit as it is.
    """
    ends = {n.replace("/", ".").rsplit(".", 1)[-1] for n in (destination, source)}
    if "kernel" in ends and len(ends) == 2:
        kernel_first = destination.endswith("kernel")
        matrix = have if kernel_first else have.reshape(-1, want.shape[0])
        turned = matrix.reshape(matrix.shape[0], -1).T if matrix.ndim >= 2 else matrix
        if turned.size == want.size:
            return turned.reshape(want.shape), "transposed"
    if want.shape == have.shape:
        return have, "as it is"
    if want.shape == have.shape[::-1]:
        return have.T, "transposed"
    if want.size == have.size and np.squeeze(want).shape == np.squeeze(have).shape:
        return have.reshape(want.shape), "reshaped"
    raise CrosscheckError(
        f"tie_weights: {destination!r} has shape {list(want.shape)}, {source!r} has "
        f"{list(have.shape)}. Give names=, or tie it by hand."
    )


def _shared(chosen: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    groups: dict[str, list[str]] = {}
    for destination, source in chosen.items():
        groups.setdefault(source, []).append(destination)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)
